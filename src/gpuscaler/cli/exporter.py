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
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.ending import until_terminated

if TYPE_CHECKING:
    from gpuscaler.exporter.attribution.cluster import ClusterNames
    from gpuscaler.kube.access import Access

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:\s]*)):([0-9]{1,5})")
_INTERVALS = "a duration from 100ms to 10s"
#: Modules of the extra ``exporter`` and the purpose of each.
_EXTRA = {"pynvml": "the nvml backend", "grpc": "queries to the kubelet"}


class Interval(click.ParamType[float]):
    """A Go duration, in seconds."""

    name = "duration"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from gpuscaler.model.durations import DurationError, parse_duration

        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except DurationError:
            seconds = 0.0
        if not 0.1 <= seconds <= 10:
            self.fail(f"saw {value!r}, expected {_INTERVALS}", param, ctx)
        return seconds


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
@click.option("--interval", type=Interval(), default="1s", show_default=True, metavar="DURATION", help="How often GPUs are measured.")
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
def exporter(
    *,
    listen: tuple[str, int],
    interval: float,
    backend: str,
    simulated_gpus: int,
    kubelet_socket: Path,
    node_name: str,
    ask_api_server: bool,
) -> None:
    """Measure each GPU of this node and export the metrics with the pod that uses it, until stopped."""
    check_packages(backend)
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


async def _run(
    *, listen: tuple[str, int], interval: float, backend: str, devices: int, socket_path: Path, node: str, ask_api_server: bool
) -> int:
    # The gRPC library would write its own lines into the log whenever a kubelet restarts.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gpuscaler.exporter.answering import PageServer
    from gpuscaler.exporter.attribution.attributor import NodeAttributor, NodePaths
    from gpuscaler.exporter.service import Exporter
    from gpuscaler.exporter.supervising import sampler_command

    async with _cluster(node, enabled=ask_api_server) as cluster:
        exporter = Exporter(
            sampler_command(backend=backend, interval=interval, devices=devices),
            backend=backend,
            interval=interval,
            node=node,
            attributor=NodeAttributor(NodePaths.of_kubelet(socket_path), clock=time.monotonic, cluster=cluster),
            log=_log,
            clock=time.monotonic,
            wall=time.time,
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


@asynccontextmanager
async def _cluster(node: str, *, enabled: bool) -> "AsyncIterator[ClusterNames | None]":
    """Open a client of the API server with the pod's service account."""
    if not enabled:
        yield None
        return
    from gpuscaler.exporter.attribution.cluster import ClusterNames
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport

    async with HttpTransport(_access()) as transport:
        yield ClusterNames(Client(transport), node, clock=time.monotonic)


def _access() -> "Access":
    """Find the API server as kubectl does; unusable settings end the command with exit code 2."""
    from gpuscaler.kube.errors import AccessError
    from gpuscaler.kube.incluster import find_access

    try:
        return find_access(os.environ)
    except AccessError as error:
        message, _, advice = str(error).rpartition("; ")
        if "--kubeconfig" in advice:
            # This command has no such option.
            advice = "run in a pod with a service account, set KUBECONFIG, or omit --ask-api-server"
        click.echo(f"--ask-api-server: {message}; {advice}", err=True)
        sys.exit(2)


def _log(level: str, text: str) -> None:
    """Log a line of JSON in the controller's format (:mod:`gpuscaler.serving.logs`), without the 5 MB library that it needs."""
    import msgspec

    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    click.echo(msgspec.json.encode({"time": stamp, "level": level, "message": text}), err=True)
