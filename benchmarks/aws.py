"""AWS, against an endpoint of our own: reading 500 groups in four regions, failover, notices, groups that others change too.

Reading is over HTTP, from an endpoint that takes 100 ms per answer.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from benchmarks import aws_failover, aws_markets, aws_notices, aws_schedules
from benchmarks.figures import Figure
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import Scope

GROUPS, ANSWER_SECONDS = 500, 0.1
REGIONS = ("us-east-1", "us-east-2", "us-west-2", "eu-west-1")
#: Limits of a read in seconds: in a new process, and repeated; and of its processor time when repeated.
MAX_COLD_SECONDS, MAX_WARM_SECONDS, MAX_CORE_SECONDS = 15.0, 5.0, 1.0
RUNS = 3


def figures() -> Iterator[Figure]:
    yield from aws_failover.figures()
    yield from aws_markets.figures()
    yield from aws_notices.figures()
    yield from aws_schedules.figures()
    yield from read_figures()


def read_figures() -> Iterator[Figure]:
    with run_account() as url:
        keys = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}
        calls = Calls(sleep=time.sleep, random=Random(0), endpoint_url=url, credentials=keys)
        discovery = Discovery(calls, Scope("bench"), regions=REGIONS, now=time.time)
        cold, cold_core, pools = measure_read(discovery)
        runs = [measure_read(discovery) for _ in range(RUNS)]
        discovery.close()
    warm, core = (sorted(run[column] for run in runs)[RUNS // 2] for column in (0, 1))
    yield Figure(
        what=f"{GROUPS} groups in {len(REGIONS)} regions, first read ({ANSWER_SECONDS * 1000:.0f} ms an answer)",
        peers="",
        reach=f"≤ {MAX_COLD_SECONDS:g} s",
        measured=f"{cold:.1f} s, {cold_core:.1f} core-seconds; {pools} pools",
        reached=cold <= MAX_COLD_SECONDS and pools == GROUPS,
        values={"seconds": cold, "core_seconds": cold_core, "pools": pools},
    )
    yield Figure(
        what=f"{GROUPS} groups in {len(REGIONS)} regions, read again",
        peers="",
        reach=f"≤ {MAX_WARM_SECONDS:g} s, ≤ {MAX_CORE_SECONDS:g} core-second",
        measured=f"{warm:.1f} s, {core:.2f} core-seconds",
        reached=warm <= MAX_WARM_SECONDS and core <= MAX_CORE_SECONDS,
        values={"seconds": warm, "core_seconds": core},
    )


def measure_read(discovery: Discovery) -> tuple[float, float, int]:
    """(seconds, processor seconds of all threads, pools) of one read."""
    began, core = time.perf_counter(), time.process_time()
    discovered = discovery.discover()
    return time.perf_counter() - began, time.process_time() - core, len(discovered.pools)


@contextmanager
def run_account() -> Iterator[str]:
    """The URL of an endpoint with the groups."""
    command = [sys.executable, "-m", "benchmarks.aws_server", str(GROUPS), str(ANSWER_SECONDS), *REGIONS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
