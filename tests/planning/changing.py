"""A small world in which everything that planning reads changes step by step: nodes, pods, storage, budgets, state and time."""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from tests.planning.building import (
    ARCH,
    DAEMON,
    GI,
    HOST,
    JOB,
    NOW,
    REPLICAS,
    ZONE,
    affinity,
    near,
    node,
    offering,
    pod,
    pool,
    selector,
    spec,
    spread,
)

from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import NO_OWNER, HostPort, Pod, VolumeUse
from gpuscaler.model.pools import Budget, Limits, Policy, Spare
from gpuscaler.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.well_known import ARRIVING_TAINT, LEAVING_TAINT
from gpuscaler.model.workloads import Namespace, PodDisruptionBudget, Workload
from gpuscaler.planning.state import State, Upcoming

T = TypeVar("T")
TEAM = Taint("team", "ml")
OFFERINGS = (
    offering("g.1", 1.0, gpus=1, cpu=8),
    offering("g.1", 1.1, zone="z2", gpus=1, cpu=8),
    offering("g.4", 3.6, gpus=4, cpu=32, taints=(TEAM,)),
    offering("c.8", 0.4, gpus=0, cpu=8),
    offering("c.8", 0.4, zone="z2", gpus=0, cpu=8, pods=4),
    offering("c.8", 0.2, zone="z2", market="spot", gpus=0, cpu=8, labels={ARCH: "arm64"}),
)
POLICIES = (
    Policy((pool(*OFFERINGS),), work_budget=20_000),
    Policy((pool(*OFFERINGS, min=1, idle_after=0.0, spare=Spare(machines=1)),), preferences="respect", work_budget=20_000),
    Policy((pool(*OFFERINGS, min_gpus_per_pod=1),), work_budget=20_000),
    Policy((pool(*OFFERINGS, closed=True),), work_budget=20_000),
    Policy((pool(*OFFERINGS, budgets=(Budget("2"),), spare=Spare(gpus=1)),), Limits(machines=8, dollars_per_hour=9.0), work_budget=20_000),
)
NODES = tuple(f"n{number}" for number in range(6))
MACHINES = ("n-new", "m-1")
APPS = ("a", "b")
SPECS: tuple[dict[str, Any], ...] = (
    *({"cpu": cores} for cores in (0.5, 1, 1, 3, 6)),
    {"gpus": 1},
    {"gpus": 2, "tolerations": (Toleration("team", "Exists"),)},
    {"node_selector": ((ZONE, "z2"),)},
    {"node_affinity": affinity((ZONE, "In", "z1"))},
    {"host_ports": (HostPort(80),)},
    {"anti_affinity": (near(HOST, app="a"),)},
    {"affinity": (near(ZONE, app="b"),)},
    {"spread": (spread(ZONE, app="a"),)},
    {"spread": (spread(HOST, skew=2, app="b"),)},
    {"volumes": (VolumeUse("data"),)},
    {"volumes": (VolumeUse("rest"),)},
    {"local_storage": ("scratch",)},
    {"priority": -50},
)
OPTIONS: tuple[dict[str, Any], ...] = (
    *({},) * 6,
    {"do_not_disrupt": True},
    {"do_not_disrupt": 1.0},
    {"do_not_disrupt": 900.0},
    {"safe_to_evict": True},
    {"safe_to_evict": False},
    {"restart_cost": 600.0},
    {"market": ("on-demand",)},
    {"gang": "g", "gang_size": 2, "restart_cost": 60.0},
    {"scale_up_delay": 30.0},
)
OWNERS = (*(REPLICAS,) * 5, JOB, DAEMON, NO_OWNER)


def disk(zone: str) -> PersistentVolume:
    return PersistentVolume("disk", affinity((ZONE, "In", zone)), claim="default/data", phase="Bound")


CLAIM: dict[str, Any] = {"access_modes": ("ReadWriteOnce",), "request": GI}
STORAGE: tuple[Item, ...] = (
    disk("z1"),
    PersistentVolumeClaim("default", "data", volume="disk", bound=True, phase="Bound", **CLAIM),
    PersistentVolumeClaim("default", "rest", storage_class="wait", **CLAIM),
    StorageClass("wait", "csi", wait_for_first_consumer=True),
)


