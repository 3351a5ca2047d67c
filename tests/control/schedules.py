"""Random schedules of everything that can happen to a cluster and its controller, and the invariants that must hold at every moment."""

import asyncio
import zlib
from base64 import b64decode
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace
from tests import objects
from tests.control.leaving import CHEAP_RESTART, budget, run
from tests.control.violations import Violation
from tests.control.world import BEGAN, QUICK, CallObserver, World
from tests.objects import pod
from tests.planning import claims
from tests.shipped import SHIPPED
from tests.virtual_time import VirtualTimeLoop

from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, Notice, Order
from gpuscaler.control.loop.store import KEY
from gpuscaler.embedded.apiserver import faults
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.cluster import Conditions
from gpuscaler.kube.errors import AlreadyExists, Conflict, NotFound, ServerError, TooManyRequests, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS, DAEMON_SETS, NODES, PODS
from gpuscaler.kube.transport import Request
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.registration.unregistered import adopted_name
from gpuscaler.lifecycle.termination.eviction import LAST_SECONDS
from gpuscaler.model.instances import ALIVE
from gpuscaler.model.pools import BIND, NOMINATE
from gpuscaler.model.taints import WINDOW_EFFECT
from gpuscaler.model.well_known import ARRIVING_TAINT, CLOSING_TAINTS, EXCLUDE_LABEL, LEAVING_TAINT
from gpuscaler.model.wire import parse_timestamp
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import CLEARING, Removal
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Faults
from gpuscaler.simulation.cloud.machines import BOOTING
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import CallFaults, provider_id

T = TypeVar("T")
GPUS = 24
POOLS = f"""
region: us-east-1
limits: {{gpus: {GPUS}}}
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.12xlarge, g5.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a, us-east-1b]
    idle_after: 60s
    min_gpus_per_pod: 0
    max: 12
"""
PROTECTED = {"karpenter.sh/do-not-disrupt": "true"}
STRANGER = "stranger"
#: The beginning of the simulated cloud's reason for a machine that it launched by itself.
REPLACING = "replacing "


