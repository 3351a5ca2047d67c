"""Hypothesis strategies: small clusters, policies and states in which every planning rule occurs and often applies."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from tests.planning.building import (
    ARCH,
    GPU,
    HOST,
    JOB,
    NOW,
    REPLICAS,
    ZONE,
    affinity,
    amounts_of,
    near,
    node,
    offering,
    pod,
    spec,
    spread,
    term,
)
from tests.planning.replaying import Case

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.cluster import Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import HostPort, Owner, Pod, PodSpec
from gpuscaler.model.pools import Limits, Offering, Policy, Pool, Spare
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.state import State, Upcoming

RACK = "example.com/rack"
ZONES = ("z1", "z2", "z3")
APPS = ("a", "b", "c")
NAMESPACES = ("default", "default", "other")
#: Name, price, GPUs, cores, GiB.
TYPES = (("g.1", 1.0, 1, 8, 32), ("g.4", 3.6, 4, 32, 128), ("h.8", 9.0, 8, 64, 256), ("c.8", 0.35, 0, 8, 16), ("c.32", 1.2, 0, 32, 64))
TAINT = Taint("team", "ml")
#: Nominations of pending pods by the scheduler.
NOMINATED = ({"nominated_node": "n0"}, {"nominated_node": "n0"}, {"nominated_node": "n1"}, {"nominated_node": "n2"})
AGENT = {"cpu": 500, "memory": 2**30}


@st.composite
def offerings(draw: st.DrawFn, pool: str) -> tuple[Offering, ...]:
    offerings: dict[OfferingKey, Offering] = {}
    tainted = draw(st.integers(0, 9)) == 0
    for name, price, gpus, cpu, memory in draw(st.lists(st.sampled_from(TYPES), min_size=2, max_size=4, unique=True)):
        for zone in draw(st.sampled_from((ZONES, ZONES, ZONES[:2], ZONES[1:], ZONES[:1]))):
            market = draw(st.sampled_from(("on-demand", "on-demand", "on-demand", "spot")))
            drawn = offering(
                name,
                price * (0.4 if market == "spot" else 1.0),
                pool=pool,
                zone=zone,
                market=market,
                gpus=gpus,
                cpu=cpu,
                memory=memory,
                pods=draw(st.sampled_from((110, 110, 4))),
                labels={RACK: draw(st.sampled_from(("r1", "r2")))} | ({ARCH: "arm64"} if name == "c.32" and draw(st.booleans()) else {}),
                taints=(TAINT,) if tainted else (),
                count=draw(st.sampled_from((None, None, None, 2))),
            )
            offerings[drawn.key] = drawn
    return tuple(offerings.values())


@st.composite
def pools(draw: st.DrawFn, name: str) -> Pool:
    return Pool(
        name,
        draw(offerings(name)),
        chooser=draw(st.sampled_from(("buyer", "buyer", "buyer", "cloud"))),
        max=draw(st.sampled_from((None, None, None, 0, 2, 5))),
        min=draw(st.sampled_from((0, 0, 0, 1))),
        spare=draw(st.sampled_from((Spare(), Spare(), Spare(machines=1), Spare(gpus=2)))),
        priority=draw(st.sampled_from((0, 0, 5))),
        arch=draw(st.sampled_from((None, None, "arm64"))),
        names_zone=draw(st.booleans()),
    )


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    """Rules that a specification may have besides requests."""
    app = draw(st.sampled_from(APPS))
    where = draw(st.sampled_from((("default",), ("default",), ("default", "other"))))
    key = draw(st.sampled_from((HOST, ZONE, ZONE, RACK)))
    every: tuple[dict[str, Any], ...] = (
        {},
        {},
        {"spread": (spread(key, skew=draw(st.integers(1, 2)), app=app),)},
        {"spread": (spread(HOST, app=app), spread(ZONE, app=app))},
        {"affinity": (near(key, where=where, app=app),)},
        {"anti_affinity": (near(key, where=where, app=app),)},
        {"host_ports": (HostPort(draw(st.sampled_from((80, 81)))),)},
        {"node_selector": ((ZONE, draw(st.sampled_from(ZONES))),)},
        {"node_affinity": affinity((ZONE, "In", *draw(st.lists(st.sampled_from(ZONES), min_size=1, max_size=2))))},
        {"node_affinity": affinity((ARCH, "In", "arm64", "amd64"))},
        {"spread": (spread(ZONE, hard=False, app=app),), "preferred_nodes": ((5, term((ZONE, "In", draw(st.sampled_from(ZONES))))),)},
    )
    first, second = draw(st.sampled_from(every)), draw(st.sampled_from(every))
    return {**first, **second}


@st.composite
def specs(draw: st.DrawFn, /, **fixed: Any) -> PodSpec:
    fields = {
        "namespace": draw(st.sampled_from(NAMESPACES)),
        "gpus": draw(st.sampled_from((0, 0, 0, 1, 1, 2, 3, 8))),
        "cpu": draw(st.sampled_from((0.5, 1, 1, 3, 7))),
        "memory": draw(st.sampled_from((0.5, 1, 2, 9))),
        "priority": draw(st.sampled_from((0,) * 6 + (10, 10, -20))),
        "tolerations": draw(st.sampled_from(((), (Toleration("team", "Exists"),)))),
        **draw(rules()),
    }
    return spec(**{**fields, **fixed})


@st.composite
def running(draw: st.DrawFn, name: str, on: str) -> Pod:
    owner = draw(st.sampled_from((REPLICAS, REPLICAS, JOB, Owner())))
    deleted = draw(st.sampled_from((0.0, 0.0, 0.0, NOW)))
    return pod(name, draw(specs()), on=on, labels={"app": draw(st.sampled_from(APPS))}, owner=owner, deleted=deleted)


@st.composite
def nodes(draw: st.DrawFn, name: str, policy: Policy) -> list[Item]:
    """A node of some offering, open or not, with its running pods."""
    of = draw(st.sampled_from([offering for pool in policy.pools for offering in pool.offerings]))
    odd: dict[str, Any] = draw(
        st.sampled_from(({}, {}, {}, {}, {"ready": False}, {"deleted": NOW}, {"unschedulable": True}, {"taints": (TAINT,)}))
    )
    here: list[Item] = [node(name, of, **odd)]
    return here + [draw(running(f"{name}-{number}", name)) for number in range(draw(st.integers(0, 2)))]


@st.composite
def waiting(draw: st.DrawFn, name: str) -> list[Pod]:
    """The pods of one controller; sometimes a gang, or pods that are ignored."""
    gang: dict[str, str] = draw(st.sampled_from(({},) * 8 + ({"gang": "g1"}, {"gang": "g2", "gang_topology": "any"})))
    options: dict[str, Any] = {**gang, "market": draw(st.sampled_from(((),) * 8 + (("on-demand",), ("spot",))))}
    if gang:
        options["gang_size"] = draw(st.integers(0, 4))
    odd = draw(st.sampled_from(({},) * 12 + (*NOMINATED, {"nominated_node": "gone"}, {"deleted": NOW}, {"phase": "Failed"})))
    of = draw(specs(**draw(st.sampled_from(({},) * 19 + ({"gates": ("later",)},)))))
    labels = {"app": draw(st.sampled_from(APPS))}
    return [pod(f"{name}-{number}", of, labels=labels, options=options, **odd) for number in range(draw(st.integers(1, 5)))]


@st.composite
def states(draw: st.DrawFn, policy: Policy, items: list[Item]) -> State:
    every = [offering for pool in policy.pools for offering in pool.offerings]
    names = [item.name for item in items if isinstance(item, Node)]
    pods = [item.key for item in items if isinstance(item, Pod) and not item.node_name]
    coming = []
    for number in range(draw(st.sampled_from((0, 0, 1, 2)))):
        of = draw(st.sampled_from(every))
        pool = next(pool for pool in policy.pools if pool.name == of.pool)
        members = [o for o in pool.offerings if not pool.names_zone or o.zone == of.zone]
        choices = tuple((o.instance_type, o.market, o.zone) for o in members) if pool.chooser == "cloud" else ()
        promised = tuple(draw(st.lists(st.sampled_from(pods), max_size=3, unique=True))) if pods else ()
        coming.append(Upcoming(f"m-{number}", of.pool, of.instance_type, of.market, of.zone, choices=choices, pods=promised))
    return State(
        upcoming=tuple(coming),
        idle_seconds={name: 3600.0 for name in names if draw(st.booleans())},
        blocked_offerings=frozenset(of.key for of in every if draw(st.integers(0, 14)) == 0),
        bought_last_minute=draw(st.sampled_from((0, 1))),
        disrupting=frozenset(name for name in names if draw(st.integers(0, 9)) == 0),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    policy = Policy(
        tuple(draw(pools(f"pool-{number}")) for number in range(draw(st.integers(1, 2)))),
        draw(
            st.sampled_from(
                (Limits(),) * 5
                + (Limits(machines=3), Limits(gpus=8), Limits(dollars_per_hour=6.0), Limits(machines=6, machines_per_minute=3, gpus=20))
            )
        ),
        preferences=draw(st.sampled_from(("ignore", "respect"))),
        work_budget=20_000,
    )
    items: list[Item] = []
    for number in range(draw(st.integers(0, 3))):
        items += draw(nodes(f"n{number}", policy))
    for number in range(draw(st.integers(2, 5))):
        items += draw(waiting(f"p{number}"))
    daemons: dict[str, int] = {}
    if draw(st.integers(0, 3)) == 0:
        everywhere = (Toleration(operator="Exists"),)
        items.append(Workload("DaemonSet", "system", "agent", template=spec(requests=AGENT, tolerations=everywhere)))
        daemons = {**AGENT, "pods": 1}
    return Case(tuple(items), policy, draw(states(policy, items)), daemons)


@st.composite
def pods_without_rules(draw: st.DrawFn) -> tuple[list[Pod], Policy]:
    """Up to six pods without rules, and machines without limits. GPUs are whole, or in thousandths as in traces."""
    thousandths = draw(st.booleans())
    resource, unit = (GPU_MILLI, 1000) if thousandths else (GPU, 1)
    offered = [offering(name, price, gpus=gpus, cpu=cpu, memory=memory) for name, price, gpus, cpu, memory in TYPES]
    if thousandths:
        offered = [
            msgspec.structs.replace(each, allocatable={**each.allocatable, resource: unit * each.allocatable.get(GPU, 0)})
            for each in offered
        ]
    amounts = st.sampled_from((unit, unit, 2 * unit, 3 * unit, 8 * unit, *((140, 460) if thousandths else ())))
    drawn = [
        pod(f"p{number}", spec(requests={**amounts_of(cpu=draw(st.sampled_from((1, 3, 7)))), resource: draw(amounts)}))
        for number in range(draw(st.integers(2, 6)))
    ]
    return drawn, Policy((Pool("main", tuple(offered)),))
