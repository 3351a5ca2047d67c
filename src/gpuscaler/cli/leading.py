"""Queries to the leading controller: found through the status it writes, reached through a forwarded port of its pod."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.reaching import namespace_of, report_api_errors

if TYPE_CHECKING:
    from gpuscaler.control.records.status.status import Process, Status
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.transport import Transport

#: Exit status if gpuscaler has never written its status.
NOT_INSTALLED = 4
#: The Lease of the controller.
LEASE = "gpuscaler"
#: How long the leader may take to answer, in seconds: it may be planning.
PATIENCE = 30.0


class NotInstalledError(Exception):
    """The cluster has no status of gpuscaler; the text names the ConfigMap that was searched for."""


class OutOfReachError(Exception):
    """The leader cannot be queried; the text gives the reason."""


def namespace_option(command: Callable[..., None]) -> Callable[..., None]:
    """``--namespace``."""
    return click.option("--namespace", default="", metavar="NAME", help="Namespace of gpuscaler; default: kube-system.")(command)


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's address from the command line; without a ``url``, the address in the status is used."""

    url: str = ""
    token_file: Path | None = None
    authority: Path | None = None

    def access(self) -> "Access":
        """Return the access to the leader. Raises :class:`OutOfReachError` for options that exclude each other."""
        from gpuscaler.kube.access import Access
        from gpuscaler.kube.credentials import FixedCredentials, TokenFile
        from gpuscaler.kube.tls import Tls

        if self.token_file is not None and not self.url.startswith("https:"):
            raise OutOfReachError(
                f"--leader: saw {self.url} with --leader-token-file, expected https://…, because a token is sent over TLS only"
            )
        tls = Tls(owner="--leader", authority_file=self.authority, remedy="give its certificate authority with --leader-ca-file")
        credentials = FixedCredentials() if self.token_file is None else TokenFile(self.token_file, "--leader-token-file")
        return Access(server=self.url.rstrip("/"), source="--leader", tls=tls, credentials=credentials)


def leader_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--leader``, ``--leader-token-file`` and ``--leader-ca-file``, passed as a :class:`Leader` in ``leader``."""

    @wraps(command)
    def wrapped(*, leader: str, leader_token_file: Path | None, leader_ca_file: Path | None, **options: object) -> None:
        command(leader=Leader(leader, leader_token_file, leader_ca_file), **options)

    text = "Query the leader at this address, such as http://127.0.0.1:8081, instead of through the API server."
    decorated: Callable[..., None] = wrapped
    for option in (
        _file_option("--leader-ca-file", "Certificate authority of --leader, as PEM; default: the system's trusted authorities."),
        _file_option("--leader-token-file", "Send the token in this file to --leader, which must use TLS."),
        click.option("--leader", default="", metavar="URL", help=text),
    ):
        decorated = option(decorated)
    return decorated


def _file_option(name: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(name, type=click.Path(path_type=Path), metavar="FILE", help=text)


async def read_status(client: "Client", namespace: str) -> "Status":
    """Read the leader's last status. Raises :class:`NotInstalledError` if there is none, ValueError if it cannot be parsed."""
    from gpuscaler.control.records.status.reporting import NAME, parse_status
    from gpuscaler.kube.errors import NotFound
    from gpuscaler.kube.resources import CONFIG_MAPS

    try:
        config_map = await client.get(CONFIG_MAPS, NAME, namespace=namespace)
    except NotFound as error:
        raise NotInstalledError(
            f"ConfigMap {namespace}/{NAME}: saw none, expected the status of a controller; "
            "gpuscaler is not installed there, has never led, or runs in another namespace (--namespace)"
        ) from error
    try:
        return parse_status(config_map)
    except ValueError as error:
        raise ValueError(f"ConfigMap {namespace}/{NAME}: {error}") from error


async def why_no_controller(client: "Client", namespace: str, *, now: float) -> str:
    """Why no controller acts in the cluster; empty if one runs. Raises ApiError, Unreachable, and ValueError for an unreadable status."""
    from gpuscaler.kube.errors import Forbidden, NotFound

    try:
        status = await read_status(client, namespace)
    except NotInstalledError as error:
        return f"no controller runs: {error}"
    if stopped := why_stopped(status, namespace, now=now):
        return stopped
    try:
        holder = await read_lease_holder(client, namespace)
    except NotFound:
        return f"no controller runs: Lease {namespace}/{LEASE}: saw none, expected that of a leader; start gpuscaler run"
    except Forbidden:
        return ""  # The status is recent.
    if not holder:
        return f"no controller runs: Lease {namespace}/{LEASE}: saw no holder, expected a leader; start gpuscaler run"
    return ""


async def read_lease_holder(client: "Client", namespace: str) -> str:
    """The identity in the controller's Lease; empty if it was released. Raises the API server's errors."""
    import msgspec

    from gpuscaler.doctor.documents import Document
    from gpuscaler.kube.resources import LEASES

    return Document(msgspec.json.decode(await client.get(LEASES, LEASE, namespace=namespace))).text("spec", "holderIdentity")


