"""Whole drains, of pods that end late or never, may not be evicted, or save their work first."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.lifecycle.termination.kit import CRITICAL, KIND, resident
from tests.planning.building import NOW, node, pool
from tests.soaking import examples

from gpuscaler.lifecycle.actions import Act, Checkpoint, Clear, Delete, End, Evict, Exclude, Mark, Unmark
from gpuscaler.lifecycle.termination import EvictionRefused, continue_removals, record_refusals
from gpuscaler.lifecycle.termination.eviction import LAST_SECONDS, MARGIN_SECONDS
from gpuscaler.lifecycle.termination.node_pods import LEAVING, is_daemon
from gpuscaler.lifecycle.termination.removing import DRAIN_SECONDS
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import EXCLUDE_LABEL, EXCLUDE_VALUE
from gpuscaler.planning.capacity.idle import STUCK_AFTER
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import DRAINING, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

POLICY = Policy((pool(KIND),))


@dataclass
class Life:
    """A pod and its behaviour.

    It may not be evicted before ``held`` seconds are over. It ends ``needs`` seconds after its eviction, at the end of its grace period at
    the latest, unless it is ``stuck``. It saves its work within ``saves`` seconds, or never.
    """

    pod: Pod
    held: float = 0.0
    needs: float = 1.0
    stuck: bool = False
    saves: float | None = None
    ends: float = 0.0
    graces: list[float] = field(default_factory=list)

    @property
    def longest(self) -> float:
        """Return the longest time that it is waited for, once it is its group's turn."""
        ends = self.pod.spec.grace_seconds + STUCK_AFTER if self.stuck else min(self.needs, self.pod.spec.grace_seconds)
        # A DaemonSet pod that may not be evicted is not waited for.
        held = 0.0 if is_daemon(self.pod) else self.held
        return held + (self.pod.options.grace or 0.0) + ends

    @property
    def rank(self) -> int:
        return 2 * (self.pod.spec.priority >= CRITICAL) + is_daemon(self.pod)

    def told_to_end(self, now: float, grace: float) -> None:
        grace = min(grace, self.pod.deleted - now) if self.pod.deleted else grace
        self.pod = replace(self.pod, deleted=now + max(0.0, grace))
        self.ends = min(self.ends or now + self.needs, now + max(0.0, grace))
        self.graces.append(now + grace)


