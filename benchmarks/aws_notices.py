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

from benchmarks.aws_world import BOOT, REGION, AwsWorld, aws_world
from benchmarks.figures import Figure
from benchmarks.live_scenes import in_virtual_time
from gpuscaler.clouds.aws.machines.inbox import MessageCounts
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.ec2.instances import private_name
from gpuscaler.embedded.aws.serving.faults import Fault

MESSAGES, MALFORMED, FOREIGN = 10_000, 100, 500
#: Number of reclaimed machines, of machines without notices, and of messages for each of the first.
WARNED, QUIET, EACH = 470, 30, 20
#: The period in which they come, the duration of an answer of AWS, and the target from receipt to taint, in seconds.
SPREAD, ANSWER_SECONDS, REACH = 20.0, 0.1, 5.0
SEED = 1
ODD = ("", "{", "[1, 2]", '"text"', '{"detail-type": "EC2 Spot Instance Interruption Warning", "detail": {}}', '{"detail-type": 7}')


class NoticeResults(Struct, frozen=True):
    """The result of the messages; ``waits`` are the seconds from receipt to taint, one per machine."""

    waits: list[float]
    twice: int
    wrong: int
    ended: int
    messages: int
    malformed: int
    left: int


def figures() -> Iterator[Figure]:
    results = in_virtual_time(_scene)
    p99 = sorted(results.waits)[int(0.99 * len(results.waits))] if results.waits else float("inf")
    worst = max(results.waits, default=float("inf"))
    right = len(results.waits) == WARNED and (results.twice, results.wrong, results.left) == (0, 0, 0)
    counted = results.messages == MESSAGES and results.malformed == MALFORMED
    yield Figure(
        f"SQS: {MESSAGES:,} notices about {WARNED} machines in {SPREAD:g} s, {MALFORMED / MESSAGES:.0%} malformed, "
        f"{FOREIGN / MESSAGES:.0%} foreign, out of order, duplicated",
        "",
        f"each handled once, ≤ {REACH:g} s from receipt to taint",
        f"{len(results.waits)} of {WARNED} machines tainted, {results.twice} twice, {results.wrong} wrongly; "
        f"receipt to taint p99 {p99:.1f} s, at most {worst:.1f} s; {results.malformed} malformed counted, {results.left} messages left",
        right and counted and worst <= REACH,
        {"tainted": len(results.waits), "twice": results.twice, "wrong": results.wrong, "p99": p99, "worst": worst, "ended": results.ended},
    )


async def _scene() -> NoticeResults:
    async with aws_world(Conditions(boot=BOOT)) as here:
        here.group("spot", "g5.xlarge", f"{REGION}a", "spot", most=2000)
        here.group("on-demand", "g5.xlarge", f"{REGION}b", "on-demand", most=2000)
        here.client("autoscaling").set_desired_capacity(AutoScalingGroupName="spot", DesiredCapacity=WARNED + QUIET)
        await here.start(queue_url=here.queue())
        await here.sleep(180.0)
        await here.submit(f"pod{number}" for number in range(WARNED + QUIET))
        here.endpoint.faults.all.append(Fault(delay=ANSWER_SECONDS))
        await here.sleep(120.0)
        machines = list(here.account.region(REGION).instances.values())
        assert await here.bound() == len(machines) == WARNED + QUIET, f"saw {await here.bound()} pods bound on {len(machines)} machines"
        warned = [instance.id for instance in machines[:WARNED]]
        queue = here.account.region(REGION).queues["events"]
        queue.messages.clear()
        queue.receives_notices = False
        assert here.provider.inbox is not None
        here.provider.inbox.counts = MessageCounts()
        await _send(here, warned)
        await here.sleep(180.0)
        names = {instance.id: private_name(instance.machine) for instance in machines}
        return _results(here, {ident: names[ident] for ident in warned}, left=len(queue.messages))


async def _send(here: AwsWorld, machines: list[str]) -> None:
    luck = Random(SEED)
    region = here.account.region(REGION)
    planned = [(luck.uniform(0, SPREAD), luck.choice(ODD)) for _ in range(MALFORMED)]
    planned += [(luck.uniform(0, SPREAD), _body(here, luck, f"i-{0xF0000000 + number:017x}")) for number in range(FOREIGN)]
    for ident in machines:
        planned += [(luck.uniform(0, SPREAD), _body(here, luck, ident)) for _ in range(EACH - 1)]
        planned.append((luck.uniform(0, SPREAD), _event(here, "EC2 Spot Instance Interruption Warning", ident)))
    began = here.now()
    for at, body in sorted(planned):
        await here.sleep(max(0.0, began + at - here.now()))
        region.queues["events"].send(body, ident=region.uuid(), now=here.now())


def _body(here: AwsWorld, luck: Random, ident: str) -> str:
    kind = luck.choice(("EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"))
    return _event(here, kind, ident)


def _event(here: AwsWorld, kind: str, ident: str) -> str:
    moment = datetime.fromtimestamp(here.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"detail-type": kind, "time": moment, "detail": {"instance-id": ident, "instance-action": "terminate"}})


def _results(here: AwsWorld, nodes: dict[str, str], *, left: int) -> NoticeResults:
    received: dict[str, float] = {}
    for at, body in here.endpoint.received:
        if "Interruption Warning" in body and (ident := _instance(body)) in nodes:
            received.setdefault(nodes[ident], at)
    taints: dict[str, list[float]] = {}
    for at, method, path, written in here.network.log:
        if method == "PATCH" and path.startswith("/api/v1/nodes/") and b"gpuscaler.io/leaving" in written:
            taints.setdefault(path.rpartition("/")[2], []).append(at)
    inbox = here.provider.inbox
    assert inbox is not None
    return NoticeResults(
        waits=[taints[node][0] - at for node, at in received.items() if node in taints],
        twice=sum(len(times) > 1 for times in taints.values()),
        wrong=len(taints.keys() - received.keys()),
        ended=here.endpoint.calls.get(("autoscaling", "TerminateInstanceInAutoScalingGroup", ""), 0),
        messages=inbox.counts.messages,
        malformed=inbox.counts.malformed,
        left=left,
    )


def _instance(body: str) -> str:
    event: dict[str, Any] = json.loads(body) if body.startswith('{"detail-type": "EC2') and '"instance-id"' in body else {}
    return str((event.get("detail") or {}).get("instance-id", ""))
