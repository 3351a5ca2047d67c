"""Everything that is remembered between plans, as one piece of plain data, and how a look at the world changes it.

:func:`look` folds what the watches and the cloud show and says what is to be done now; :func:`state_of` is what the planner takes;
:func:`ordered` turns a plan into orders and removals. None of them does anything: intent is written down first, then acted on.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import reduce
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle import interruptions, scale_in_protection, termination
from gpuscaler.lifecycle.actions import Act
from gpuscaler.lifecycle.hard_stop import bounded
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.machine_index import Roll, Rolls, Unpooled
from gpuscaler.lifecycle.node_health import device_plugins, refusing_nodes, unready
from gpuscaler.lifecycle.node_health.device_plugins import Away
from gpuscaler.lifecycle.node_marks.kept_taint import keep
from gpuscaler.lifecycle.node_marks.pool_label import labels_due
from gpuscaler.lifecycle.node_marks.soft_taints import discourage
from gpuscaler.lifecycle.quarantine import Poison
from gpuscaler.lifecycle.registration.group_launches import owed, owing
from gpuscaler.lifecycle.registration.learning import observed
from gpuscaler.lifecycle.registration.readiness import asked_for
from gpuscaler.lifecycle.registration.steps import Arrivals, Waits, arrivals
from gpuscaler.lifecycle.registration.undescribed import of_others, unfamiliar, with_stops
from gpuscaler.lifecycle.registration.unregistered import adopted
from gpuscaler.lifecycle.registration.unshown_resources import probes, unproven
from gpuscaler.lifecycle.released_pools import LetGo, encourage, let_go
from gpuscaler.lifecycle.steering import rejected_pods, steering, windows
from gpuscaler.lifecycle.steering.binding import Refused, Unbinding, unbinding
from gpuscaler.lifecycle.steering.promised_pods import crowded
from gpuscaler.lifecycle.steering.rejected_pods import Admissions, TurnedAway
from gpuscaler.lifecycle.steering.windows import Window
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import BUYING, REMOVING, Holds
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.planning.alternatives import alternatives
from gpuscaler.planning.limits import slack
from gpuscaler.planning.plans import Machine, Plan
from gpuscaler.planning.state import State, Upcoming, boots, breakers, clocks, efforts, events, learned, ledger, promises, refusals, sparing
from gpuscaler.planning.state.asking import with_breakers
from gpuscaler.planning.state.boots import Boots
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.clocks import IdleClocks
from gpuscaler.planning.state.efforts import Efforts
from gpuscaler.planning.state.entries import SKEW_SECONDS
from gpuscaler.planning.state.events import Key
from gpuscaler.planning.state.guarding import Guarding
from gpuscaler.planning.state.learned import Learned
from gpuscaler.planning.state.ledger import Coming, Leaving, Ledger, Order, Promise, Withdrawal
from gpuscaler.planning.state.promises import Promises
from gpuscaler.planning.state.refusals import Refusals
from gpuscaler.planning.state.sparing import Sparing
from gpuscaler.planning.state.telling import told
from gpuscaler.planning.state.unready import Unready
from gpuscaler.planning.templates import Overhead

Dated = TypeVar("Dated", Order, Coming, Promise, Leaving, Withdrawal)

#: An order whose answer was lost is sent again this often, in seconds.
RESEND_SECONDS = 5.0
#: A withdrawal that the cloud has not confirmed is sent again after so long, ever more rarely up to the second, in seconds.
WITHDRAW_SECONDS, WITHDRAW_MOST = 15.0, 600.0
#: Where people look for what keeps machines from coming up.
LOOK: Mapping[str, str] = {
    events.FRUITLESS: "see why its pods do not come to its nodes: gpuscaler why pod, and the scheduler's Events on them",
    events.ABSENT: "look at how its machines join the cluster: their image, network and permissions",
    events.LACKING: "look at the device plugin and its pods on a node of the pool: whether they run there, and which resources they name",
}


class Memory(Struct, frozen=True, gc=False):
    """What survives restarts.

    ``decisions`` is how many decisions have been numbered, ``decided`` are the ids of those that are being carried out, by order and node.
    ``worked_on`` is when the cloud works on machines, by id, as it has announced, ``ends`` when their reserved time does.
    ``unfamiliar`` are machines that came under keys which their pools do not offer, by id. ``poison`` are objects that planning fails with.
    ``unready`` is about nodes that are not Ready, ``away`` about nodes whose devices have gone. ``efforts`` are machines whose pods
    still wait. ``unbinding`` are pools where bindings were refused, ``admissions`` pods that were bound and that no kubelet has taken yet.
    ``windows`` are closed nodes that let pods of DaemonSets come for a moment.
    """

    ledger: Ledger = Ledger()
    breakers: Breakers = Breakers()
    promises: Promises = Promises()
    learned: Learned = Learned()
    boots: Boots = Boots()
    clocks: IdleClocks = IdleClocks()
    refusals: Refusals = Refusals()
    decisions: int = 0
    decided: Mapping[str, str] = {}
    spared: Sparing = Sparing()
    worked_on: Mapping[str, float] = {}
    ends: Mapping[str, float] = {}
    unfamiliar: Mapping[str, Key] = {}
    efforts: Efforts = Efforts()
    poison: tuple[Poison, ...] = ()
    unready: Unready = Unready()
    guarding: Guarding = Guarding()
    away: Mapping[str, Away] = {}
    unbinding: Mapping[str, Unbinding] = {}
    admissions: Admissions = Admissions()
    windows: Mapping[str, Window] = {}


class Facts(Struct, frozen=True, gc=False):
    """What is known beside the cluster: the cloud's list, when the scheduler last failed each pod, whether all of it is fresh.

    ``said`` are the scheduler's words then, by pod. ``going`` are machines that the cloud has announced to take away, and
    ``worked_on`` those that it will work on, by id and with the moment, 0 where that is not known; ``why`` says why some are taken away,
    where that is not the cloud's usual reason; ``guarded`` is what came of protecting machines; ``announced`` is all that it has
    announced beside taking away, by id and in a word, told once. ``vanished`` are machines that it listed before and does
    not list any more. ``unevicted`` is what evictions have come to nothing by since the last look, ``unbound`` bindings that were refused
    for good, ``unseen`` are nodes on which a last look has found pods that no watch has shown, in words. ``holds`` are what people have
    stopped. Without ``fresh`` nothing is removed.
    """

    inventory: Inventory | None = None
    attempts: Mapping[str, float] = {}
    said: Mapping[str, str] = {}
    going: Mapping[str, float] = {}
    worked_on: Mapping[str, float] = {}
    why: Mapping[str, str] = {}
    guarded: tuple[scale_in_protection.Answered, ...] = ()
    announced: tuple[tuple[str, str], ...] = ()
    vanished: tuple[Instance, ...] = ()
    unevicted: tuple[termination.Refusal, ...] = ()
    unbound: tuple[Refused, ...] = ()
    unseen: Mapping[str, str] = {}
    holds: Holds = Holds()
    fresh: bool = True
    waits: Waits = Waits()


class Look(Struct, frozen=True, gc=False):
    """``memory`` after the look; what to do now, what was found out, and what changed its mind.

    ``refused`` are pods that nodes with room for them do not take, ``doubtful`` orders to be sent again, ``withdrawals`` tokens of orders
    that the cloud is to be told to fill no more. ``remarks`` are worth telling, and so are machines of pools that nobody here knows,
    ``unpooled``; nothing is done about them. ``unlisted`` are nodes that belong to no pool, since the cloud's list does not have their
    machines. ``owed`` are machines that come without an order, ``let_go`` pools that are ours no longer and have something of ours.
    ``crowded`` are machines on their way whose pods have no room there any more. ``soon`` says that machines can be protected in a moment,
    which the cloud's list has to show first. ``turned_away`` are pods that were bound and that kubelets did not admit.
    """

    memory: Memory
    acts: tuple[Act, ...] = ()
    arrivals: Arrivals = Arrivals()
    outcomes: tuple[promises.Kept | promises.Broken, ...] = ()
    stray: tuple[str, ...] = ()
    unfit: tuple[steering.Unfit, ...] = ()
    turned_away: tuple[TurnedAway, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    refused: tuple[refusals.Refused, ...] = ()
    doubtful: tuple[Order, ...] = ()
    withdrawals: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    unpooled: tuple[Unpooled, ...] = ()
    crowded: frozenset[str] = frozenset()
    unlisted: frozenset[str] = frozenset()
    owed: tuple[Upcoming, ...] = ()
    let_go: tuple[LetGo, ...] = ()
    soon: bool = False


def look(memory: Memory, cluster: Cluster, policy: Policy, facts: Facts, now: float, *, rolls: Rolls | None = None) -> Look:
    """Fold what is seen, and say what is to be done now. ``rolls`` keep, for callers that look again and again, what has not changed.

    ``policy`` promises of machines what tags and rules say.
    """
    rolls = rolls or Rolls()
    roll = rolls.of(cluster, facts.inventory)
    removing_held = facts.holds.sentence(REMOVING, now)
    # What did not come in time is ended once removals are resumed.
    waits = replace(facts.waits, seen=-math.inf) if removing_held else facts.waits
    before = memory
    strangers = adopted(memory.ledger, cluster, facts.inventory, policy, waits=facts.waits, now=now, roll=roll, breakers=memory.breakers)
    book = ledger.folded(memory.ledger, strangers)
    surplus = {one.pool for one in (facts.inventory.deliveries if facts.inventory is not None else ()) if one.surplus}
    guarded = scale_in_protection.observe(
        memory.guarding, book, cluster, policy, roll=roll, answers=facts.guarded, now=now, surplus=surplus
    )
    memory = replace(memory, guarding=guarded.guarding)
    found = arrivals(
        book,
        cluster,
        facts.inventory,
        policy,
        waits=waits,
        now=now,
        roll=roll,
        exposed=guarded.exposed,
        breakers=before.breakers,
    )
    found = replace(found, steps=(*strangers, *found.steps))
    found_coming = named_in(memory.ledger, found)
    book = ledger.folded(memory.ledger, found.steps)
    if len(book.orders) < len(memory.ledger.orders):
        # What may have been the machine of an order that waits for none any more is nobody's by now: the plan of this look counts it.
        noted = ledger.folded(book, adopted(book, cluster, facts.inventory, policy, waits=facts.waits, now=now, roll=roll)).strangers
        book = ledger.step(book, ledger.Noticed({**noted, **book.strangers}))
    book = ledger.folded(book, owing(book, facts.inventory, now))
    book = ledger.folded(book, (termination.give_up(one, now) for one in found.overdue))
    memory = replace(
        memory,
        breakers=_folded(memory.breakers, found.fates),
        boots=_seen(memory.boots, found.arrived),
        learned=observed(_lessons(memory.learned, book, found, cluster, now), book, policy, now, roll=roll, teachers=rolls.teachers),
    )
    facts = _of_ours(facts, book, roll.foreign)
    memory = replace(memory, worked_on=_worked_on(memory.worked_on, facts, roll), ends=interruptions.remembered(memory.ends, roll.listed))
    announced = interruptions.Announced(facts.going, memory.worked_on, memory.ends, facts.why)
    taken = interruptions.taken(book, cluster, policy, announced, now, roll=roll)
    book = ledger.folded(book, taken.steps)
    silent = unready.observe(
        memory.unready, book, cluster, policy, announced=announced, roll=roll, fresh=facts.fresh, stopped=removing_held, now=now
    )
    book, memory = ledger.folded(book, silent.steps), replace(memory, unready=silent.unready)
    book = ledger.folded(book, termination.hear(book, facts.unevicted, now))
    book = ledger.folded(book, interruptions.dead(replace(book, coming=memory.ledger.coming), roll, now))
    gone = interruptions.unexpected(memory.ledger, facts.vanished, roll)
    admitted = rejected_pods.observe(memory.admissions, cluster, now)
    memory = replace(
        memory,
        breakers=_folded(memory.breakers, (*taken.fates, *interruptions.reclaimed(gone, now))),
        admissions=admitted.admissions,
        unbinding=unbinding(memory.unbinding, (*facts.unbound, *admitted.refused), book, now),
    )
    window = windows.observe(memory.windows, book, cluster, policy, now=now)
    wheel = steering.steer(
        book,
        cluster,
        policy,
        attempts=facts.attempts,
        said=facts.said,
        now=now,
        roll=roll,
        nominating=memory.unbinding.keys(),
    )
    book = ledger.folded(book, wheel.steps)
    refused = refusing_nodes.refused(memory.refusals, cluster, attempts=facts.attempts, said=facts.said, now=now)
    avoided = reduce(refusals.step, (*refused, *wheel.suspected), memory.refusals)
    acts: tuple[Act, ...] = (
        *guarded.acts,
        *window.acts,
        *wheel.acts,
        *keep(book, cluster, policy, roll, facts.inventory),
        *rolls.same(discourage, cluster, policy, roll.unlisted),
        *encourage(cluster, facts.inventory),
        *rolls.same(labels_due, cluster, policy, roll),
    )
    kept: tuple[tuple[str, str], ...] = ()
    if facts.fresh:
        departure = termination.take_leave(
            book,
            cluster,
            facts.inventory,
            policy,
            now=now,
            unseen=facts.unseen,
            roll=roll,
            held=removing_held,
            unsafe=guarded.unsafe,
        )
        book = ledger.folded(book, departure.steps)
        acts, kept = (*acts, *departure.acts), departure.kept
        memory = replace(
            memory,
            clocks=clocks.step(memory.clocks, clocks.Observed(rolls.idle(cluster, now), now)),
            spared=_spared(memory.spared, departure, roll, now),
        )
    book, withdrawals, doubtful = _sent_again(book, facts, now)
    there = roll.listed.alive.keys() | roll.by_machine.keys()
    ended = {one.id for one in roll.listed.ended}
    tried, verdicts = efforts.judged(memory.efforts, efforts.left(found_coming, book, there, now, ended=ended), cluster.pods, now)
    memory = replace(memory, efforts=tried, breakers=_folded(memory.breakers, verdicts))
    return Look(
        memory=replace(
            memory,
            ledger=book,
            promises=reduce(promises.step, wheel.outcomes, memory.promises),
            refusals=avoided,
            unfamiliar=unfamiliar(memory.unfamiliar, book, policy, roll),
            admissions=rejected_pods.sent(memory.admissions, wheel.acts, book, now),
            windows=window.windows,
        ),
        acts=acts,
        arrivals=found,
        outcomes=wheel.outcomes,
        stray=wheel.stray,
        unfit=wheel.unfit,
        turned_away=admitted.turned_away,
        kept=kept,
        refused=tuple(one for one in refused if isinstance(one, refusals.Refused)),
        doubtful=doubtful,
        withdrawals=withdrawals,
        remarks=(
            *interruptions.remarks(roll, gone, facts.announced, facts.worked_on),
            *paused(before.breakers, memory.breakers, now),
            *silent.remarks,
            *window.remarks,
        ),
        unpooled=roll.unpooled(policy, facts.inventory.let_go if facts.inventory is not None else ()),
        let_go=let_go(book, cluster, facts.inventory),
        crowded=crowded(book, cluster, policy),
        unlisted=frozenset() if facts.inventory is None else roll.outside(facts.inventory.at - facts.waits.lag - SKEW_SECONDS),
        owed=owed(book, roll, facts.inventory, policy, waits=facts.waits, now=now),
        soon=guarded.soon,
    )


def named_in(book: Ledger, found: Arrivals) -> tuple[Coming, ...]:
    """The machines of ``book`` with all that a look learned of them; one may get its name, be a node and be lost in it."""
    return ledger.folded(book, (step for step in found.steps if not isinstance(step, ledger.Lost))).coming


def _sent_again(book: Ledger, facts: Facts, now: float) -> tuple[Ledger, tuple[str, ...], tuple[Order, ...]]:
    """What is sent once more now: withdrawals, and orders whose answer was lost.

    It is written down again first: whoever has been overtaken does not get that far (I10).
    """
    withdrawals = tuple(one.token for one in book.withdrawals if now >= one.tried + pause(one))
    book = ledger.folded(book, (ledger.Withdrawing(token, now) for token in withdrawals))
    # An order that may never have arrived is a new purchase when it is sent again.
    resends = facts.waits.keeps_tokens and facts.holds.of(BUYING, now) is None
    doubtful = tuple(one for one in book.orders if resends and is_due(one, now))
    return ledger.folded(book, (ledger.Doubted(one.token, now) for one in doubtful)), withdrawals, doubtful


def recalled(memory: Memory, now: float) -> Memory:
    """``memory`` as it was read at ``now``: what another's clock put into the future happened now, so that nothing waits for it.

    Orders that were written down, and perhaps sent, are in doubt.
    """
    book = memory.ledger
    book = replace(
        book,
        orders=tuple(_not_ahead(one, now) for one in book.orders),
        coming=tuple(_not_ahead(one, now) for one in book.coming),
        promises=tuple(_not_ahead(one, now) for one in book.promises),
        leaving=tuple(_not_ahead(one, now) for one in book.leaving),
        withdrawals=tuple(_not_ahead(one, now) for one in book.withdrawals),
        strangers={name: min(since, now) for name, since in book.strangers.items()},
        owing={name: min(since, now) for name, since in book.owing.items()},
        bought=tuple((min(at, now), many) for at, many in book.bought),
    )
    book = ledger.folded(book, (ledger.Doubted(one.token, now) for one in book.orders if one.state != ledger.ACCEPTED))
    idle = IdleClocks({name: min(since, now) for name, since in memory.clocks.since.items()})
    known = breakers.recalled(memory.breakers)
    silent, away = unready.recalled(memory.unready, now), device_plugins.recalled(memory.away, now)
    memory = replace(memory, guarding=scale_in_protection.recalled(memory.guarding, now))
    memory = replace(memory, windows=windows.recalled(memory.windows, now))
    return replace(memory, ledger=book, clocks=idle, breakers=known, unready=silent, away=away)


def _not_ahead(one: Dated, now: float) -> Dated:
    """``one`` without moments after ``now``; no other number of it is as large. When a machine goes is the cloud's to say."""
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    late = {name: now for name, value in fields.items() if isinstance(value, float) and value > now and name != "ends"}
    return replace(one, **late) if late else one


