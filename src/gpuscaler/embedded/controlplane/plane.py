"""A running control plane: etcd, API server, controllers and scheduler of one Kubernetes release, as processes of this machine."""

import asyncio
import socket
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from gpuscaler.embedded.controlplane import flags
from gpuscaler.embedded.controlplane.building import API_SERVER, CONTROLLERS, ETCD, NAMES, SCHEDULER, Programs
from gpuscaler.embedded.controlplane.flags import FIRST_SERVICE, HOST, Layout, Ports
from gpuscaler.embedded.controlplane.processes import EndedError, Process
from gpuscaler.embedded.serving.alone import NAME
from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, NotFound, Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import SERVICE_ACCOUNTS
from gpuscaler.kube.tls import Tls
from gpuscaler.kube.transport import Request
from gpuscaler.serving.certificates import CertificateAuthority, CertificatePair, signing_key, write_private

ADMIN: Final = "admin"
#: The group whose members may do everything, whatever roles there are.
MASTERS: Final = "system:masters"
#: Seconds that a part gets to become healthy, and pauses between checks.
PATIENCE, PAUSE = 120.0, 0.1
#: Audit policy: the user and the object of every finished request.
AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane:
    """The control plane of ``programs``, all of whose files are below ``root``, from :meth:`start` to :meth:`stop`.

    ``now`` is the wall clock in seconds since the epoch, ``environ`` the environment of the programs. With ``audit`` every request is
    logged. ``features`` are Kubernetes feature gates. ``port`` is the API server's; 0 takes a free one.
    """

    def __init__(
        self,
        programs: Programs,
        root: Path,
        *,
        now: float,
        environ: Mapping[str, str],
        port: int = 0,
        audit: bool = False,
        features: Mapping[str, bool] | None = None,
    ) -> None:
        self.layout = Layout(root)
        self._now, self._audit, self._programs, self._environ = now, audit, programs, environ
        self._ports = _free_ports(port)
        self._features = ",".join(f"{name}={str(on).lower()}" for name, on in (features or {}).items())
        self._authority = CertificateAuthority("gpuscaler control plane", now=now)
        self.processes: dict[str, Process] = {}

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self._ports.api}"

    @property
    def kubeconfig(self) -> Path:
        """The path of the kubeconfig of a user who may do everything."""
        return self.layout.kubeconfig(ADMIN)

    async def start(self) -> None:
        """Start everything and wait until it is healthy. Raises :exc:`EndedError` or OSError if it does not become healthy."""
        self._write()
        self.processes = {name: self._process(name) for name in NAMES}
        try:
            self.processes[ETCD].start()
            await self._wait_until(self._is_listening)
            self.processes[API_SERVER].start()
            await self._wait_until(self.well)
            self.processes[SCHEDULER].start()
            self.processes[CONTROLLERS].start()
            await self._wait_until(self._is_settled)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, in reverse order of starting."""
        with ExitStack() as stack:
            for name in (ETCD, API_SERVER, CONTROLLERS, SCHEDULER):
                if name in self.processes:
                    stack.callback(self.processes[name].end)

    async def restart(self, name: str) -> None:
        """Kill one of the programs and start it again; returns when the API server is healthy."""
        self.processes[name].kill()
        self.processes[name].start()
        await self._wait_until(self.well)

    async def run(self) -> None:
        """Wait until cancelled, or until a program ends, which raises :exc:`EndedError`."""
        while True:
            self.check()
            await asyncio.sleep(1.0)

    def check(self) -> None:
        """Raise :exc:`EndedError` if a program has ended."""
        for process in self.processes.values():
            process.check()

    def write_kubeconfig(self, user: str, *, pair: CertificatePair | None = None, token: str = "") -> Path:
        """Write a kubeconfig for ``user``, with a client certificate or a token; returns its path."""
        path = self.layout.kubeconfig(user)
        write_private(path, yaml.safe_dump(self.config(pair=pair, token=token), sort_keys=False).encode())
        return path

    def config(self, *, pair: CertificatePair | None = None, token: str = "") -> dict[str, Any]:
        """A kubeconfig with one context."""
        credentials = {"token": token} if token else {}
        if pair is not None:
            credentials = {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}
        cluster = {"server": self.url, "certificate-authority-data": _base64(self._authority.certificate)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NAME, "cluster": cluster}],
            "users": [{"name": NAME, "user": credentials}],
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
            "current-context": NAME,
        }

    def certificate(self, user: str, *groups: str) -> CertificatePair:
        """A client certificate."""
        return self._authority.issue(user, groups=groups)

    # Files that are written before anything starts

    def _write(self) -> None:
        layout = self.layout
        for folder in (layout.secrets, layout.logs):
            folder.mkdir(parents=True, mode=0o700)
        hosts = (HOST, "localhost", FIRST_SERVICE, "kubernetes.default.svc")
        write_private(layout.file("ca.crt"), self._authority.certificate)
        self._authority.issue("server", hosts=hosts).write(layout.secrets, "server")
        for name, client in (("etcd", "etcd-client"), ("front-proxy", "front-proxy-client")):
            authority = CertificateAuthority(name, now=self._now)
            write_private(layout.file(f"{name}-ca.crt"), authority.certificate)
            authority.issue(client).write(layout.secrets, client)
            if name == "etcd":
                authority.issue(name, hosts=hosts).write(layout.secrets, name)
        for file, content in zip(("accounts.key", "accounts.pub"), signing_key(), strict=True):
            write_private(layout.file(file), content)
        write_private(layout.file("audit.yaml"), yaml.safe_dump(AUDIT).encode())
        self.write_kubeconfig(ADMIN, pair=self.certificate(ADMIN, MASTERS))
        for user in (CONTROLLERS, SCHEDULER):
            self.write_kubeconfig(user, pair=self.certificate(f"system:{user}"))

    def _process(self, name: str) -> Process:
        layout, ports, features = self.layout, self._ports, self._features
        words = {
            ETCD: lambda: flags.etcd(layout, ports),
            API_SERVER: lambda: flags.api_server(layout, ports, audit=self._audit, features=features),
            CONTROLLERS: lambda: flags.controllers(layout, ports, features=features),
            SCHEDULER: lambda: flags.scheduler(layout, ports, features=features),
        }[name]()
        command = [str(self._programs.folder / name), *words]
        return Process(name, command, log=layout.logs / f"{name}.log", environ=self._environ, tied=self._programs.tied)

    # Health

    async def _wait_until(self, well: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not await well():
                    self.check()
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            raise EndedError(f"{self.url}: not healthy after {PATIENCE:g} s, which is far too long; see {self.layout.logs}") from None

    async def _is_listening(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self._ports.etcd)
        except OSError:
            return False
        writer.close()
        return True

    async def well(self) -> bool:
        """Whether the API server reports that it is ready."""
        return await self._answers(self._ports.api, "/readyz")

    async def _is_settled(self) -> bool:
        """Whether the other parts are healthy and have created what pods need."""
        for port in (self._ports.scheduler, self._ports.controllers):
            if not await self._answers(port, "/healthz"):
                return False
        try:
            async with HttpTransport(self.access()) as transport:
                await Client(transport).get(SERVICE_ACCOUNTS, "default", namespace="default")
        except NotFound:
            return False
        return True

    def access(self) -> Access:
        """A transport for a user who may do everything."""
        pair = self.certificate(ADMIN, MASTERS)
        tls = Tls(authority=self._authority.certificate, certificate=pair.certificate, key=pair.key)
        return Access(server=self.url, source=NAME, tls=tls)

    async def _answers(self, port: int, path: str) -> bool:
        access = Access(server=f"https://{HOST}:{port}", source=NAME, tls=Tls(authority=self._authority.certificate))
        try:
            async with HttpTransport(access) as transport, transport.exchange(Request("GET", path)) as answer:
                return answer.status == 200
        except (ApiError, Unreachable):
            return False


def _free_ports(api: int) -> Ports:
    """Ports that are free now; if another program takes one first, the program that was to use it ends."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(5)]
        for reserved in sockets:
            reserved.bind((HOST, 0))
        etcd, peers, free, controllers, scheduler = (socket.getsockname()[1] for socket in sockets)
    return Ports(etcd=etcd, peers=peers, api=api or free, controllers=controllers, scheduler=scheduler)


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
