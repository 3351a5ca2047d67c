"""The controller beside 5,000 nodes with 150,000 pods of 6 kB, which an API server in a separate process serves over TLS."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import REGION, Figure, types_of_families
from benchmarks.live_scenes import idle_nodes, late_gpus

NODES, PODS = 5_000, 150_000
#: Pod events per second during the measurement, and the idle time before it.
EVENTS_PER_SECOND, SETTLE_SECONDS = 200.0, 20.0
#: How long the steady state is observed, in seconds, and how many pods become unschedulable.
STEADY_SECONDS, UNSCHEDULABLE_PODS = 60.0, 100
SIZE = f"{NODES:,} nodes, {PODS:,} pods"


def figures() -> Iterator[Figure]:
    yield late_gpus()
    yield idle_nodes()
    values = measure_controller(NODES, PODS)
    ingest = values["ingest"]
    yield Figure(
        f"{SIZE} of {values['bytes'] / PODS / 1000:.1f} kB over TLS: ingest",
        "",
        "≤ 10 s, ≤ 500 MB, no stall over 50 ms",
        f"{describe_run(ingest)}, {values['megabytes']:.0f} MB",
        ingest["wall"] <= 10 and values["megabytes"] <= 500 and ingest["own_stall"] <= 0.05,
        ingest | {"megabytes": values["megabytes"]},
    )
    waits = values["waits"]
    yield Figure(
        f"{SIZE}, {EVENTS_PER_SECOND:g} pod events/s: from unschedulable to the order at the cloud",
        "",
        "p99 ≤ 1 s",
        f"p99 {quantile(waits, 0.99):.2f} s, p50 {quantile(waits, 0.5):.2f} s of {len(waits)} pods; {describe_run(values['demand'])}",
        len(waits) == UNSCHEDULABLE_PODS and quantile(waits, 0.99) <= 1,
        {"p99": quantile(waits, 0.99), "p50": quantile(waits, 0.5), "pods": len(waits)},
    )
    steady = values["steady"]
    share = steady["cpu"] / steady["wall"]
    yield Figure(
        f"{SIZE}, {EVENTS_PER_SECOND:g} pod events/s: steady state",
        "",
        "≤ 30 % of one core",
        f"{share:.1%}, {steady['plans']:.0f} plans in {steady['wall']:.0f} s, stalls up to {steady['own_stall'] * 1000:.0f} ms",
        share <= 0.3,
        steady | {"share": share},
    )


def describe_run(measurements: dict[str, float]) -> str:
    return (
        f"{measurements['wall']:.1f} s ({measurements['cpu']:.1f} s of processor), stalls up to {measurements['own_stall'] * 1000:.0f} ms "
        f"({measurements['stall'] * 1000:.0f} ms including other programs)"
    )


def quantile(values: list[float], share: float) -> float:
    """The value that a ``share`` of all values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("inf")


@dataclass
class JsonProcess:
    """A process controlled by lines of JSON."""

    popen: subprocess.Popen[str]

    def read_line(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.popen.args!r}: saw end of output, expected a line")
        message: dict[str, Any] = json.loads(line)
        return message

    def write_line(self, **message: object) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(message) + "\n")
        self.popen.stdin.flush()

    def request(self, **message: object) -> dict[str, Any]:
        self.write_line(**message)
        return self.read_line()


@contextmanager
def run_process(module: str, *arguments: object) -> Iterator[JsonProcess]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        try:
            yield JsonProcess(popen)
        finally:
            popen.kill()


def measure_controller(nodes: int, pods: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, run_process("live_server", nodes, pods) as server:
        server_info = server.read_line()
        config, authority = Path(folder) / "run.yaml", Path(folder) / "ca.pem"
        config.write_text(settings_text())
        authority.write_text(server_info["authority"])
        with run_process("live_process", config, server_info["url"], authority, nodes) as controller:
            values = {"bytes": server_info["bytes"], "ingest": controller.read_line(), "planned": controller.read_line()}
            server.write_line(churn=EVENTS_PER_SECOND)
            time.sleep(SETTLE_SECONDS)
            values["settled"] = controller.request(mark="settled")
            time.sleep(STEADY_SECONDS)
            values["steady"] = controller.request(mark="steady")
            values["steady"]["plans"] -= values["settled"]["plans"]
            demanded = server.request(demand=UNSCHEDULABLE_PODS)["demanded"]
            time.sleep(3)
            values["demand"] = controller.request(mark="demand")
            assert controller.popen.stdin is not None
            controller.popen.stdin.close()
            ordered_at = controller.read_line()["ordered_at"]
    values["megabytes"] = values["demand"]["megabytes"]
    values["waits"] = [ordered_at[pod] - at for pod, at in demanded.items() if ordered_at.get(pod)]
    return values


def settings_text() -> str:
    """Six pools that the nodes are members of, and one to buy from."""
    zones = ", ".join(f"us-east-1{letter}" for letter in "abc")
    node_pools = "".join(f"- {{name: pool-{number}, types: [p4d.24xlarge], zones: [{zones}]}}\n" for number in range(6))
    types = ", ".join(types_of_families("g5", "g6", "p4d"))
    settings = "cloud: simulated\nhttp: {enabled: false}\n"
    other = f"- {{name: other, types: [{types}], zones: [{zones}], markets: [spot, on-demand]}}\n"
    return f"region: {REGION}\n{settings}pools:\n{node_pools}{other}"


if __name__ == "__main__":
    print(json.dumps(measure_controller(*(int(argument) for argument in sys.argv[1:])), indent=1))