def is_due(order: Order, now: float) -> bool:
    """Whether an order whose answer was lost is to be sent again."""
    return order.state == ledger.DOUBTFUL and now >= order.since + RESEND_SECONDS


def pause(one: Withdrawal) -> float:
    """How long after it was last sent a withdrawal is sent again."""
    return min(WITHDRAW_SECONDS * 2.0 ** (one.times - 1), WITHDRAW_MOST) if one.times else 0.0


def paused(before: breakers.Breakers, now_open: breakers.Breakers, now: float) -> Iterator[Remark]:
    """What nothing is bought of any more since machine after machine never became a node, or never showed what it is sold with."""
    known = {(one.target, one.lacks) for one in before.open if breakers.counts(one)}
    for one in now_open.open:
        if one.cause in LOOK and breakers.counts(one) and (one.target, one.lacks) not in known:
            yield Remark("", "", f"{told(one, now)}; {LOOK[one.cause]}")


def _folded(known: breakers.Breakers, fates: Iterable[events.Event]) -> breakers.Breakers:
    for fate in fates:
        known = breakers.step(known, fate)
    return known


def _of_ours(facts: Facts, book: Ledger, foreign: Set[str]) -> Facts:
    """``facts`` without what was announced of ``foreign`` machines: several clusters may share what tells them.

    A machine of the ledger is ours, though the list may not have it yet.
    """
    foreign = foreign - {one.instance for one in book.coming}
    going, worked_on = ({name: at for name, at in said.items() if name not in foreign} for said in (facts.going, facts.worked_on))
    return replace(facts, going=going, worked_on=worked_on)