class InvariantChecker(CallObserver):
    """Checks the invariants for everything that leaves the controller's process."""

    def __init__(self, here: World) -> None:
        self._here = here
        #: The times since which the cloud and the API server cannot be reached.
        self.dark: float | None = None
        self.purchases = self.removals = 0
        #: The pods that were pending when each order was sent, by its token.
        self.waited: dict[str, frozenset[str]] = {}
        #: The times at which people deleted pods, by name.
        self.deleted: dict[str, float] = {}

    async def written(self) -> Memory:
        try:
            raw = await read_despite_faults(lambda: self._here.user.get(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system"))
        except NotFound:
            return Memory()
        body = msgspec.json.decode(raw)
        return msgspec.json.decode(zlib.decompress(b64decode(body["binaryData"][KEY])), type=Memory)

    async def buy(self, order: Order) -> None:
        ledger = (await self.written()).ledger
        saved = next((sent for sent in ledger.orders if sent.token == order.token), None)
        assert saved is not None, f"I2: order {order.token} was sent and is not saved"
        assert all(machine.purpose for machine in ledger.coming if machine.order == order.token), "I8: an order without a reason"
        assert saved.count == order.count, f"I2: order {order.token} was saved for {saved.count}, and sent for {order.count}"
        if order.token not in self.waited:
            self._nothing_is_bought_again(ledger)
            await self.no_more_than_needed(order, ledger)
        self.purchases += 1

    def _nothing_is_bought_again(self, saved_ledger: ledger.Ledger) -> None:
        """Check that the plan that buys has counted each listed machine that a pool launched by itself (I12)."""
        # Other recorders do not keep plans and lists.
        state, inventory = (getattr(self._here.notes, name, None) for name in ("state", "planned_list"))
        if state is None or inventory is None:
            return
        counted = {machine.id for machine in state.upcoming} | {adopted_name(machine.instance) for machine in saved_ledger.coming}
        listed = {instance.id for instance in inventory.instances if instance.state in ALIVE}
        awaited = {key for order in saved_ledger.orders if order.state != ledger.INTENDED for key in order.offerings}
        for machine in self._here.cluster.core.list():
            name, at = provider_id(machine), self._here.notes.planned_at
            # Without tokens it may be the machine of an order with a lost answer, and that order counts it.
            mine = not self._here.cluster.provider.keeps_tokens and machine.offering.key in awaited
            # The controller counts from the time of the list or of the nodes that it first saw the machine with, whichever is earlier.
            given_up = machine.bought_at + self._here.pace.register - QUICK.answer.high - self._here.watch_lag
            comes = machine.bought_at < at < min(machine.registered_at, given_up)
            if machine.purchase.startswith(REPLACING) and name in listed and comes and not mine:
                assert adopted_name(name) in counted, f"I12: {machine.id} was launched {machine.purchase}, and another one is bought"

    async def no_more_than_needed(self, order: Order, ledger: ledger.Ledger) -> None:
        """Check that machines that are not open yet, with those of ``order``, are at most one more than the pending pods.

        Pods that have to leave their machines count as pending, and so do pods for which machines are ordered. Machines for a gang may be
        planned again while half of them are starting.
        """
        pods, nodes = (
            [wire_pod for wire_pod in await read_despite_faults(self._here.pods) if is_unfinished(wire_pod)],
            await read_despite_faults(self._here.nodes),
        )
        leaving = {removal.node for removal in ledger.leaving}
        waiting = {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName", "") in {"", *leaving}}
        # The controller does not know yet of pods that have just gone.
        waiting |= {name for name, at in self.deleted.items() if self._here.now() < at + 1.0}
        if self._here.policy.steering == NOMINATE and any(pool.keeps_closed for pool in self._here.policy.pools):
            # A machine of a closed pool opens for the pods that are nominated for it, and kube-scheduler may place others there, too. Until
            # the controller knows, it buys the machines that these others should have.
            waiting |= {
                wire_pod["metadata"]["name"] for wire_pod in pods if scheduled_at(wire_pod) > self._here.now() - self._here.watch_lag - 1.0
            }
        self.waited[order.token] = frozenset(waiting)
        pool = next((pool for pool in self._here.policy.pools if pool.name == order.pool), None)
        if pool is None or any("gpuscaler.io/gang" in pod["metadata"].get("annotations", {}) for pod in pods):
            return
        shut = (node for node in nodes if any(taint["key"] == ARRIVING_TAINT for taint in node["spec"].get("taints") or ()))
        opened = {node["spec"].get("providerID", "") for node in nodes} - {node["spec"].get("providerID", "") for node in shut}
        # Machines that are being ended, such as one that was not ready in time, are replaced.
        opened |= {removal.instance for removal in ledger.leaving}
        there = [
            machine
            for machine in self._here.cluster.core.list()
            if machine.offering.pool == order.pool and provider_id(machine) not in opened
        ]
        coming = [machine for machine in there if machine.purchase in self.waited and machine.purchase != order.token]
        needed = waiting.union(*(self.waited[machine.purchase] for machine in coming))
        most = len(needed) + pool.min + pool.spare.machines + pool.spare.gpus + 1
        assert len(coming) + order.count <= most, (
            f"{[(machine.id, machine.purchase) for machine in coming]} are starting, {order.count} are ordered, {most} are needed"
        )

    async def remove(self, ids: Sequence[str]) -> None:
        saved_ledger = (await self.written()).ledger
        for instance in ids:
            removal = next(
                (removal for removal in saved_ledger.leaving if removal.instance == instance and removal.step == ledger.ENDING), None
            )
            assert removal is not None, f"I1: {instance} was ended, and no saved removal names it"
            assert removal.reason, "I8: a removal without a reason"
            dark = 0.0 if self.dark is None else self._here.now() - self.dark
            assert dark < 150.0 or removal.since < self._here.now() - dark + 150.0, f"I4: {instance} was ended {dark:.0f} s into an outage"
            await self.no_pod_is_on(instance, removal)
            self.removals += 1

    async def no_pod_is_on(self, instance: str, removal: ledger.Removal) -> None:
        """Check that a machine is empty when it is ended, except for pods that leave with it and pods that should have ended long ago."""
        node = next((machine.id for machine in self._here.cluster.core.list() if provider_id(machine) == instance), "")
        for wire_pod in await self._here.pods() if node and not removal.forced else ():
            owners = {owner["kind"] for owner in wire_pod["metadata"].get("ownerReferences") or ()}
            there = wire_pod["spec"].get("nodeName") == node and is_unfinished(wire_pod) and not owners & {"DaemonSet", "Node"}
            assert not there or "deletionTimestamp" in wire_pod["metadata"], (
                f"I4: {instance} was ended under pod {wire_pod['metadata']['name']}"
            )

    async def _has_room(self, name: str, node: str) -> None:
        """Check that a pod is bound only to a node with enough free GPUs."""
        seen = [wire_node for wire_node in await read_despite_faults(self._here.nodes) if wire_node["metadata"]["name"] == node]
        pods = [pod for pod in await read_despite_faults(self._here.pods) if is_unfinished(pod)]
        here = [pod for pod in pods if pod["spec"].get("nodeName") == node or pod["metadata"]["name"] == name]
        for wire_node in seen:
            shown = int(wire_node["status"].get("allocatable", {}).get("nvidia.com/gpu", 0))
            assert sum(map(gpus_of, here)) <= shown, f"{name} was bound to node {node}, which has no room for it"

    async def write(self, request: Request) -> None:
        path = request.path
        assert f"/nodes/{STRANGER}" not in path, "I7: a node outside the pools was written to"
        if request.method == "PATCH" and "/nodes/" in path:
            await self._only_our_cordons(path.rpartition("/")[2], msgspec.json.decode(request.body))
        if path.endswith("/binding"):
            await self._has_room(path.split("/")[-2], msgspec.json.decode(request.body)["target"]["name"])
        if path.endswith("/eviction"):
            options = msgspec.json.decode(request.body)["deleteOptions"]
            assert options["preconditions"]["uid"], "a pod of another life may be evicted"
            name = path.split("/")[-2]
            removal = await self.removal_of(name)
            if removal is not None and name.startswith("protected"):
                assert removal.forced, f"I6: pod {name} is protected and was evicted"
        elif request.method == "DELETE" and "/pods/" in path:
            removal = await self.removal_of(path.split("/")[-1])
            late = removal is None or (removal.forced and self._here.now() >= removal.ends - LAST_SECONDS - 1.0)
            assert late, f"I6: pod {path} was deleted, and its machine does not end yet"
        elif request.method == "DELETE" and "/nodes/" in path:
            steps = [removal.step for removal in (await self.written()).ledger.leaving if removal.node == path.split("/")[-1]]
            assert steps == [CLEARING], f"I7: node {path} was deleted, and no removal has reached that step: {steps}"

    async def _only_our_cordons(self, name: str, patch: dict[str, Any]) -> None:
        """Check that a patch cordons a node only beside gpuscaler's taint, and never changes a person's cordon."""
        node = next((wire_node for wire_node in await read_despite_faults(self._here.nodes) if wire_node["metadata"]["name"] == name), None)
        spec, version = patch.get("spec", {}), patch["metadata"].get("resourceVersion")
        if node is None or version != node["metadata"]["resourceVersion"]:
            return
        had, has = is_own_cordon(node["spec"].get("taints")), is_own_cordon(spec.get("taints", node["spec"].get("taints")))
        cordoned = bool(node["spec"].get("unschedulable"))
        if spec.get("unschedulable"):
            assert has, f"I7: node {name} was cordoned without gpuscaler's taint"
            assert had or not cordoned, f"I7: a person's cordon of node {name} became gpuscaler's"
        elif "unschedulable" in spec:
            assert had, f"I7: node {name} was uncordoned, and a person had cordoned it"
        else:
            assert had == has or not cordoned, f"I7: the owner of the cordon of node {name} was changed"

    async def removal_of(self, pod: str) -> Removal | None:
        """The saved removal of the node that a pod runs on; None if the pod is gone."""
        node = (await read_despite_faults(self._here.bound)).get(pod)
        if node is None:
            return None
        removals = [removal for removal in (await self.written()).ledger.leaving if removal.node == node]
        assert removals, f"I6: pod {pod} was evicted, and no removal of {node} is saved"
        return removals[0]


def is_own_cordon(taints: Sequence[dict[str, Any]] | None) -> bool:
    """Whether a cordon of a node with these taints is gpuscaler's."""
    return any(taint["key"] in CLOSING_TAINTS and taint["effect"] == WINDOW_EFFECT for taint in taints or ())


def gpus_of(wire_pod: dict[str, Any]) -> int:
    limits = (part.get("resources", {}).get("limits", {}) for part in wire_pod["spec"]["containers"])
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)


async def read_despite_faults(read: Callable[[], Awaitable[T]]) -> T:
    """Read until the API server answers: injected faults must not end the guard, as if the cloud had failed."""
    while True:
        try:
            return await read()
        except (ServerError, TooManyRequests, Unreachable):
            await asyncio.sleep(0.1)


def check_invariants(here: World, *, gpus: float) -> None:
    """Check the invariants of every moment: at most ``gpus`` GPUs (I5), nothing counted twice (I3), no room assigned twice (I11)."""
    assert not claims.BROKEN, claims.BROKEN[0]
    # A machine that a group launches as a replacement may be larger; the controller does not buy it.
    first = {machine.id: machine.offering.gpus for machine in here.cluster.core.history() if not machine.purchase.startswith(REPLACING)}
    for machine in here.cluster.core.history():
        first.setdefault(machine.id, first.get(machine.purchase.removeprefix(REPLACING), machine.offering.gpus))
    held = sum(min(first[machine.id], machine.offering.gpus) for machine in here.cluster.core.list())
    assert held <= gpus, f"I5: {held} GPUs, and the limit is {gpus:g}"
    assert not here.notes.cut, f"a plan was cut: {here.notes.cut[0]}"
    if here.controller is not None:
        check_counted_once(here.controller.memory.ledger)
        check_no_unexpected_error(here)


def check_no_unexpected_error(here: World) -> None:
    """Check that the controller had no unexpected error, except those made on purpose; it continues after any error."""
    failures = here.controller.failures if here.controller is not None else None
    assert failures is None or here.fails_on_purpose or not failures.count, f"an unexpected error: {failures.trouble}"


def check_counted_once(ledger: ledger.Ledger) -> None:
    named = [machine.instance for machine in ledger.coming if machine.instance]
    assert len(named) == len(set(named)), "I3: one machine is in the ledger twice"
    nodes = [machine.node for machine in ledger.coming if machine.node]
    assert len(nodes) == len(set(nodes)), "I3: one node is two machines of the ledger"


class Schedules(RuleBasedStateMachine):
    """Anything may happen at any time; afterwards everything recovers and comes to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        asyncio.set_event_loop(self.loop)
        self.here: World
        self.faults: Faults
        self.pods = self.sets = 0
        self.dead_since: float | None = None
        self.cut = False
        #: Nodes with stopped kubelets.
        self.stopped: list[str] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.loop.run_until_complete(work)
        except Violation as error:
            # Hypothesis prints the steps only for errors.
            raise AssertionError(str(error)) from error

    @initialize(
        seed=st.integers(0, 2**32),
        tokens=st.booleans(),
        stale=st.sampled_from((0.0, 0.0, 90.0)),
        lossy=st.booleans(),
        replaces=st.booleans(),
    )
    def begin(self, *, seed: int, tokens: bool, stale: float, lossy: bool, replaces: bool) -> None:
        """Set up the schedule. With ``replaces``, pools launch replacements for machines that are gone, as Auto Scaling groups do."""
        calls = CallFaults(throttled=0.05 * lossy, lost=0.1 * lossy, stale_seconds=stale, tokens=tokens)
        self.do(self._begin(seed, calls, replaces=replaces))

    async def _begin(self, seed: int, calls: CallFaults, *, replaces: bool) -> None:
        dice = Random(seed)
        # With its own random numbers, so that the rest of a schedule is not affected.
        closed = POOLS + "    closed: true\n"
        pools = Random(f"pools/{seed}").choice((POOLS, POOLS, closed))
        policy = replace(parse_policy(pools), steering=Random(f"steering/{seed}").choice((BIND, BIND, BIND, NOMINATE)))
        spot = [offering for pool in policy.pools for offering in pool.offerings if offering.market == "spot"]
        # Spot comes and goes; from minute 20 on it is available.
        capacity = {
            offering.key: Steps(
                (0.0, *sorted(dice.uniform(1, 1100) for _ in range(4)), 1200.0), (*(dice.choice((0.0, 1.0, 50.0)) for _ in range(5)), 50.0)
            )
            for offering in spot
        }
        self.faults = Faults(
            never_registers=0.03,
            partial_grants=0.2,
            gpu_hours_between_failures=0.0,
            reclaim=Delay(0.0, 10.0, 60.0),
            without_notice=0.3,
            group_replaces=replaces,
        )
        conditions = Conditions(
            seed=seed,
            delays=QUICK,
            calls=calls,
            faults=self.faults,
            markets=Markets(capacity, began=BEGAN),
            steered=Random(f"steered/{seed}").random() < 0.7,
        )
        claims.check_every_plan()
        lag = Random(f"lag/{seed}").choice((0.0, 0.0, 0.0, 2.0))
        self.here = World(policy, conditions=conditions, watch_lag=lag)
        self.guard = InvariantChecker(self.here)
        self.here.watchman = self.guard
        await self.here.user.create(NODES, objects.node(STRANGER, unschedulable=True))
        for shipped in SHIPPED if Random(f"daemons/{seed}").random() < 0.5 else ():
            # DaemonSets that gpuscaler's taint keeps off: machines have a window for them.
            if shipped.waits and not shipped.selector and not shipped.terms:
                with suppress(AlreadyExists):
                    await self.here.user.create(DAEMON_SETS, shipped.manifest(), namespace="kube-system")
        self.here.start()
        await self.here.sleep(2.0)

    # Actions of users

    @rule(gpus=st.sampled_from((0, 1, 1, 2, 4)), runs=st.sampled_from((20, 60, 300, None)), protected=st.booleans())
    def submit(self, gpus: int, runs: int | None, protected: bool) -> None:
        name = f"{'protected' if protected else 'pod'}-{self.pods}"
        self.pods += 1
        notes = {**({"gpuscaler.io/run-for": f"{runs}s"} if runs else {}), **(PROTECTED if protected else {})}
        self.do(self.here.user.create(PODS, pod(name, gpus, notes), namespace="default"))

    @precondition(lambda self: self.sets < 2)
    @rule(replicas=st.integers(1, 3), gpus=st.sampled_from((0, 1, 1)), spare=st.sampled_from((None, 0, 1)), grace=st.booleans())
    def serve(self, replicas: int, gpus: int, spare: int | None, grace: bool) -> None:
        """Create pods of a ReplicaSet, with a budget that allows ``spare`` evictions; they may ask for time to save their work."""
        name = f"set-{self.sets}"
        self.sets += 1
        notes = {**CHEAP_RESTART, **({"gpuscaler.io/grace": "40s"} if grace else {})}
        self.do(run(self.here, name, replicas, gpus=gpus, annotations=notes))
        if spare is not None:
            self.do(budget(self.here, name, maxUnavailable=spare))

    @precondition(lambda self: self.pods)
    @rule(which=st.integers(0, 99))
    def delete(self, which: int) -> None:
        self.do(self._delete(which))

    async def _delete(self, which: int) -> None:
        names = sorted(pod["metadata"]["name"] for pod in await self.here.pods())
        if names:
            name = names[which % len(names)]
            self.guard.deleted[name] = self.here.now()
            await self.here.user.delete(PODS, name, namespace="default")

    # Time and faults

    @rule(seconds=st.sampled_from((0.5, 3.0, 15.0, 40.0, 120.0)))
    def wait(self, seconds: float) -> None:
        self.do(self._sleep(seconds))

    async def _sleep(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            await asyncio.sleep(min(left, 10.0))
            left -= 10.0
            self.here.check()
            self.holds()

    @rule(steps=st.integers(1, 8), before=st.booleans(), pause=st.sampled_from((0.0, 4.0, 30.0)))
    def die(self, steps: int, before: bool, pause: float) -> None:
        self.do(self._die(steps, before, pause))

    async def _die(self, steps: int, before: bool, pause: float) -> None:
        self.here.deaths.at, self.here.deaths.before = self.here.deaths.steps + steps, before
        await self.here.until_dead(30.0)
        if not self.here.deaths.dead.is_set():
            await self.here.kill()
        await asyncio.sleep(pause)
        self.here.start()

    @rule(chance=st.sampled_from((0.1, 0.5)), what=st.sampled_from(("429", "500", "sever", "after", "late")))
    def spoil(self, chance: float, what: str) -> None:
        fault = {
            "429": faults.Fault(chance=chance, refusal=faults.throttled()),
            "500": faults.Fault(chance=chance, refusal=faults.broken()),
            "sever": faults.Fault(chance=chance, sever="before"),
            "after": faults.Fault(method="PUT", chance=chance, sever="after"),
            "late": faults.Fault(method="PATCH", path=r"/nodes/[^/]+\?", chance=chance, delay=3.0),
        }[what]
        self.here.cluster.api.faults.add(fault)
        self.do(self._sleep(10.0))
        self.here.cluster.api.faults.clear()

    @rule()
    def drop_watches(self) -> None:
        self.here.cluster.api.drop_watches()

    @rule()
    def forget_history(self) -> None:
        self.here.cluster.api.forget()
        self.here.cluster.api.drop_watches()

    @rule(seconds=st.sampled_from((5.0, 60.0, 240.0)))
    def darken(self, seconds: float) -> None:
        self.do(self._darken(seconds))

    async def _darken(self, seconds: float) -> None:
        self.here.cluster.provider.outage = "the cloud is down"
        self.guard.dark = self.here.now()
        await self._sleep(seconds)
        self.here.cluster.provider.outage = ""
        self.guard.dark = None

    @rule(seconds=st.sampled_from((5.0, 60.0, 240.0)))
    def cut_off(self, seconds: float) -> None:
        assert self.here.network is not None
        self.here.network.cut()
        self.do(self._sleep(seconds))
        self.here.network.mend()

    @rule(seconds=st.sampled_from((20.0, 200.0, 640.0)), overlapping=st.booleans())
    def refuse_evictions(self, seconds: float, overlapping: bool) -> None:
        """Refuse all evictions for a while."""
        cause = {"causes": [{"reason": "DisruptionBudget", "message": "the budget"}]}
        failure = Failure(429, "TooManyRequests", "Cannot evict pod.", details=cause, retry_after=10)
        several = Failure(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")
        self.here.cluster.api.faults.add(faults.Fault(path="/eviction", refusal=several if overlapping else failure))
        self.do(self._sleep(seconds))
        self.here.cluster.api.faults.clear()

    @rule(which=st.integers(0, 99), seconds=st.sampled_from((-5.0, 30.0, 120.0, 600.0)), kind=st.sampled_from((INTERRUPTION, MAINTENANCE)))
    def announce(self, which: int, seconds: float, kind: str) -> None:
        """Announce the end or the maintenance of a machine; the cloud repeats the notice at each request."""
        machines = self.here.cluster.core.list()
        if machines:
            instance = provider_id(machines[which % len(machines)])
            self.here.announced.append(Notice(kind, instance, self.here.now() + seconds))

    @rule(which=st.integers(0, 99), seconds=st.sampled_from((5.0, 45.0, 150.0, 400.0)), everywhere=st.booleans(), deleted=st.booleans())
    def restart_plugin(self, which: int, seconds: float, everywhere: bool, deleted: bool) -> None:
        """Stop the device plugin of a node, or of all, for a while; or delete its pod, which comes back when it may."""
        self.do(self._restart_plugin(which, seconds, everywhere=everywhere, deleted=deleted))

    async def _restart_plugin(self, which: int, seconds: float, *, everywhere: bool, deleted: bool) -> None:
        machines = self.here.cluster.core.list()
        names = {machine.id for machine in machines} if everywhere else {machines[which % len(machines)].id} if machines else set[str]()
        if not deleted:
            for name in names:
                self.here.cluster.machines.devices.restart(name, seconds=seconds)
            return
        for raw in await read_despite_faults(lambda: self.here.user.list_all(PODS, namespace="kube-system")):
            node = msgspec.json.decode(raw)
            if node["spec"].get("nodeName") in names:
                with suppress(NotFound):
                    await self.here.user.delete(PODS, node["metadata"]["name"], namespace="kube-system")

    @rule(which=st.integers(0, 99), seconds=st.sampled_from((1.0, 20.0, 90.0)))
    def cordon(self, which: int, seconds: float) -> None:
        """Cordon a node for a while, as a person does."""
        self.do(self._cordon(which, seconds))

    async def _cordon(self, which: int, seconds: float) -> None:
        nodes = [node for node in await read_despite_faults(self.here.nodes) if not node["spec"].get("unschedulable")]
        if not nodes:
            return
        node = nodes[which % len(nodes)]["metadata"]
        patch = {"metadata": {"resourceVersion": node["resourceVersion"]}, "spec": {"unschedulable": True}}
        with suppress(Conflict, NotFound):
            await self.here.user.merge_patch(NODES, node["name"], patch)
            await self._sleep(seconds)
            for wire_node in await read_despite_faults(self.here.nodes):
                if wire_node["metadata"]["uid"] == node["uid"]:
                    assert wire_node["spec"].get("unschedulable"), f"I7: the cordon of a person on node {node['name']} was removed"
                    await self.here.user.merge_patch(NODES, node["name"], {"spec": {"unschedulable": None}})

    # One silent node is ended every ten minutes, and only after 45: more than two would make the final rest long.
    @precondition(lambda self: len(self.stopped) < 2)
    @rule(which=st.integers(0, 99), back=st.sampled_from((None, 30.0, 200.0)))
    def stop_kubelet(self, which: int, back: float | None) -> None:
        """Stop the kubelet of a node, for good or for a while."""
        machines = self.here.cluster.core.list()
        names = [machine.id for machine in machines if machine.state != BOOTING]
        if names:
            name = names[which % len(names)]
            self.here.cluster.kubelets.stop(name)
            self.stopped.append(name)
            if back is not None:
                self.do(self._resume(name, back))

    async def _resume(self, name: str, after: float) -> None:
        await self._sleep(after)
        self.here.cluster.kubelets.resume(name)

    # Invariants

    def holds(self) -> None:
        check_invariants(self.here, gpus=GPUS)

    def teardown(self) -> None:
        try:
            if hasattr(self, "here"):
                self.do(self._rest())
        finally:
            if hasattr(self, "here"):
                self.do(self.here.close())
            self.loop.close()
            asyncio.set_event_loop(None)

    async def _rest(self) -> None:
        """Let everything recover; then each pod that can run does, and nothing is left in progress."""
        self.here.cluster.api.faults.clear()
        # Three machines in a row that never register pause their pool for a day.
        self.here.cluster.core.change_faults(replace(self.faults, never_registers=0.0))
        for _ in range(130):
            await self._sleep(30.0)
            if self.here.now() > BEGAN + 1300.0 and await self.at_rest():
                break
        assert await self.at_rest(), await self.unrest()
        alive = {provider_id(machine) for machine in self.here.cluster.core.list()}
        nodes = {node["spec"].get("providerID", "") for node in await self.here.nodes()}
        assert alive <= nodes, f"a machine was lost: {alive - nodes}"
        for node in await self.here.nodes():
            taints = [taint["key"] for taint in node["spec"].get("taints") or ()]
            assert node["metadata"]["name"] == STRANGER or not node["spec"].get("unschedulable"), "a cordon of gpuscaler was left behind"
            assert LEAVING_TAINT not in taints, f"node {node['metadata']['name']} was left closed"
            assert EXCLUDE_LABEL not in node["metadata"].get("labels", {}), (
                f"node {node['metadata']['name']} was left out of load balancers"
            )

    async def at_rest(self) -> bool:
        return not await self.unrest()

    async def unrest(self) -> list[str]:
        """Everything that is not at rest, in words."""
        assert self.here.controller is not None
        ledger = self.here.controller.memory.ledger
        unfinished = [f"{len(part)} {name}" for name in ("orders", "coming", "promises", "leaving") if (part := getattr(ledger, name))]
        pods = await self.here.pods()
        waiting = [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]
        # Pods that the limits leave no room for may stay pending forever.
        room = GPUS - sum(machine.offering.gpus for machine in self.here.cluster.core.list())
        if waiting and room >= 8:
            unfinished.append(f"pods {waiting} wait, with room for {room} GPUs")
        idle = {machine.id for machine in self.here.cluster.core.list()} - {
            pod["spec"].get("nodeName", "") for pod in pods if is_unfinished(pod)
        }
        if idle:
            unfinished.append(f"machines {sorted(idle)} are idle")
        return unfinished


def scheduled_at(wire_pod: dict[str, Any]) -> float:
    """The time at which a pod got its node, in seconds since the epoch; 0 if it has none."""
    conditions = wire_pod["status"].get("conditions") or ()
    times = (one["lastTransitionTime"] for one in conditions if (one["type"], one["status"]) == ("PodScheduled", "True"))
    return max((parse_timestamp(text, "lastTransitionTime") for text in times), default=0.0)


def is_unfinished(wire_pod: dict[str, Any]) -> bool:
    return wire_pod["status"].get("phase") not in {"Succeeded", "Failed"}
