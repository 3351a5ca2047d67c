"""Asking the controller that leads: found through the status that it writes, reached through the API server's pod proxy."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
import msgspec

from gpuscaler.cli.reaching import namespace_of, told

if TYPE_CHECKING:
    from gpuscaler.control.records.status import Process, Status
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.transport import Transport

#: Exit status where gpuscaler has never written its status.
NOT_INSTALLED = 4
#: How long the leader may take to answer, in seconds: it may be planning.
PATIENCE = 30.0


class NotInstalledError(Exception):
    """There is no status of gpuscaler; the text says where was looked."""


class OutOfReachError(Exception):
    """The leader cannot be asked; the text says why."""


def namespace_option(command: Callable[..., None]) -> Callable[..., None]:
    """``--namespace``."""
    return click.option("--namespace", default="", metavar="NAME", help="Where gpuscaler runs; the default is kube-system.")(command)


def leader_option(command: Callable[..., None]) -> Callable[..., None]:
    """``--leader``."""
    text = "Ask the leader at this address, such as http://127.0.0.1:8080, and not through the API server."
    return click.option("--leader", default="", metavar="URL", help=text)(command)


async def read_status(client: "Client", namespace: str) -> "Status":
    """What the leader last wrote. Raises :class:`NotInstalledError` where there is nothing, ValueError for what is not its."""
    from gpuscaler.control.records.reporting import NAME, status_in
    from gpuscaler.kube.errors import NotFound
    from gpuscaler.kube.resources import CONFIG_MAPS

    try:
        found = await client.get(CONFIG_MAPS, NAME, namespace=namespace)
    except NotFound as error:
        if not error.reason:
            raise  # Not the words of an API server, which would know ConfigMaps.
        raise NotInstalledError(
            f"ConfigMap {namespace}/{NAME}: saw none, expected the status of a controller; "
            "gpuscaler is not installed there, has never led, or runs in another namespace (--namespace)"
        ) from error
    try:
        return status_in(found)
    except ValueError as error:
        raise ValueError(f"ConfigMap {namespace}/{NAME}: {error}") from error


class WireStatus(msgspec.Struct):
    """What an API server answers itself, where it does not hand a request on."""

    kind: str = ""
    message: str = ""


async def ask(transport: "Transport", prefix: str, path: str) -> tuple[int, bytes]:
    """Status and body of what the leader answers. Raises :class:`OutOfReachError` where it is not the leader that answers."""
    from gpuscaler.kube.errors import Unreachable
    from gpuscaler.kube.transport import Request

    try:
        async with transport.exchange(Request("GET", prefix + path, timeout=PATIENCE)) as answer:
            body = b"".join([piece async for piece in answer.pieces])
    except Unreachable as error:
        raise OutOfReachError(str(error)) from error
    if answer.status >= 400:
        try:
            said = msgspec.json.decode(body, type=WireStatus)
        except msgspec.MsgspecError:
            return answer.status, body
        if said.kind == "Status":
            raise OutOfReachError(f"{answer.status}: {said.message}")
    return answer.status, body


def proxied(leader: "Process") -> str:
    """The path of a leader's pages on the API server. Raises :class:`OutOfReachError` where it has none.

    It goes through its pod's proxy and not a Service's, which may hand a question to a copy that does not lead.
    """
    if not leader.pod:
        raise OutOfReachError(f"leader {leader.identity}: runs outside of the cluster; name its address with --leader")
    if not leader.port:
        raise OutOfReachError(f"leader {leader.identity}: serves no pages (http.enabled is false)")
    scheme = "https:" if leader.tls else ""
    return f"/api/v1/namespaces/{quote(leader.namespace)}/pods/{scheme}{quote(leader.pod)}:{leader.port}/proxy"


async def asked(access: "Access", transport: "Transport", leader: str, *, namespace: str, path: str) -> tuple[int, bytes]:
    """What the leader answers to ``path``: the one at the URL ``leader``, else the one that the status in ``namespace`` names."""
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport

    if leader:
        async with HttpTransport(Access(server=leader.rstrip("/"), source="--leader")) as direct:
            return await ask(direct, "", path)
    status = await read_status(Client(transport), namespace_of(namespace, access))
    return await ask(transport, proxied(status.leader), path)


def talk(access: "Access", talking: Callable[["Transport"], Awaitable[int]]) -> int:
    """Run ``talking`` with a transport to the cluster, and say what went wrong in the usual words; returns the exit status."""
    import asyncio

    from gpuscaler.kube.http import HttpTransport

    async def conversation() -> int:
        async with HttpTransport(access) as transport:
            return await talking(transport)

    try:
        with told(access):
            return asyncio.run(conversation())
    except NotInstalledError as error:
        click.echo(str(error), err=True)
        return NOT_INSTALLED
    except ValueError as error:
        click.echo(str(error), err=True)
        return 2