def _worked_on(known: Mapping[str, float], facts: Facts, roll: Roll) -> Mapping[str, float]:
    """When the cloud works on machines that it lists: it may say so once, and days before."""
    if not (known or facts.worked_on):
        return known
    there = known if facts.inventory is None else roll.listed.by_id
    return {**{name: at for name, at in known.items() if name in there}, **facts.worked_on}


def _spared(known: Sparing, departure: termination.Departure, roll: Roll, now: float) -> Sparing:
    for one in departure.given_up:
        known = sparing.step(known, one)
    return sparing.remaining(known, roll.by_machine, now) if known.nodes else known


def _seen(known: boots.Boots, arrived: Iterable[boots.Arrived]) -> boots.Boots:
    for one in arrived:
        known = boots.step(known, one)
    return known


def _lessons(known: learned.Learned, book: Ledger, found: Arrivals, cluster: Cluster, now: float) -> learned.Learned:
    """What the nodes that became ready offer in truth."""
    ready = {step.machine for step in found.steps if isinstance(step, ledger.Ready)}
    for one in book.coming:
        if one.id in ready and one.node in cluster.nodes:
            known = learned.step(known, learned.Seen(one.key, now, cluster.nodes[one.node].allocatable))
    return known


def vanishing(memory: Memory) -> frozenset[str]:
    """The nodes that leave because their machines are taken away."""
    return frozenset(one.node for one in memory.ledger.leaving if one.forced)


