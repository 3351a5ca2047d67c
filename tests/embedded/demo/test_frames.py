"""Snapshots of a cluster at one moment."""

from tests.planning.building import NOW, node, offering, pod, pool, spec

from gpuscaler.control.records.events.latest import Latest
from gpuscaler.embedded.demo.frames import Machine, Pending, pending_of, pools_of
from gpuscaler.embedded.nodes.machines import name_of
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.plans import Placement, Plan, Reason, Unplaced
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.breakers import step
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine, Promise, Removal
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Delays

FOUR = offering("g.4", 4.0, gpus=4, pool="main")
CPU = offering("c.1", 0.5, gpus=0, pool="other")
POLICY = Policy((pool(FOUR), pool(CPU)))
EXACT = Delays(answer=Delay(1, 1, 1), boot=Delay(100, 100, 100), device_plugin=Delay(10, 10, 10), image_pull=Delay(0, 0, 0))


def cloud() -> SimulatedCloud:
    return SimulatedCloud(POLICY.pools, delays=EXACT, faults=NO_FAULTS)


def latest(ledger: Ledger | None = None, plan: Plan | None = None, **memory: object) -> Latest:
    return Latest(memory=Memory(ledger=ledger or Ledger(), **memory), plan=plan or Plan(), policy=POLICY)  # type: ignore[arg-type]  # passed on


def test_a_snapshot_distinguishes_used_from_idle_gpus() -> None:
    core = cloud()
    name = name_of(core.start(FOUR.key, NOW))
    cluster = Cluster.of([node(name, FOUR), pod("a", spec(gpus=3), on=name)])

    main, other = pools_of(cluster, latest(), core, NOW)

    assert main.machines == (Machine(name, "main", "g.4", "on-demand", "z1", used=3, idle=1),)
    assert (main.gpus, main.offerings, main.refused) == (True, 1, 0)
    assert (other.machines, other.gpus) == ((), False)


def test_a_machine_is_shown_as_starting_until_its_node_is_open_and_has_its_gpus() -> None:
    core = cloud()
    name = name_of(core.start(FOUR.key, NOW))
    arriving = Machine(name, "main", "g.4", "on-demand", "z1", arriving=4)
    whole = node(name, FOUR)
    bare = node(name, FOUR, allocatable={"cpu": 1000})
    closed = node(name, FOUR, taints=(Taint("gpuscaler.io/arriving"),))

    seen = [pools_of(Cluster.of(nodes), latest(), core, NOW)[0].machines[0] for nodes in ([], [bare], [closed], [whole])]

    assert seen == [arriving, arriving, arriving, Machine(name, "main", "g.4", "on-demand", "z1", idle=4)]


def test_a_machine_is_shown_as_leaving_from_the_decision_to_remove_it() -> None:
    core = cloud()
    name = name_of(core.start(FOUR.key, NOW))
    cluster = Cluster.of([node(name, FOUR), pod("a", spec(gpus=1), on=name)])
    leaving = Ledger(leaving=(Removal(name, "i-1", FOUR.key, "idle", NOW, NOW),))

    (machine,) = pools_of(cluster, latest(leaving), core, NOW)[0].machines

    assert (machine.used, machine.leaving, machine.idle) == (1, 3, 0)


def test_ordered_machines_are_shown_without_a_name() -> None:
    ordered = Ledger(coming=(OrderedMachine("t-0", "t", (FOUR.key,), 4.0, NOW), OrderedMachine("t-1", "t", (CPU.key,), 0.5, NOW)))

    main, other = pools_of(Cluster(), latest(ordered), cloud(), NOW)

    assert main.machines == (Machine("", "main", "g.4", "on-demand", "z1", arriving=4),)
    assert other.machines == (Machine("", "other", "c.1", "on-demand", "z1", arriving=1, cpu_only=True),)


def test_a_snapshot_counts_refused_offerings_that_are_not_tried_at_the_moment() -> None:
    breakers = step(
        step(Memory().breakers, offering_events.Asked(FOUR.key, NOW)), offering_events.Refused(FOUR.key, NOW, "capacity", "nothing left")
    )

    main, other = pools_of(Cluster(), latest(breakers=breakers), cloud(), NOW)

    assert (main.refused, other.refused) == (1, 0)


def test_pending_pods_are_listed_with_their_reasons_longest_waits_first() -> None:
    waiting = [pod(name, spec(gpus=2), created=NOW - age) for age, name in enumerate("abcdefg")]
    coming = (
        OrderedMachine("t-0", "t", (FOUR.key,), 4.0, NOW, pods=("default/a",), offering=FOUR.key, instance="i-1", granted=NOW - 100),
        OrderedMachine("t-1", "t", (FOUR.key,), 4.0, NOW, pods=("default/b",)),
        OrderedMachine("t-2", "t", (FOUR.key,), 4.0, NOW, offering=FOUR.key, instance="i-2", granted=NOW - 900),
    )
    plan = Plan(
        placements=(Placement("default/d", "n1"), Placement("default/e", "t-2")),
        unplaced=(Unplaced("default/f", (Reason("main", "resources", "too large"),)),),
    )
    ledger = Ledger(coming=coming, promises=(Promise("n9", FOUR.key, ("default/c",), NOW),))

    pendings = pending_of(Cluster.of(waiting), latest(ledger, plan), NOW)

    assert pendings == (
        Pending("default/g", 2, 6.0, "not planned yet"),
        Pending("default/f", 2, 5.0, "pool main: too large"),
        Pending("default/e", 2, 4.0, "g.4 on-demand in z1 is on its way, due any moment"),
        Pending("default/d", 2, 3.0, "there is room on node n1"),
        Pending("default/c", 2, 2.0, "node n9 is being opened for it"),
        Pending("default/b", 2, 1.0, "g.4 on-demand in z1 is ordered"),
        Pending("default/a", 2, 0.0, "g.4 on-demand in z1 is on its way, ready in about 2m20s"),
    )
