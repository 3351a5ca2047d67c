"""Notices from a queue, from receipt to taint: the real controller, AwsProvider and boto3 against our endpoint in virtual time.

Notices announce within seconds that a zone's machines, with a running pod each, will be reclaimed. Each comes in many messages of all kinds
in random order, together with foreign and malformed ones. The API client is rate-limited as in production.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from msgspec import Struct

from benchmarks.aws_world import REGION, AwsWorld, aws_world
from benchmarks.cloud_world import BOOT
from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time
from gpuscaler.clouds.aws.machines.inbox import MessageCounts
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.ec2.instances import private_name
from gpuscaler.embedded.aws.serving.faults import Fault

MESSAGES, MALFORMED, FOREIGN = 10_000, 100, 500
#: Number of reclaimed machines, of machines without notices, and of messages for each of the first.
RECLAIMED, UNAFFECTED, MESSAGES_PER_MACHINE = 470, 30, 20
#: The period in which they come, the duration of an answer of AWS, and the target from receipt to taint, in seconds.
SPREAD_SECONDS, ANSWER_SECONDS, TARGET_SECONDS = 20.0, 0.1, 5.0
SEED = 1
MALFORMED_BODIES = (
    "",
    "{",
    "[1, 2]",
    '"text"',
    '{"detail-type": "EC2 Spot Instance Interruption Warning", "detail": {}}',
    '{"detail-type": 7}',
)


class NoticeResults(Struct, frozen=True):
    """The result of the messages; ``waits`` are the seconds from receipt to taint, one per machine."""

    waits: list[float]
    tainted_twice: int
    tainted_wrongly: int
    ended: int
    messages: int
    malformed: int
    messages_left: int


def figures() -> Iterator[Figure]:
    results = run_in_virtual_time(_play_notices)
    p99 = sorted(results.waits)[int(0.99 * len(results.waits))] if results.waits else float("inf")
    worst = max(results.waits, default=float("inf"))
    correct = len(results.waits) == RECLAIMED and (results.tainted_twice, results.tainted_wrongly, results.messages_left) == (0, 0, 0)
    counted = results.messages == MESSAGES and results.malformed == MALFORMED
    yield Figure(
        f"SQS: {MESSAGES:,} notices about {RECLAIMED} machines in {SPREAD_SECONDS:g} s, {MALFORMED / MESSAGES:.0%} malformed, "
        f"{FOREIGN / MESSAGES:.0%} foreign, out of order, duplicated",
        "",
        f"each handled once, ≤ {TARGET_SECONDS:g} s from receipt to taint",
        f"{len(results.waits)} of {RECLAIMED} machines tainted, {results.tainted_twice} twice, {results.tainted_wrongly} wrongly; "
        f"receipt to taint p99 {p99:.1f} s, at most {worst:.1f} s; {results.malformed} malformed counted, "
        f"{results.messages_left} messages left",
        correct and counted and worst <= TARGET_SECONDS,
        {
            "tainted": len(results.waits),
            "twice": results.tainted_twice,
            "wrong": results.tainted_wrongly,
            "p99": p99,
            "worst": worst,
            "ended": results.ended,
        },
    )


async def _play_notices() -> NoticeResults:
    async with aws_world(Conditions(boot=BOOT)) as here:
        here.create_group("spot", "g5.xlarge", f"{REGION}a", "spot", max_size=2000)
        here.create_group("on-demand", "g5.xlarge", f"{REGION}b", "on-demand", max_size=2000)
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="spot", DesiredCapacity=RECLAIMED + UNAFFECTED)
        await here.start(queue_url=here.create_queue())
        await here.sleep(180.0)
        await here.submit(f"pod{number}" for number in range(RECLAIMED + UNAFFECTED))
        here.endpoint.faults.all.append(Fault(delay=ANSWER_SECONDS))
        await here.sleep(120.0)
        machines = list(here.account.region(REGION).instances.values())
        assert await here.count_bound() == len(machines) == RECLAIMED + UNAFFECTED, (
            f"saw {await here.count_bound()} pods bound on {len(machines)} machines"
        )
        reclaimed = [instance.id for instance in machines[:RECLAIMED]]
        queue = here.account.region(REGION).queues["events"]
        queue.messages.clear()
        queue.receives_notices = False
        assert here.provider.inbox is not None
        here.provider.inbox.counts = MessageCounts()
        await _send_messages(here, reclaimed)
        await here.sleep(180.0)
        names = {instance.id: private_name(instance.machine) for instance in machines}
        return _collect_results(here, {ident: names[ident] for ident in reclaimed}, messages_left=len(queue.messages))


async def _send_messages(here: AwsWorld, machines: list[str]) -> None:
    draw = Random(SEED)
    region = here.account.region(REGION)
    messages = [(draw.uniform(0, SPREAD_SECONDS), draw.choice(MALFORMED_BODIES)) for _ in range(MALFORMED)]
    messages += [
        (draw.uniform(0, SPREAD_SECONDS), _random_notice(here, draw, f"i-{0xF0000000 + number:017x}")) for number in range(FOREIGN)
    ]
    for ident in machines:
        messages += [(draw.uniform(0, SPREAD_SECONDS), _random_notice(here, draw, ident)) for _ in range(MESSAGES_PER_MACHINE - 1)]
        messages.append((draw.uniform(0, SPREAD_SECONDS), _notice(here, "EC2 Spot Instance Interruption Warning", ident)))
    began = here.now()
    for at, body in sorted(messages):
        await here.sleep(max(0.0, began + at - here.now()))
        region.queues["events"].send(body, ident=region.uuid(), now=here.now())


def _random_notice(here: AwsWorld, draw: Random, ident: str) -> str:
    detail_type = draw.choice(("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"))
    return _notice(here, detail_type, ident)


def _notice(here: AwsWorld, detail_type: str, ident: str) -> str:
    timestamp = datetime.fromtimestamp(here.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"detail-type": detail_type, "time": timestamp, "detail": {"instance-id": ident, "instance-action": "terminate"}})


def _collect_results(here: AwsWorld, nodes: dict[str, str], *, messages_left: int) -> NoticeResults:
    received: dict[str, float] = {}
    for at, body in here.endpoint.received:
        if "Interruption Warning" in body and (ident := _instance_id(body)) in nodes:
            received.setdefault(nodes[ident], at)
    taints: dict[str, list[float]] = {}
    for at, method, path, written in here.network.log:
        if method == "PATCH" and path.startswith("/api/v1/nodes/") and b"gpuscaler.io/leaving" in written:
            taints.setdefault(path.rpartition("/")[2], []).append(at)
    inbox = here.provider.inbox
    assert inbox is not None
    return NoticeResults(
        waits=[taints[node][0] - at for node, at in received.items() if node in taints],
        tainted_twice=sum(len(times) > 1 for times in taints.values()),
        tainted_wrongly=len(taints.keys() - received.keys()),
        ended=here.endpoint.calls.get(("autoscaling", "TerminateInstanceInAutoScalingGroup", ""), 0),
        messages=inbox.counts.messages,
        malformed=inbox.counts.malformed,
        messages_left=messages_left,
    )


def _instance_id(body: str) -> str:
    event: dict[str, Any] = json.loads(body) if body.startswith('{"detail-type": "EC2') and '"instance-id"' in body else {}
    return str((event.get("detail") or {}).get("instance-id", ""))