def state_of(memory: Memory, policy: Policy, now: float) -> State:
    """What :class:`~gpuscaler.planning.planner.Planner` takes of ``memory`` at ``now``."""
    book = memory.ledger
    doubted = unproven(book, memory.breakers)
    state = State(
        upcoming=tuple(replace(one, unproven=True) if one.id in doubted else one for one in ledger.upcoming(book)),
        idle_seconds=clocks.idle_seconds(memory.clocks, now),
        paused_offerings=promises.paused(memory.promises, now),
        refusing=refusals.refusing(memory.refusals, now),
        bought_last_minute=sum(many for at, many in book.bought if at > now - 60.0),
        disrupting=frozenset(one.node for one in book.leaving),
        spared=sparing.spared(memory.spared, now),
        vanishing=vanishing(memory),
        broken_promises=frozenset(pod for pod, _ in book.broken),
        ending=unready.ending(memory.unready),
        unbalancing=scale_in_protection.closed(memory.guarding, policy),
    )
    keys = [offering.key for pool in policy.pools for offering in pool.offerings]
    return with_breakers(state, breakers_of(memory, policy, now), keys, now)


def breakers_of(memory: Memory, policy: Policy, now: float) -> Breakers:
    """All that stops buying at ``now``: what clouds refused, machines that nobody understands, and too many that came to nothing."""
    known = efforts.with_hourly(memory.breakers, memory.efforts, policy.limits.fruitless_per_hour, now)
    return with_stops(known, {**of_others(memory.ledger, policy), **memory.unfamiliar}, now)