class World:
    """``cluster`` and ``state`` at ``now``; :meth:`step` changes a part of them, drawn from ``draw``.

    In some worlds odd objects are rare, so that many nodes can be removed; in others nearly every object is odd.
    """

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.unrest = draw.choice((0.1, 0.3, 1.0))
        self.now = NOW
        self.state = State()
        self.cluster = Cluster.of([*STORAGE, *(self._node(name) for name in NODES), *(self._pod(number) for number in range(24))])

    def step(self) -> None:
        """Add, change or delete some objects; sometimes time passes (or goes back), sometimes the state changes."""
        draw = self.draw
        self.now += draw.choice((0, 0, 0, 10, 40, 700, -40))
        upserts: list[Item] = []
        deletes: list[tuple[type, str]] = []
        for number in draw.sample(range(30), draw.choice((0, 1, 1, 2, 5))):
            if draw.random() < 0.2:
                deletes.append((Pod, f"default/p-{number}"))
            else:
                upserts.append(self._pod(number))
        for name in draw.sample((*NODES, *MACHINES), draw.choice((0, 0, 0, 1, 1, 3))):
            if draw.random() < 0.2:
                deletes.append((Node, name))
            else:
                upserts.append(self._node(name))
        if draw.random() < 0.4:
            upserts.append(self._other())
        if draw.random() < 0.1:
            kinds = ((PodDisruptionBudget, "default/pdb-a"), (Workload, "DaemonSet/system/agent"), (PersistentVolume, "disk"))
            deletes.append(draw.choice(kinds))
        self.cluster = self.cluster.apply(Delta(tuple(upserts), tuple(deletes)))
        if draw.random() < 0.4:
            self.state = self._state()

    def _odd(self, choices: Sequence[T]) -> T:
        """One of ``choices``; the first is the plain one."""
        return self.draw.choice(choices) if self.draw.random() < self.unrest else choices[0]

    def _node(self, name: str) -> Node:
        draw = self.draw
        of = draw.choice(OFFERINGS)
        odd: dict[str, Any] = self._odd(
            (
                *({},) * 6,
                {"ready": False},
                {"deleted": NOW},
                {"unschedulable": True},
                {"scale_down_disabled": True},
                {"do_not_disrupt": True},
                {"created": self.now},
                {"taints": (Taint(LEAVING_TAINT),)},
                {"taints": (Taint(ARRIVING_TAINT),)},
                {"taints": (TEAM,)},
                {"allocatable": {**of.allocatable, "cpu": 2000}},
                {"labels": {"gpuscaler.io/pool": "none"}},
            )
        )
        return node(name, of, **odd)

    def _pod(self, number: int) -> Pod:
        draw = self.draw
        where: dict[str, Any] = (
            {"on": draw.choice(NODES)} if draw.random() < 0.9 - 0.4 * self.unrest else {"nominated_node": self._odd(("",) * 9 + ("n1",))}
        )
        end: dict[str, Any] = self._odd((*({},) * 8, {"deleted": NOW - 20}, {"deleted": NOW - 100}, {"phase": "Succeeded"}))
        return pod(
            f"p-{number}",
            spec(**{"memory": 1, **self._odd(SPECS)}),
            labels={"app": draw.choice(APPS)},
            options=self._odd(OPTIONS),
            owner=self._odd(OWNERS),
            started=NOW - draw.choice((0, 100)),
            **where,
            **end,
        )

    def _other(self) -> Item:
        draw = self.draw
        agent = spec(cpu=draw.choice((0.5, 2)), tolerations=(Toleration(operator="Exists"),))
        items: tuple[Item, ...] = (
            PodDisruptionBudget("default", f"pdb-{draw.choice(APPS)}", selector(app=draw.choice(APPS)), draw.randint(0, 2)),
            Workload("DaemonSet", "system", "agent", template=agent),
            disk(draw.choice(("z1", "z2"))),
            StorageClass("wait", "csi", wait_for_first_consumer=draw.random() < 0.5),
            Namespace("default", {"team": draw.choice("xy")}),
        )
        return self._odd(items)

    def _state(self) -> State:
        draw = self.draw
        coming = []
        for name in draw.sample(MACHINES, draw.choice((0, 0, 1, 2))):
            of = draw.choice(OFFERINGS)
            waiting = [key for bucket in self.cluster.unbound.values() for key in bucket.keys]
            pods = tuple(sorted(draw.sample(sorted(waiting), min(len(waiting), draw.randint(0, 2)))))
            there = name if draw.random() < 0.5 else ""
            coming.append(Upcoming(f"id-{name}", "main", of.instance_type, of.market, of.zone, node=there, pods=pods))
        return State(
            upcoming=tuple(coming),
            idle_seconds={name: draw.choice((0.0, 700.0)) for name in (*NODES, *MACHINES) if draw.random() < 0.8},
            blocked_offerings=self._some_offerings(),
            probed_offerings=self._some_offerings(),
            no_moves_to=self._some_offerings(),
            bought_last_minute=draw.randint(0, 1),
            disrupting=frozenset(name for name in NODES if draw.random() < 0.1 * self.unrest),
            broken_promises=frozenset({"default/p-1"} if draw.random() < 0.2 else ()),
            promised={name: "default/p-1" for name in NODES if draw.random() < 0.1},
        )

    def _some_offerings(self) -> frozenset[OfferingKey]:
        return frozenset(of.key for of in OFFERINGS if self.draw.random() < 0.1)
