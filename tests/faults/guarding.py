"""Invariants, checked from outside while something breaks: on all that leaves the controller's process, and on its effects."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import msgspec
from tests.control.schedules import STRANGER, InvariantChecker, check_counted_once, check_no_unexpected_error
from tests.control.world import World
from tests.objects import node, pod
from tests.planning import claims

from gpuscaler.clouds.protocol import Order
from gpuscaler.kube.resources import NODES
from gpuscaler.kube.transport import Request
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.machines import CloudMachine

#: Far above what most cases need, and far below what a bug would buy: limits are kept, and checked, in every case (I5).
LIMITS = "limits: {gpus: 32, machines: 24, machines_per_minute: 20, dollars_per_hour: 40}\n"
MINUTE = 60.0
#: Namespace of other people's pods.
THEIRS = "theirs"
IDLE_STRANGER, BUSY_STRANGER = f"{STRANGER}-idle", f"{STRANGER}-busy"
#: Prefix of the taints that gpuscaler may write.
OURS = "gpuscaler.io/"


class Watch(InvariantChecker):
    """Checks the invariants, and records with its time what was sent: writes to the API server, orders and ends of machines.

    ``policy`` returns the controller's current policy. Violations are kept, in case the sender catches the error.
    """

    def __init__(self, here: World, policy: Callable[[], Policy] | None = None) -> None:
        super().__init__(here)
        claims.check_every_plan()
        self.writes: list[tuple[float, Request]] = []
        self.ended: list[str] = []
        self.broken: list[AssertionError] = []
        self._policy = policy or partial(_policy_of, here)
        #: The time of each order's first request, its number of machines, and the policy at that time.
        self._sent: dict[str, tuple[float, int, Policy]] = {}
        self._judged: set[str] = set()

    # Requests that leave the process

    async def write(self, request: Request) -> None:
        with self._noted():
            await super().write(request)
            assert f"/namespaces/{THEIRS}/" not in request.path, f"I7: {request.path} is not ours and was written to"
            if request.method == "PATCH" and "/nodes/" in request.path:
                await self._only_our_taints(request)
        self.writes.append((self._here.now(), request))

    async def buy(self, order: Order) -> None:
        with self._noted():
            await super().buy(order)
            policy, now = self._policy(), self._here.now()
            # An order that is sent again under its token is the same purchase (I2).
            self._sent.setdefault(order.token, (now, order.count, policy))
            lately = sum(count for at, count, _ in self._sent.values() if at > now - MINUTE)
            most = policy.limits.machines_per_minute
            assert most is None or lately <= most, f"I5: {lately} machines were ordered within a minute, and the limit is {most}"

    async def remove(self, ids: Sequence[str]) -> None:
        with self._noted():
            await super().remove(ids)
            assert not [name for name in ids if STRANGER in name], f"I7: {ids} were ended, and one is not ours"
        self.ended += ids

    async def _only_our_taints(self, request: Request) -> None:
        """Check that a patch leaves foreign taints unchanged, if the API server accepts it because its base is still current."""
        patch = msgspec.json.decode(request.body)
        name = request.path.rpartition("/")[2]
        node = next((node for node in await self._here.nodes() if node["metadata"]["name"] == name), None)
        if node is None or "taints" not in patch.get("spec", {}):
            return
        if patch["metadata"]["resourceVersion"] == node["metadata"]["resourceVersion"]:
            before, after = foreign(node["spec"].get("taints")), foreign(patch["spec"]["taints"])
            assert before == after, f"I7: foreign taints of node {name} became {after}, and were {before}"

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            self.broken.append(error)
            raise

    def to(self, part: str, method: str = "") -> list[tuple[float, Request]]:
        """Return the writes whose path has ``part``, oldest first, except writes to pods of device plugins."""
        writes = [(at, request) for at, request in self.writes if "/namespaces/kube-system/pods/" not in request.path]
        return [(at, request) for at, request in writes if part in request.path and method in ("", request.method)]

    # Effects

    async def check(self) -> None:
        """Raise for violations: limits (I5), counts of the ledger (I3), room that a plan gave twice (I11), or any forbidden request."""
        for error in self.broken:
            raise error
        check_no_unexpected_error(self._here)
        # When everything is recorded, a service takes the place of the notes.
        cut = getattr(self._here.notes, "cut", [])
        assert not cut, f"a plan was cut: {cut[0]}"
        assert not claims.BROKEN, claims.BROKEN[0]
        history = self._here.cluster.core.history()
        for machine in history:
            if machine.purchase in self._sent and machine.id not in self._judged:
                self._judged.add(machine.id)
                there = [other for other in history if other.bought_at <= machine.bought_at < ended(other)]
                surplus = excess(self._sent[machine.purchase][2], there)
                assert not surplus, f"I5: with machine {machine.id} there were {surplus}"
        controller = self._here.controller
        check_counted_once((await self.written() if controller is None else controller.memory).ledger)


def _policy_of(here: World) -> Policy:
    return here.controller._policy if here.controller is not None else here.policy


def ended(machine: CloudMachine) -> float:
    return math.inf if machine.ended_at is None else machine.ended_at


def excess(policy: Policy, machines: Sequence[CloudMachine]) -> str:
    """Describe by how much ``machines`` exceed the limits of ``policy``; machines of other pools do not count."""
    pools = {pool.name: pool.max for pool in policy.pools}
    ours = [machine for machine in machines if machine.offering.pool in pools]
    limits = policy.limits
    counts: list[tuple[str, float, float | None]] = [
        ("GPUs", sum(machine.offering.gpus for machine in ours), limits.gpus),
        ("machines", len(ours), limits.machines),
        ("dollars per hour", math.fsum(machine.offering.price for machine in ours) - 1e-9, limits.dollars_per_hour),
        *((f"machines of pool {name}", sum(machine.offering.pool == name for machine in ours), most) for name, most in pools.items()),
    ]
    return "; ".join(f"{many:g} {what}, and the limit is {most:g}" for what, many, most in counts if most is not None and many > most)


def foreign(taints: list[dict[str, Any]] | None) -> list[tuple[str, str, str]]:
    """Return key, value and effect of the taints that gpuscaler may not write."""
    return sorted((taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints or () if not taint["key"].startswith(OURS))


# Foreign objects


def strangers() -> list[dict[str, Any]]:
    """Two foreign nodes with GPUs in the same cluster, one always idle and one in use, and the pod on it."""
    objects = []
    for name in (IDLE_STRANGER, BUSY_STRANGER):
        labels = {"node.kubernetes.io/instance-type": "p3.2xlarge"}
        theirs = [{"key": "example.com/theirs", "effect": "NoSchedule"}]
        objects.append(node(name, 1, labels=labels, memory="60Gi", providerID=f"simulated:///us-east-1a/{name}", taints=theirs))
    return [*objects, pod(f"{STRANGER}-pod", metadata={"namespace": THEIRS}, status={"phase": "Running"}, nodeName=BUSY_STRANGER)]


def settle(here: World) -> None:
    """Add the foreign objects to the world, and hide them from its helpers, which show only the objects of the case."""
    here.cluster.api.load(strangers())
    here.nodes = partial(_without_strangers, here.nodes)  # type: ignore[method-assign]
    here.pods = partial(_without_strangers, here.pods)  # type: ignore[method-assign]


async def _without_strangers(read: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    return [entry for entry in await read() if not entry["metadata"]["name"].startswith(STRANGER)]


async def untouched(here: World) -> None:
    """Check that the foreign objects are unchanged (I7)."""
    for stranger in strangers()[:2]:
        node = msgspec.json.decode(await here.user.get(NODES, stranger["metadata"]["name"]))
        assert node["spec"] == stranger["spec"], f"I7: a foreign node became {node['spec']}"
        assert node["metadata"]["labels"] == stranger["metadata"]["labels"], f"I7: a foreign node became {node['metadata']}"
        assert not node["metadata"].get("annotations"), f"I7: a foreign node became {node['metadata']}"


@asynccontextmanager
async def guarded(here: World, watch: Watch) -> AsyncIterator[Watch]:
    """Let ``watch`` see all requests, add foreign objects, and check the invariants all the time and once more at the end."""
    settle(here)
    here.watchman = watch
    here.support(_observe(watch))
    yield watch
    here.check()
    await watch.check()
    await untouched(here)


async def _observe(watch: Watch) -> None:
    while True:
        await watch.check()
        await asyncio.sleep(2.0)