def ordered(memory: Memory, plan: Plan, cluster: Cluster, policy: Policy, *, state: State, now: float) -> tuple[Memory, tuple[Order, ...]]:
    """``memory`` with the intent to carry ``plan`` out, and the orders to send once that is written down.

    Whatever the plan says, no more machines are on their way than what waits could need.
    """
    book = memory.ledger
    plan = bounded(plan, cluster, policy, book=book, breakers=memory.breakers, now=now, unlisted=state.unlisted, guarding=memory.guarding)
    known = {one.id for one in book.coming}
    meant: dict[str, list[str]] = defaultdict(list)
    for placement in plan.placements:
        if placement.node in known:
            meant[placement.node].append(placement.pod)
    book = ledger.step(book, ledger.Planned({machine: tuple(pods) for machine, pods in meant.items()}))
    book = ledger.folded(book, steering.promised_on(book, cluster, policy, plan.placements, now))
    intents, names = _intents(book, plan, cluster, policy, state=state, now=now)
    book = ledger.folded(book, intents)
    book = ledger.folded(book, termination.begin(book, cluster, policy, plan.removals, names=names, now=now))
    orders = tuple(one.order for one in intents)
    known_breakers = memory.breakers
    for key in sorted({key for one in plan.machines for key in wanted(one)} & state.half_open_offerings):
        known_breakers = breakers.step(known_breakers, events.Asked(key, now))
    for machine in plan.machines:
        asked = asked_for(machine.pods, cluster)
        if probes(memory.breakers, wanted(machine), asked, now):
            known_breakers = breakers.step(known_breakers, events.Asked(wanted(machine)[0], now, asked))
    closed = {one.node for one in book.promises} | {one.node for one in book.coming} | {one.node for one in book.leaving}
    # The scheduler takes no node whose device plugin restarts; that is no refusal.
    closed |= device_plugins.coming_back(memory.away, now)
    expected = refusals.step(memory.refusals, refusing_nodes.expected(cluster, plan.placements, closed, now))
    return replace(memory, ledger=book, breakers=known_breakers, refusals=expected), orders