async def require_controller(client: "Client", namespace: str, *, now: float) -> str:
    """Check that a controller reads what a user has just written for it in ``namespace``; return a warning, empty if one runs.

    Raises :class:`NotInstalledError` if the status is missing or old and no Lease has a holder. What the user wrote is in force for a
    controller that starts later, so an answer that is refused or lost is only a warning.
    """
    from gpuscaler.kube.errors import ApiError, Unreachable

    try:
        stopped = why_stopped(await read_status(client, namespace), namespace, now=now)
    except NotInstalledError as error:
        # A controller that has just begun to lead has not written its status yet.
        if await _is_lease_held(client, namespace, unknown=False):
            return ""
        raise NotInstalledError(f"no controller runs in namespace {namespace}: {error}") from error
    except ValueError:
        return ""  # A controller of another version has written it.
    except (ApiError, Unreachable) as error:
        return f"it could not be checked whether a controller runs in namespace {namespace}: {error}"
    # With a holder, the status may seem old only because the clock of this machine is ahead.
    if stopped and not await _is_lease_held(client, namespace, unknown=True):
        raise NotInstalledError(f"{stopped}, or give the namespace of another controller with --namespace")
    return stopped


async def _is_lease_held(client: "Client", namespace: str, *, unknown: bool) -> bool:
    """Whether the controller's Lease has a holder; ``unknown`` if it cannot be read."""
    from gpuscaler.kube.errors import ApiError, NotFound, Unreachable

    try:
        return bool(await read_lease_holder(client, namespace))
    except NotFound:
        return False
    except (ApiError, Unreachable):
        return unknown


def why_stopped(status: "Status", namespace: str, *, now: float) -> str:
    """Why the writer of ``status`` does not run any more; empty if the status is recent."""
    from gpuscaler.control.records.status.reporting import NAME, OLD_SECONDS
    from gpuscaler.control.records.words import format_duration

    age = now - status.at
    if age <= OLD_SECONDS:
        return ""
    seen = f"ConfigMap {namespace}/{NAME}: saw a status that is {format_duration(age)} old"
    return f"no controller runs: {seen}, expected one of the last minute; see its log and its Lease"


async def query(transport: "Transport", path: str) -> tuple[int, bytes]:
    """Return status and body of the leader's answer. Raises :class:`OutOfReachError` if nothing answers."""
    from gpuscaler.kube.errors import Unreachable
    from gpuscaler.kube.transport import Request

    try:
        async with transport.exchange(Request("GET", path, timeout=PATIENCE)) as response:
            return response.status, b"".join([piece async for piece in response.pieces])
    except Unreachable as error:
        raise OutOfReachError(str(error)) from error


async def query_pod(transport: "HttpTransport", leader: "Process", path: str) -> tuple[int, bytes]:
    """Query a leader that runs in a pod, through a forwarded port of the pod.

    Its pages listen on the pod's loopback address, which is not reachable from elsewhere. A Service is not used, because it may lead to a
    replica that is not the leader.
    """
    from gpuscaler.kube.errors import ApiError, Forbidden, Unreachable
    from gpuscaler.kube.portforward import NotAnsweredError, PodPort, get_page

    target = PodPort(namespace=leader.namespace, pod=leader.pod, port=leader.port)
    try:
        return await get_page(transport, target, path, within=PATIENCE)
    except Forbidden as error:
        needed = f"get and create on pods/portforward in namespace {leader.namespace}"
        raise OutOfReachError(f"{error}; expected {needed}, as in the chart's Role for readers; bind it to this user") from error
    except (ApiError, NotAnsweredError, Unreachable) as error:
        by_hand = f"kubectl --namespace {leader.namespace} port-forward {leader.pod} {leader.port}"
        raise OutOfReachError(
            f"the port of its pages cannot be forwarded: {error}; if {by_hand} works, use --leader http://127.0.0.1:{leader.port}"
        ) from error


async def query_local(leader: "Process", path: str) -> tuple[int, bytes]:
    """Query a leader that runs on this machine, outside of a pod."""
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.settings.run_settings import is_loopback

    # A user who can write the status must not be able to choose which address this machine queries.
    host = f"[{leader.address}]" if ":" in leader.address else leader.address
    url = f"http://{host}:{leader.port}"
    if not is_loopback(leader.address) or leader.host != socket.gethostname():
        raise OutOfReachError(
            f"leader {leader.identity}: runs outside of a pod on {leader.host}, with its pages at {url}; run the command there, "
            f"or forward the port to this machine (ssh -L {leader.port}:{host}:{leader.port} {leader.host}) and give it with --leader"
        )
    async with HttpTransport(Access(server=url, source=f"the status of leader {leader.identity}")) as direct:
        return await query(direct, path)


async def query_leader(access: "Access", transport: "HttpTransport", leader: Leader, *, namespace: str, path: str) -> tuple[int, bytes]:
    """Query ``path`` of the leader: at the address in ``leader``, else at the address in the status in ``namespace``."""
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport

    if leader.url:
        async with HttpTransport(leader.access()) as direct:
            return await query(direct, path)
    process = (await read_status(Client(transport), namespace_of(namespace, access))).leader
    if not process.port:
        raise OutOfReachError(f"leader {process.identity}: serves no pages (pages.enabled is false)")
    return await (query_pod(transport, process, path) if process.pod else query_local(process, path))


def run_with_transport(access: "Access", action: Callable[["HttpTransport"], Awaitable[int]]) -> int:
    """Run ``action`` with a transport to the cluster, report errors in the usual form, and return the exit status."""
    import asyncio

    from gpuscaler.kube.http import HttpTransport

    async def run_action() -> int:
        async with HttpTransport(access) as transport:
            return await action(transport)

    try:
        with report_api_errors(access):
            return asyncio.run(run_action())
    except NotInstalledError as error:
        click.echo(str(error), err=True)
        return NOT_INSTALLED
    except ValueError as error:
        click.echo(str(error), err=True)
        return 2
