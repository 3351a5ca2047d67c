"""Azure, against an account of our own: failover, evictions, scale sets that others write too, reading 200 pools, what a process costs.

Reading is over HTTP, from an endpoint that takes 100 ms per answer.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks import azure_failover, azure_notices, azure_schedules
from benchmarks.azure_server import cluster_name
from benchmarks.figures import Figure
from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.azure.discovery.accounts import Account
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.clouds.azure.prices.source import PriceSource
from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.embedded.azure import SUBSCRIPTION

POOLS, ANSWER_SECONDS, LOCATIONS = 200, 0.1, ("eastus", "westeurope")
#: Limits of a refresh: seconds, and seconds of processor time.
MAX_SECONDS, MAX_CORE_SECONDS = 5.0, 1.0
RUNS = 3
#: How much more than the simulated cloud Azure may cost a process: MiB and seconds.
MAX_MIB, MAX_START_SECONDS = 10.0, 0.2
#: Processes of each cloud that are started.
STARTS = 5
_MEASURE = """
import importlib, sys, time
began = time.perf_counter()
import gpuscaler.cli.run, gpuscaler.control.process.running, gpuscaler.control.records.service, gpuscaler.kube.http
for name in sys.argv[1:]:
    importlib.import_module(name)
seconds = time.perf_counter() - began
with open("/proc/self/status") as status:
    print(seconds, next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024)
"""


def figures() -> Iterator[Figure]:
    yield from azure_failover.figures()
    yield from azure_notices.figures()
    yield from read_figures()
    yield process_figure()
    yield from azure_schedules.figures()


def read_figures() -> Iterator[Figure]:
    with run_account() as url:
        runs, pools, reads = asyncio.run(measure_reads(url))
    (cold, cold_core), warm = runs[0], runs[1:]
    seconds, core = (median(run[column] for run in warm) for column in (0, 1))
    yield Figure(
        what=f"{POOLS} pools in {len(LOCATIONS)} locations, read again ({ANSWER_SECONDS * 1000:.0f} ms an answer)",
        peers="",
        reach=f"≤ {MAX_SECONDS:g} s, ≤ {MAX_CORE_SECONDS:g} core-second, under the read limits",
        measured=f"{seconds:.1f} s, {core:.2f} core-seconds, {reads} reads; first {cold:.1f} s, {cold_core:.2f} core-s; {pools} pools",
        reached=max(seconds, cold) <= MAX_SECONDS and core <= MAX_CORE_SECONDS and pools == POOLS,
        values={"seconds": seconds, "core_seconds": core, "cold_seconds": cold, "reads": reads, "pools": pools},
    )


async def measure_reads(url: str) -> tuple[list[tuple[float, float]], int, int]:
    """((seconds, processor seconds) of each refresh: pools and machines, the number of pools, reads of the last refresh)."""
    http = Http({})
    arm = Arm(FixedToken("bench"), fence=lambda _seconds: None, now=time.time, sleep=asyncio.sleep, endpoint_url=url, http=http)
    places = tuple(Account(SUBSCRIPTION, cluster_name(location), f"rg-{location}") for location in LOCATIONS)
    provider = AzureProvider(
        arm, Discovery(arm, places, now=time.time, prices=PriceSource(http, now=time.time, endpoint_url=url)), now=time.time
    )
    requests = 0
    answer = http.request

    async def counted(*arguments: object, **options: object) -> object:
        nonlocal requests
        requests += 1
        return await answer(*arguments, **options)  # type: ignore[arg-type]

    http.request = counted  # type: ignore[method-assign, assignment]
    runs = []
    try:
        for _ in range(RUNS + 1):
            began, core, requests = time.perf_counter(), time.process_time(), 0
            report = await provider.read_account()
            await provider.inventory()
            runs.append((time.perf_counter() - began, time.process_time() - core))
    finally:
        await provider.close()
    return runs, len(report.pools), requests


def process_figure() -> Figure:
    measured = {
        cloud: [_measure_process(module) for _ in range(STARTS)]
        for cloud, module in (("simulated", "gpuscaler.embedded.nodes.providers"), ("azure", "gpuscaler.control.process.azure"))
    }
    (seconds, mib), (other_seconds, other_mib) = (
        (median(run[0] for run in measured[cloud]), median(run[1] for run in measured[cloud])) for cloud in ("azure", "simulated")
    )
    return Figure(
        what="memory and start of gpuscaler run with cloud: azure, against cloud: simulated",
        peers="Azure's SDK: 49 MB, 2 s",
        reach=f"≤ {MAX_MIB:g} MiB and ≤ {MAX_START_SECONDS:g} s more",
        measured=f"{mib - other_mib:+.1f} MiB, {seconds - other_seconds:+.2f} s ({mib:.0f} MiB, {seconds:.2f} s)",
        reached=mib - other_mib <= MAX_MIB and seconds - other_seconds <= MAX_START_SECONDS,
        values={"mib": mib, "seconds": seconds, "simulated_mib": other_mib, "simulated_seconds": other_seconds},
    )


def _measure_process(module: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", _MEASURE, module], capture_output=True, text=True, check=True)
    seconds, mib = map(float, done.stdout.split())
    return seconds, mib


@contextmanager
def run_account() -> Iterator[str]:
    """The URL of an endpoint with the pools."""
    command = [sys.executable, "-m", "benchmarks.azure_server", str(POOLS), str(ANSWER_SECONDS), *LOCATIONS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
