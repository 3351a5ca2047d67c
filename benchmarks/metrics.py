"""The metrics API as started in production: its request rate, its load on Prometheus and the API server, its time to become ready.

``METRICS_SECONDS`` shortens the measurements over time.
"""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import trustme
from tests.metrics.building import pod
from tests.metrics.real_exporter import exporter

from benchmarks.figures import Figure
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.exporter.footprint import footprint
from gpuscaler.kube.client import Client
from gpuscaler.metrics.sources.direct import ExporterSource, ScrapeSettings
from gpuscaler.metrics.sources.evaluating import Timing
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.model.selector_text import parse_selector

RULES = """
rules:
- seriesQuery: '{__name__=~"^nvidia_gpu_.*",uuid!=""}'
  resources:
    overrides:
      node_name: {resource: node}
      pod_name: {resource: pod}
      namespace_name: {resource: namespace}
  name: {matches: ^nvidia_gpu_(.*)$, as: "${1}_current"}
  metricsQuery: <<.Series>>{<<.LabelMatchers>>}
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: bench
clusters: [{{name: bench, cluster: {{server: '{api}'}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: ''}}}}]
"""
METRICS = tuple(
    f"nvidia_gpu_{name}"
    for name in ("duty_cycle", "memory_used_bytes", "power_usage_milliwatts", "temperature_celsius", "fanspeed_percent")
)
FILES = {"ca": "ca.crt", "certificate": "proxy.crt", "key": "proxy.key"}
CONNECTIONS = 32
#: Seconds until the command counts as failed.
START_TIMEOUT = 60
APPS = 10


def figures() -> Iterator[Figure]:
    seconds = float(os.environ.get("METRICS_SECONDS", "20"))
    with run_metrics_api(namespaces=40, pods=50, metrics=METRICS) as here:
        paths = [metric_path(f"team-{space}", metric, "tier=serving") for space in range(40) for metric in METRICS]
        yield throughput(here, paths, seconds)
        yield slow_prometheus(here, paths, seconds)
    with run_metrics_api(namespaces=100, pods=100, metrics=METRICS[:2]) as here:
        yield cold_start(here)
        yield many_autoscalers(here, max(3 * seconds, 20))
    yield asyncio.run(value_age(seconds))
    with run_metrics_api(namespaces=1, pods=1500, metrics=METRICS[:1]) as here:
        yield many_pods(here)


def metric_path(namespace: str, metric: str, selector: str) -> str:
    name = metric.removeprefix("nvidia_gpu_") + "_current"
    escaped = selector.replace("=", "%3D")
    return f"/apis/custom.metrics.k8s.io/v1beta2/namespaces/{namespace}/pods/%2A/{name}?labelSelector={escaped}"


@dataclass
class RunningApi:
    """Running processes: the metrics API on ``port``, ready ``ready`` seconds after its start, and its world."""

    port: int
    process: subprocess.Popen[str]
    world: subprocess.Popen[str]
    folder: Path
    ready: float

    def send_load(self, paths: Sequence[str], *, connections: int, seconds: float) -> dict[str, Any]:
        files = {name: str(self.folder / file) for name, file in FILES.items()}
        job = {"port": self.port, **files, "connections": connections, "seconds": seconds, "paths": list(paths)}
        job_file = self.folder / "load.json"
        job_file.write_text(json.dumps(job))
        completed = subprocess.run(
            [sys.executable, "-m", "benchmarks.metrics_load", str(job_file)], stdout=subprocess.PIPE, text=True, check=True
        )
        result: dict[str, Any] = json.loads(completed.stdout)
        return result

    def command_world(self, **command: Any) -> dict[str, Any]:
        """The requests to the world since it was last reset."""
        assert self.world.stdin is not None
        assert self.world.stdout is not None
        self.world.stdin.write(json.dumps(command) + "\n")
        self.world.stdin.flush()
        reply: dict[str, Any] = json.loads(self.world.stdout.readline())
        return reply

    @property
    def resident_bytes(self) -> int:
        usage = footprint(self.process.pid)
        return usage.resident_bytes if usage else 0

    @property
    def cpu_seconds(self) -> float:
        usage = footprint(self.process.pid)
        return usage.cpu_seconds if usage else 0.0