def _intents(
    book: Ledger, plan: Plan, cluster: Cluster, policy: Policy, *, state: State, now: float
) -> tuple[list[ledger.Intended], Mapping[str, str]]:
    """An order for each set of offerings that machines of ``plan`` may be, and the ledger's names of those machines."""
    if not plan.machines:
        return [], {}
    offerings = {offering.key: offering for pool in policy.pools for offering in pool.offerings}
    overhead = Overhead(cluster)
    groups: dict[tuple[str, tuple[Key, ...]], list[Machine]] = defaultdict(list)
    left = slack(policy, offerings, state, cluster.nodes, map(wanted, plan.machines))
    for machine in plan.machines:
        others = alternatives(
            machine, cluster, offerings, overhead=overhead, blocked=state.blocked_offerings, half_open=state.half_open_offerings
        )
        # Whatever is granted, the limits hold (I5).
        admitted = left.admit(offerings[wanted(machine)[0]], [offerings[key] for key in others]) if others else []
        keys = [one.key for one in admitted]
        if machine.choices:
            # The cloud chooses in a zone as it likes: all that it may choose is admitted, or the zone is not asked.
            cut = {key[3] for key in others if key not in keys}
            keys = [key for key in keys if key[3] not in cut]
        groups[machine.pool, (*wanted(machine), *keys)].append(machine)
    # The time keeps tokens apart where the ledger, and with it the serial number, was lost.
    tokens = [f"gpuscaler-{now:.0f}-{book.serial + number}" for number in range(len(groups))]
    names = {
        machine.id: f"{token}-{place}"
        for token, machines in zip(tokens, groups.values(), strict=True)
        for place, machine in enumerate(machines)
    }
    intents = [
        ledger.Intended(
            Order(token, pool, keys, len(machines), at=now, since=now),
            tuple(
                Coming(
                    id=names[one.id],
                    order=token,
                    offerings=keys,
                    price=one.price_per_hour,
                    asked=now,
                    meant=len(wanted(one)),
                    purpose=one.purpose,
                    pods=one.pods,
                    gang=_gang_of(one.pods, cluster),
                    bought_for=one.pods,
                )
                for one in machines
            ),
        )
        for token, ((pool, keys), machines) in zip(tokens, groups.items(), strict=True)
    ]
    return intents, names


def _gang_of(pods: tuple[str, ...], cluster: Cluster) -> str:
    """The one gang that all of ``pods`` are members of; empty where there is none."""
    known = (cluster.pods.get(key) for key in pods)
    gangs = {pod.gang if pod is not None else "" for pod in known}
    return gangs.pop() if len(gangs) == 1 else ""


def wanted(machine: Machine) -> tuple[Key, ...]:
    """What a machine of a plan may be: one offering, or all that the cloud chooses from, cheapest first."""
    choices = sorted(machine.choices, key=lambda one: (one.price_per_hour, one.instance_type, one.market, one.zone))
    several = tuple((machine.pool, one.market, one.instance_type, one.zone) for one in choices)
    return several or ((machine.pool, machine.market, machine.instance_type, machine.zone),)
