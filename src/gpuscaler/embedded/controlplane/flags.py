"""Flags of the programs of a control plane: one control plane, reachable only at this machine's own address, with RBAC."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
#: The address range of services, and its first address, at which pods would reach the API server.
SERVICES, FIRST_SERVICE = "10.0.0.0/24", "10.0.0.1"
ISSUER: Final = "https://kubernetes.default.svc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports at 127.0.0.1."""

    etcd: int
    peers: int
    api: int
    controllers: int
    scheduler: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of all files, below ``root``."""

    root: Path

    @property
    def secrets(self) -> Path:
        return self.root / "secrets"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit(self) -> Path:
        """The log of all requests, one JSON object a line, if it is switched on."""
        return self.root / "audit.log"

    def file(self, name: str) -> Path:
        return self.secrets / name

    def kubeconfig(self, user: str) -> Path:
        return self.secrets / f"{user}.kubeconfig"


def etcd(layout: Layout, ports: Ports) -> Iterator[str]:
    clients, peers = f"https://{HOST}:{ports.etcd}", f"https://{HOST}:{ports.peers}"
    yield from _flags(
        {
            "name": "default",
            "data-dir": layout.root / "etcd",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "client-cert-auth": "true",
            "trusted-ca-file": layout.file("etcd-ca.crt"),
            "cert-file": layout.file("etcd.crt"),
            "key-file": layout.file("etcd.key"),
            "peer-client-cert-auth": "true",
            "peer-trusted-ca-file": layout.file("etcd-ca.crt"),
            "peer-cert-file": layout.file("etcd.crt"),
            "peer-key-file": layout.file("etcd.key"),
            # Its data are deleted at the end, so waiting for the disk would be useless.
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
    )


def api_server(layout: Layout, ports: Ports, *, audit: bool, features: str) -> Iterator[str]:
    yield from _flags(
        {
            "etcd-servers": f"https://{HOST}:{ports.etcd}",
            "etcd-cafile": layout.file("etcd-ca.crt"),
            "etcd-certfile": layout.file("etcd-client.crt"),
            "etcd-keyfile": layout.file("etcd-client.key"),
            "bind-address": HOST,
            "advertise-address": HOST,
            "secure-port": ports.api,
            "endpoint-reconciler-type": "none",
            "tls-cert-file": layout.file("server.crt"),
            "tls-private-key-file": layout.file("server.key"),
            "client-ca-file": layout.file("ca.crt"),
            "authorization-mode": "RBAC",
            "service-account-issuer": ISSUER,
            "service-account-key-file": layout.file("accounts.pub"),
            "service-account-signing-key-file": layout.file("accounts.key"),
            "service-cluster-ip-range": SERVICES,
            "enable-aggregator-routing": "true",
            "requestheader-client-ca-file": layout.file("front-proxy-ca.crt"),
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": layout.file("front-proxy-client.crt"),
            "proxy-client-key-file": layout.file("front-proxy-client.key"),
            "feature-gates": features,
            **({"audit-policy-file": layout.file("audit.yaml"), "audit-log-path": layout.audit} if audit else {}),
        }
    )


def controllers(layout: Layout, ports: Ports, *, features: str) -> Iterator[str]:
    yield from _flags(
        {
            **_beside(layout, "kube-controller-manager", ports.controllers),
            "use-service-account-credentials": "true",
            "service-account-private-key-file": layout.file("accounts.key"),
            "root-ca-file": layout.file("ca.crt"),
            "feature-gates": features,
        }
    )


def scheduler(layout: Layout, ports: Ports, *, features: str) -> Iterator[str]:
    yield from _flags({**_beside(layout, "kube-scheduler", ports.scheduler), "feature-gates": features})


def _beside(layout: Layout, user: str, port: int) -> dict[str, object]:
    """Configuration for programs beside the API server."""
    kubeconfig = layout.kubeconfig(user)
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "leader-elect": "false",
        "bind-address": HOST,
        "secure-port": port,
        "tls-cert-file": layout.file("server.crt"),
        "tls-private-key-file": layout.file("server.key"),
    }


def _flags(values: Mapping[str, object]) -> Iterator[str]:
    return (f"--{name}={value}" for name, value in values.items() if value != "")