@dataclass
class Drain:
    """One machine that is being removed; ``clears`` is whether the cloud deletes its Node."""

    lives: list[Life]
    left: float | None
    clears: bool = True
    now: float = NOW
    node: Node | None = None
    gone: float = 0.0
    book: Ledger = field(default_factory=Ledger)
    refused: list[EvictionRefused] = field(default_factory=list)
    acts: list[tuple[float, Act]] = field(default_factory=list)

    def begin(self) -> None:
        self.node = node("n", KIND, provider_id="i-1", uid="u")
        pods = tuple(life.pod.key for life in self.lives)
        removal = Removal("n", "i-1", KIND.key, "idle", NOW, NOW, pods=pods)
        self.book = Ledger(leaving=(removal if self.left is None else replace(removal, forced=True, ends=NOW + self.left),))

    @property
    def one(self) -> Removal | None:
        return self.book.leaving[0] if self.book.leaving else None

    def look(self, seconds: float) -> None:
        self.now += seconds
        self.lives = [life for life in self.lives if life.stuck or not life.ends or life.ends > self.now]
        if self.gone and self.clears and self.now > self.gone + 10.0:
            self.node = None
        alive = () if self.gone and self.now > self.gone + 5.0 else (Instance("i-1", *KIND.key),)
        self.book = ledger.fold_events(self.book, record_refusals(self.book, self.refused, self.now))
        self.refused = []
        cluster = Cluster.of([*([self.node] if self.node is not None else []), *(life.pod for life in self.lives if self.node is not None)])
        departure = continue_removals(self.book, cluster, Inventory(self.now, alive), POLICY, now=self.now)
        self.book = ledger.fold_events(self.book, departure.steps)
        for act in departure.acts:
            self.acts.append((self.now, act))
            self.check(act)
            self.carry_out(act)

    def check(self, act: Act) -> None:
        waiting = [life for life in self.lives if not is_daemon(life.pod) and not (0 < life.pod.deleted < self.now - STUCK_AFTER)]
        if isinstance(act, End) and self.left is None:
            assert not waiting, f"the machine was ended, and {waiting[0].pod.key} runs there"
        if isinstance(act, Evict | Delete):
            assert self.one is not None
            assert self.one.step == DRAINING
            mine = next(life for life in self.lives if life.pod.key == act.pod)
            ahead = [life for life in waiting if life.rank < mine.rank]
            assert not ahead or self.left is not None, f"{act.pod} was evicted before {ahead[0].pod.key} was gone"
        if isinstance(act, Delete):
            assert self.left is not None
            assert self.now >= NOW + self.left - LAST_SECONDS

    def carry_out(self, act: Act) -> None:
        life = next((life for life in self.lives if life.pod.key == getattr(act, "pod", "")), None)
        match act:
            case Mark() if self.node is not None:
                self.node = replace(self.node, taints=(LEAVING,))
            case Unmark() if self.node is not None:
                self.node = replace(self.node, taints=(), labels={key: to for key, to in self.node.labels.items() if key != EXCLUDE_LABEL})
            case Exclude() if self.node is not None:
                self.node = replace(self.node, labels={**self.node.labels, EXCLUDE_LABEL: EXCLUDE_VALUE})
            case Checkpoint(at=at) if life is not None:
                life.pod = replace(life.pod, checkpoint_requested=at)
                if life.saves is not None and life.saves <= act.seconds:
                    life.pod = replace(life.pod, checkpointed=at)
            case Evict(grace=grace) if life is not None:
                if not life.pod.deleted and self.now < NOW + life.held:
                    self.refused.append(EvictionRefused("n", act.pod, act.uid, "the budget", budget=True))
                else:
                    life.told_to_end(self.now, life.pod.spec.grace_seconds if grace is None else grace)
            case Delete(grace=grace) if life is not None:
                life.told_to_end(self.now, grace)
            case End():
                self.gone = self.gone or self.now
            case Clear():
                self.node = None


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    lifes = []
    for number in range(draw(st.integers(0, 4))):
        pod = resident(
            f"p{number}",
            grace_seconds=draw(st.sampled_from((5, 30, 300))),
            priority=draw(st.sampled_from((0, 0, CRITICAL))),
            daemon=draw(st.booleans()),
            options={"grace": draw(st.sampled_from((None, None, 60.0))), "disruption": "allow"},
        )
        held = draw(st.sampled_from((0.0, 0.0, 50.0, 1e6)))
        saves = draw(st.sampled_from((None, 5.0)))
        lifes.append(Life(pod, held, draw(st.sampled_from((1.0, 20.0, 1e6))), draw(st.integers(0, 5)) == 0, saves))
    return lifes


@settings(max_examples=examples(60), deadline=None)
@given(lives(), st.booleans())
def test_every_drain_finishes_or_is_undone_without_leftovers(lives: list[Life], clears: bool) -> None:
    drain = Drain(lives, None, clears)
    blocked = any(life.held > 1e5 and not is_daemon(life.pod) for life in lives)
    # Groups are evicted one after the other: several groups with stuck pods may take longer than the time limit.
    slow = sum(max(life.longest for life in lives if life.rank == rank) for rank in {life.rank for life in lives}) > DRAIN_SECONDS / 2
    drain.begin()
    for _ in range(1500):
        drain.look(2.0)
        if drain.one is None:
            break

    assert drain.book.leaving == ()
    if blocked or (slow and not drain.gone):
        assert drain.node is not None
        assert (drain.node.taints, EXCLUDE_LABEL in drain.node.labels, drain.gone) == ((), False, 0.0)
    else:
        assert drain.gone
        assert drain.node is None
        assert any(isinstance(act, Clear) for _, act in drain.acts) is not clears


@settings(max_examples=examples(60), deadline=None)
@given(lives(), st.sampled_from((20.0, 35.0, 120.0, 900.0)))
def test_an_interrupted_machine_is_empty_in_time_or_all_its_pods_were_notified(lives: list[Life], left: float) -> None:
    drain = Drain(lives, left)
    everybody = list(lives)
    drain.begin()
    while drain.now < NOW + left - 1.0:
        drain.look(1.0)

    assert not any(isinstance(act, Unmark) for _, act in drain.acts)
    for life in everybody:
        notified = is_daemon(life.pod) or bool(life.graces)
        assert notified, f"{life.pod.key} was never notified that its machine goes"
        assert not life.graces or life.graces[-1] <= NOW + left - MARGIN_SECONDS + 1.0
        assert life not in drain.lives or life.stuck or is_daemon(life.pod)