@contextmanager
def run_metrics_api(*, namespaces: int, pods: int, metrics: Sequence[str]) -> Iterator[RunningApi]:
    """The command as started in production, with a front proxy's certificate for requests."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_certificates(folder)
        world_arguments = json.dumps(
            {"namespaces": namespaces, "pods": pods, "metrics": list(metrics), "ca": (folder / "ca.crt").read_text()}
        )
        with start_process("benchmarks.metrics_world", world_arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as world:
            assert world.stdout is not None
            urls = json.loads(world.stdout.readline())
            (folder / "kubeconfig").write_text(KUBECONFIG.format(api=urls["api"]))
            (folder / "rules.yaml").write_text(RULES)
            kubeconfigs = [f"--{name}-kubeconfig={folder / 'kubeconfig'}" for name in ("lister", "authentication", "authorization")]
            tls = [f"--tls-cert-file={folder / 'serving.crt'}", f"--tls-private-key-file={folder / 'serving.key'}"]
            options = [f"--config={folder / 'rules.yaml'}", f"--prometheus-url={urls['prometheus']}", *tls, *kubeconfigs]
            command = ("gpuscaler", "metrics", *options, "--secure-port=0", "--bind-address=127.0.0.1")
            began = time.perf_counter()
            with (folder / "log").open("w") as log, start_process(*command, stderr=log) as process:
                yield wait_until_ready(process, world, folder, began)


def wait_until_ready(process: subprocess.Popen[str], world: subprocess.Popen[str], folder: Path, began: float) -> RunningApi:
    """Wait until it reports ready."""
    here = RunningApi(0, process, world, folder, 0.0)
    while time.perf_counter() - began < START_TIMEOUT:
        text = (folder / "log").read_text()
        if not here.port and "serving on port" in text:
            here.port = int(text.split("serving on port ")[1].split()[0])
        if here.port and is_ready(here):
            here.ready = time.perf_counter() - began
            return here
        time.sleep(0.02)
    raise RuntimeError(f"saw no readiness within {START_TIMEOUT} s: {(folder / 'log').read_text()[-2000:]}")


@contextmanager
def start_process(*command: str, **pipes: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-m", *command], text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.terminate()


def write_certificates(folder: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.crt")
    for name in ("serving", "proxy"):
        certificate = ca.issue_cert("127.0.0.1", "metrics", common_name=name)
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.crt")


def is_ready(here: RunningApi) -> bool:
    """Whether it reports ready."""
    context = ssl.create_default_context(cafile=str(here.folder / "ca.crt"))
    with socket.create_connection(("127.0.0.1", here.port)) as raw, context.wrap_socket(raw, server_hostname="metrics") as sock:
        sock.sendall(b"GET /readyz HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n\r\n")
        return b" 200 " in sock.recv(4096).split(b"\r\n")[0]


def throughput(here: RunningApi, paths: Sequence[str], seconds: float) -> Figure:
    here.send_load(paths, connections=CONNECTIONS, seconds=2)
    before = here.cpu_seconds
    result = here.send_load(paths, connections=CONNECTIONS, seconds=seconds)
    share = (here.cpu_seconds - before) / seconds
    reached = not result["wrong"] and result["per_second"] >= 6000 and result["p99"] <= 0.015
    return Figure(
        f"metrics: requests over TLS, 50 pods an answer, {len(paths)} (metric, namespace) pairs, {CONNECTIONS} connections",
        "prometheus-adapter: 6/s as shipped, 199/s and p99 347 ms without its limits",
        "≥ 6,000/s, p99 ≤ 15 ms",
        f"{result['per_second']:,.0f}/s, p99 {result['p99'] * 1e3:.1f} ms, {share:.0%} of a core, {result['mean_bytes'] / 1e3:.1f} kB each"
        f"{', wrong: ' + str(result['wrong']) if result['wrong'] else ''}",
        reached,
        {"per_second": result["per_second"], "p99_seconds": result["p99"]},
    )


def slow_prometheus(here: RunningApi, paths: Sequence[str], seconds: float) -> Figure:
    """The same with Prometheus answering in two seconds."""
    here.command_world(delay=2.0)
    time.sleep(12)
    result = here.send_load(paths, connections=CONNECTIONS, seconds=seconds)
    here.command_world(delay=0.0)
    reached = not result["wrong"] and result["per_second"] >= 6000 and result["p99"] <= 0.015
    return Figure(
        "metrics: the same with Prometheus answering in 2 s",
        "",
        "no slower",
        f"{result['per_second']:,.0f}/s, p99 {result['p99'] * 1e3:.1f} ms",
        reached,
        {"per_second": result["per_second"], "p99_seconds": result["p99"]},
    )


def cold_start(here: RunningApi) -> Figure:
    return Figure(
        "metrics: cold start to ready with 10,000 pods", "", "≤ 10 s", f"{here.ready:.1f} s", here.ready <= 10, {"seconds": here.ready}
    )


def many_autoscalers(here: RunningApi, seconds: float) -> Figure:
    """A thousand autoscalers, each with two metrics and every 15 s: 133 requests a second."""
    paths = [
        metric_path(f"team-{space}", metric, f"app=app-{app}") for space in range(100) for app in range(APPS) for metric in METRICS[:2]
    ]
    # Requests come one after the other: as many as fall into a round of 15 s, at the autoscalers' rate at most.
    here.send_load(paths, connections=1, seconds=1)
    here.command_world(forget=True)
    began, wrong, requests = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        round_began = time.perf_counter()
        result = here.send_load(paths, connections=4, seconds=min(2.0, seconds))
        wrong, requests = wrong + sum(result["wrong"].values()), requests + result["requests"]
        time.sleep(max(0.0, 5 - (time.perf_counter() - round_began)))
    took = time.perf_counter() - began
    request_counts = here.command_world()["request_counts"]
    queries, lists = request_counts.get("/api/v1/query", 0) / took, request_counts.get("list", 0)
    reached = queries <= 0.5 and not lists and here.resident_bytes <= 300e6 and not wrong
    return Figure(
        f"metrics: 1,000 autoscalers of 10,000 pods in 100 namespaces, two metrics each, over {took:.0f} s",
        "prometheus-adapter: 133 queries/s and 133 LISTs/s",
        "≤ 0.5 queries/s, 0 LISTs, ≤ 300 MB RSS",
        f"{queries:.2f} queries/s, {lists} LISTs, {here.resident_bytes / 1e6:.0f} MB RSS ({requests:,} requests, {wrong} wrong)",
        reached,
        {"queries_per_second": queries, "lists": lists, "resident_bytes": here.resident_bytes},
    )


def many_pods(here: RunningApi) -> Figure:
    """An answer with all pods of one autoscaler, from queries that name none of them."""
    result = here.send_load([metric_path("team-0", METRICS[0], "tier=serving")], connections=1, seconds=2)
    longest = here.command_world()["longest_query"]
    values = result["values"]
    return Figure(
        "metrics: 1,500 pods under one autoscaler",
        "prometheus-adapter: a query of 25 kB, 414 or 422",
        "right answer",
        f"{result['mean_bytes'] / 1e3:.0f} kB, {values:,} values; longest query {longest} characters",
        not result["wrong"] and longest < 2000 and values == 1500,
        {"values": values, "longest_query": longest},
    )


async def value_age(seconds: float) -> Figure:
    """Age of an answer's value since the driver was read, at random moments: the real exporter, scraped by ourselves."""
    random = Random(1)
    with TemporaryDirectory() as name, exporter(Path(name)) as (target, _):
        source = exporter_source(int(target.rpartition(":")[2]))
        task = asyncio.create_task(source.run())
        ages: list[float] = []
        until = time.monotonic() + START_TIMEOUT
        while len(ages) < 10 * seconds and time.monotonic() < until + seconds:
            await asyncio.sleep(random.uniform(0.0, 0.2))
            if not any(metric_info.metric == "duty_cycle_current" for metric_info in source.custom_metrics()):
                continue
            value = await source.for_object(group_resource="pods", namespace="ml", name="training-0", metric="duty_cycle_current")
            ages.append(time.time() - value.timestamp)
        task.cancel()
        await asyncio.wait([task])
    ages.sort()
    p99 = ages[len(ages) * 99 // 100]
    return Figure(
        f"metrics: age of a value without Prometheus, {len(ages)} answers",
        "",
        "p99 ≤ 2.5 s",
        f"p99 {p99:.2f} s, {ages[len(ages) // 2]:.2f} s median",
        p99 <= 2.5,
        {"p99_seconds": p99},
    )


def exporter_source(port: int) -> ExporterSource:
    """A source that scrapes the single exporter on ``port``."""
    api = ApiServer(time.time)
    labels = {"app": "exporter"}
    exporter_pod, training_pod = pod("exporter", "gpus", **labels), pod("training-0")
    for manifest in (exporter_pod, training_pod):
        manifest["spec"]["nodeName"] = "n1"
    exporter_pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "e", "uid": "e", "controller": True}
    ]
    api.load([{**exporter_pod, "status": {"phase": "Running", "podIP": "127.0.0.1"}}, training_pod])
    return ExporterSource(
        Objects(Client(MemoryTransport(api)), clock=time.monotonic, random=Random(1)),
        scraping=ScrapeSettings(namespace="gpus", selector=parse_selector("app=exporter"), port=port),
        timing=Timing(),
        clock=time.monotonic,
        wall=time.time,
    )
