"""``gpuscaler exporter``: exports GPU metrics of one node, per pod, for Prometheus."""

import asyncio
import importlib.util
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gpuscaler.cli.ending import until_terminated

if TYPE_CHECKING:
    from gpuscaler.exporter.attribution.cluster import ClusterNames
    from gpuscaler.exporter.scheduled_events.watching import EventWatcher
    from gpuscaler.kube.client import Client

_METADATA_URL = re.compile(r"http://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:\s]*)):([0-9]{1,5})")
#: Modules of the extra ``exporter`` and the purpose of each.
_EXTRA = {"pynvml": "the nvml backend", "grpc": "queries to the kubelet"}


class Interval(click.ParamType[float]):
    """A Go duration from ``shortest`` to ``longest``, in seconds."""

    name = "duration"

    def __init__(self, shortest: str, longest: str) -> None:
        self._shortest, self._longest = shortest, longest

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from gpuscaler.model.durations import DurationError, parse_duration

        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except DurationError:
            seconds = 0.0
        if not parse_duration(self._shortest) <= seconds <= parse_duration(self._longest):
            self.fail(f"saw {value!r}, expected a duration from {self._shortest} to {self._longest}", param, ctx)
        return seconds


class MetadataUrl(click.ParamType[str]):
    """The URL of a metadata service."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if _METADATA_URL.fullmatch(value) is None:
            self.fail(f"saw {value!r}, expected http://HOST[:PORT][/PATH]", param, ctx)
        return value.rstrip("/")


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT`` as a pair; without a host it means all addresses."""

    name = "address"

    def convert(self, value: str | tuple[str, int], param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = _ADDRESS.fullmatch(value)
        if match is None or int(match[3]) > 65535:
            self.fail(f"saw {value!r}, expected HOST:PORT, such as :9400 or 127.0.0.1:9400", param, ctx)
        return match[1] or match[2] or "", int(match[3])


@click.command()
@click.option(
    "--listen", type=Address(), default=":9400", show_default=True, metavar="[HOST]:PORT", help="Address that metrics are served on."
)
@click.option(
    "--interval", type=Interval("100ms", "10s"), default="1s", show_default=True, metavar="DURATION", help="How often GPUs are measured."
)
@click.option(
    "--backend",
    type=click.Choice(["nvml", "simulated"]),
    default="nvml",
    show_default=True,
    help="NVIDIA's driver, or simulated GPUs.",
)
@click.option("--simulated-gpus", type=click.IntRange(1, 64), default=8, show_default=True, help="Number of GPUs of the simulated backend.")
@click.option(
    "--kubelet-socket",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    metavar="PATH",
    help="Socket of the kubelet's PodResources API, which lists the pod of each GPU.",
)
@click.option("--node-name", envvar="NODE_NAME", default="", metavar="NAME", help="Name of the node; default: the host's name.")
@click.option("--ask-api-server", is_flag=True, help="Query the API server, with the pod's service account, for data the node lacks.")
@click.option("--scheduled-events", is_flag=True, help="Read what Azure schedules for this machine, and annotate its node with it.")
@click.option(
    "--scheduled-events-interval",
    type=Interval("2s", "60s"),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="How often scheduled events are read.",
)
@click.option(
    "--acknowledge-scheduled-events", is_flag=True, help="Tell Azure to go on with an event of this machine once its node is drained."
)
@click.option(
    "--metadata-url",
    type=MetadataUrl(),
    default="http://169.254.169.254",
    show_default=True,
    metavar="URL",
    help="Azure's metadata service; another one is for trying things out.",
)
def exporter(
    *,
    listen: tuple[str, int],
    interval: float,
    backend: str,
    simulated_gpus: int,
    kubelet_socket: Path,
    node_name: str,
    ask_api_server: bool,
    scheduled_events: bool,
    scheduled_events_interval: float,
    acknowledge_scheduled_events: bool,
    metadata_url: str,
) -> None:
    """Measure each GPU of this node and export the metrics with the pod that uses it, until stopped."""
    if acknowledge_scheduled_events and not scheduled_events:
        raise click.UsageError("--acknowledge-scheduled-events: saw no --scheduled-events, expected both")
    check_packages(backend)
    watching = _Watching(scheduled_events_interval, acknowledge_scheduled_events, metadata_url) if scheduled_events else None
    sys.exit(
        asyncio.run(
            _run(
                listen=listen,
                interval=interval,
                backend=backend,
                devices=simulated_gpus,
                socket_path=kubelet_socket,
                node=node_name or socket.gethostname(),
                ask_api_server=ask_api_server,
                watching=watching,
            )
        )
    )


def check_packages(backend: str) -> None:
    """End the command with exit code 2 if packages are not installed."""
    required = [name for name in _EXTRA if name != "pynvml" or backend == "nvml"]
    missing = [name for name in required if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        modules = ", ".join(f"{name} (for {_EXTRA[name]})" for name in missing)
        click.echo(
            f"saw no Python module {modules}, expected them; install them: pip install '.[exporter]' in a clone of gpuscaler", err=True
        )
        sys.exit(2)


class _Watching(NamedTuple):
    """How scheduled events are read."""

    interval: float
    acknowledges: bool
    url: str


async def _run(
    *,
    listen: tuple[str, int],
    interval: float,
    backend: str,
    devices: int,
    socket_path: Path,
    node: str,
    ask_api_server: bool,
    watching: _Watching | None,
) -> int:
    # The gRPC library would write its own lines into the log whenever a kubelet restarts.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gpuscaler.exporter.answering import PageServer
    from gpuscaler.exporter.attribution.attributor import NodeAttributor, NodePaths
    from gpuscaler.exporter.service import Exporter
    from gpuscaler.exporter.supervising import sampler_command

    async with _api_server(required=ask_api_server, wanted=watching is not None) as client, _events(node, watching, client) as events:
        exporter = Exporter(
            sampler_command(backend=backend, interval=interval, devices=devices),
            backend=backend,
            interval=interval,
            node=node,
            attributor=NodeAttributor(
                NodePaths.of_kubelet(socket_path), clock=time.monotonic, cluster=_cluster_names(node, client if ask_api_server else None)
            ),
            log=_log,
            clock=time.monotonic,
            wall=time.time,
            events=events,
        )
        server = PageServer(exporter.pages(), lambda text: _log("warning", text))
        try:
            await server.start(*listen)
        except (OSError, UnicodeError) as error:
            address = f"{listen[0]}:{listen[1]}"
            problem = getattr(error, "strerror", None) or error
            click.echo(f"--listen {address}: saw {problem}, expected a free address of this machine; choose another", err=True)
            return 2
        _log("info", f"serving on port {server.port}")
        try:
            await until_terminated(exporter.run())
        finally:
            await server.close()
    return 0


def _cluster_names(node: str, client: "Client | None") -> "ClusterNames | None":
    if client is None:
        return None
    from gpuscaler.exporter.attribution.cluster import ClusterNames

    return ClusterNames(client, node, clock=time.monotonic)


@asynccontextmanager
async def _events(node: str, watching: _Watching | None, client: "Client | None") -> "AsyncIterator[EventWatcher | None]":
    """Watch scheduled events; without ``client`` they are only on the page of metrics."""
    if watching is None:
        yield None
        return
    from gpuscaler.exporter.scheduled_events.metadata_service import MetadataService
    from gpuscaler.exporter.scheduled_events.own_node import OwnNode
    from gpuscaler.exporter.scheduled_events.watching import EventWatcher

    async with MetadataService(watching.url) as service:
        writer = OwnNode(client, node) if client is not None else None
        yield EventWatcher(
            service, writer, node, interval=watching.interval, log=_log, clock=time.monotonic, acknowledges=watching.acknowledges
        )


@asynccontextmanager
async def _api_server(*, required: bool, wanted: bool) -> "AsyncIterator[Client | None]":
    """Open a client of the API server with the pod's service account, as kubectl finds it, if it is required or wanted.

    Unusable settings end the command with exit code 2 if it is required, and are logged otherwise.
    """
    if not (required or wanted):
        yield None
        return
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.errors import AccessError
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.incluster import find_access

    try:
        access = find_access(os.environ)
    except AccessError as error:
        message, _, advice = str(error).rpartition("; ")
        option = "--ask-api-server" if required else "--scheduled-events"
        if "--kubeconfig" in advice:
            # This command has no such option.
            advice = f"run in a pod with a service account, set KUBECONFIG, or omit {option}"
        if required:
            click.echo(f"{option}: {message}; {advice}", err=True)
            sys.exit(2)
        _log("warning", f"scheduled events are only on this exporter's page: {message}; {advice}")
        yield None
        return
    async with HttpTransport(access) as transport:
        yield Client(transport, field_manager="gpuscaler-exporter")


def _log(level: str, text: str) -> None:
    """Log a line of JSON in the controller's format (:mod:`gpuscaler.serving.logs`), without the 5 MB library that it needs."""
    import msgspec

    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    click.echo(msgspec.json.encode({"time": stamp, "level": level, "message": text}), err=True)
