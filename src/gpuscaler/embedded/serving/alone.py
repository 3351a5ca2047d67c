"""The embedded cluster alone, behind a real HTTP server, with a kubeconfig for its users."""

import os
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

import yaml

from gpuscaler.embedded.apiserver.aggregation.front_proxy import FrontProxy
from gpuscaler.embedded.nodes.machines import quantities
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.embedded.serving.accounts import AccountServer
from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube.resources import NODES
from gpuscaler.model.pools import Policy
from gpuscaler.serving.certificates import CertificateAuthority, CertificatePair
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: The name of all entries in the kubeconfig, by which our own file is recognised.
NAME: Final = "gpuscaler-embedded"
HOST: Final = "127.0.0.1"
#: Seconds for an image pull; images without content are small.
PULL: Final = Delay(0.5, 1.0, 2.0)
#: The instance type of a node without a particular one.
PLAIN: Final = {"cpu": 8000, "memory": 32 * 2**30, "ephemeral-storage": 100 * 2**30, "pods": 110}


class ForeignFileError(Exception):
    """The kubeconfig would overwrite a file that is not ours; the text names it and says what to do."""


class StandaloneCluster:
    """An embedded cluster that is served at ``port`` (0: a free one) until :meth:`run` is cancelled.

    ``speed`` seconds of its time pass in one second. With ``tls`` the server has a certificate of its own and requires a token; without it,
    it accepts all requests from this machine. ``ready`` gets the URL once the server answers. The kubeconfig is written then, readable only
    for its owner, and removed at the end. ``beside`` is an account of a cloud that is served too.
    """

    def __init__(
        self,
        kubeconfig: Path,
        *,
        nodes: Sequence[Mapping[str, Any]] = (),
        speed: float = 1.0,
        tls: bool = False,
        port: int = 0,
        ready: Callable[[str], None],
        beside: AccountServer | None = None,
    ) -> None:
        self._beside = beside
        self._kubeconfig, self._nodes, self._speed, self._port, self._ready = kubeconfig, nodes, speed, port, ready
        self._began, self._zero = time.time(), time.monotonic()
        self._pair = (
            CertificateAuthority("gpuscaler embedded cluster", now=self._began).self_signed(hosts=(HOST, "localhost")) if tls else None
        )
        self._token = token_urlsafe(24) if tls else ""
        check_overwritable(kubeconfig)

    def now(self) -> float:
        """The cluster's time, in seconds since the epoch."""
        return self._began + (time.monotonic() - self._zero) * self._speed

    async def run(self) -> None:
        """Serve until cancelled. Raises OSError if the port or the file is not available."""
        conditions = Conditions(delays=Delays(image_pull=PULL))
        cluster = EmbeddedCluster(
            Policy(pools=()),
            now=self.now,
            conditions=conditions,
            speed=self._speed,
            token=self._token,
            front_proxy=FrontProxy(now=self._began),
        )
        tls = self._pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) if self._pair else None
        serving = await serve(cluster.api, HOST, self._port, tls=tls)
        config = kubeconfig_of(serving.url, self._pair, self._token)
        try:
            user = cluster.client("gpuscaler")
            for node in self._nodes:
                await user.create(NODES, {**node, "status": {**node["status"], "conditions": ready_conditions(self.now())}})
            write_kubeconfig(self._kubeconfig, config)
            self._ready(serving.url)
            if self._beside is None:
                await cluster.run()
            else:
                async with self._beside.run(cluster.client("aws"), now=self.now, kubelets=cluster.kubelets, speed=self._speed):
                    await cluster.run()
        finally:
            # Another cluster or a user may have written there since.
            with suppress(OSError, ValueError):
                if self._kubeconfig.read_text(encoding="utf-8") == kubeconfig_text(config):
                    self._kubeconfig.unlink()
            await serving.close()


def ready_conditions(now: float) -> list[dict[str, str]]:
    """The conditions of a node that has been Ready since ``now``."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return [{**ready, "lastHeartbeatTime": timestamp(now), "lastTransitionTime": timestamp(now)}]


def make_node(name: str, amounts: Mapping[str, int], labels: Mapping[str, str]) -> dict[str, Any]:
    """A Node with ``amounts``, in the model's base units."""
    capacity = quantities(amounts)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **labels, "kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": {"kubeletVersion": "v1.35.4", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def kubeconfig_of(url: str, pair: CertificatePair | None, token: str) -> dict[str, Any]:
    """A kubeconfig with one context."""
    cluster: dict[str, Any] = {"server": url}
    if pair is not None:
        cluster["certificate-authority-data"] = b64encode(pair.certificate).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }


def check_overwritable(path: Path) -> None:
    """Raise :class:`ForeignFileError` if ``path`` must not be overwritten."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        names = [context["name"] for context in config["contexts"]]
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError):
        names = []
    if names != [NAME]:
        raise ForeignFileError(f"{path}: saw a file that is not the kubeconfig of an embedded cluster, expected none; name another file")


def kubeconfig_text(config: Mapping[str, Any]) -> str:
    """The text of a kubeconfig."""
    return yaml.safe_dump(dict(config), sort_keys=False)


def write_kubeconfig(path: Path, config: Mapping[str, Any]) -> None:
    """Write a file atomically, readable only for its owner."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(kubeconfig_text(config))
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
