"""What a look at the cluster and at the cloud's list changes in the memory, and what is to be done now.

:func:`look` does nothing by itself: what it says is written down first, then acted on.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle import interruptions, scale_in_protection, termination
from gpuscaler.lifecycle.actions import Act
from gpuscaler.lifecycle.interruptions import Remark
from gpuscaler.lifecycle.memory import Memory, vanishing
from gpuscaler.lifecycle.node_health import refusing_nodes, unready
from gpuscaler.lifecycle.node_marks.kept_taint import keep
from gpuscaler.lifecycle.node_marks.pool_label import labels_due
from gpuscaler.lifecycle.node_marks.soft_taints import discourage
from gpuscaler.lifecycle.observed.machine_index import Roll, Rolls, Unpooled
from gpuscaler.lifecycle.observed.promised_pods import crowded
from gpuscaler.lifecycle.registration.group_launches import owed, owing
from gpuscaler.lifecycle.registration.learning import observed
from gpuscaler.lifecycle.registration.steps import Arrivals, Waits, arrivals
from gpuscaler.lifecycle.registration.undescribed import unfamiliar
from gpuscaler.lifecycle.registration.unregistered import adopted
from gpuscaler.lifecycle.released_pools import LetGo, encourage, let_go
from gpuscaler.lifecycle.steering import rejected_pods, steering, windows
from gpuscaler.lifecycle.steering.binding import Refused, unbinding
from gpuscaler.lifecycle.steering.rejected_pods import TurnedAway
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.holds import BUYING, REMOVING, Holds
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import (
    Upcoming,
    boot_times,
    breakers,
    failed_removals,
    futile_purchases,
    idle_clocks,
    learned_templates,
    node_refusals,
    offering_events,
    promises,
)
from gpuscaler.planning.state.breaker_messages import told
from gpuscaler.planning.state.failed_removals import Sparing
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import SKEW_SECONDS
from gpuscaler.planning.state.ledger.ledger import Coming, Ledger, Order, Withdrawal

#: An order whose answer was lost is sent again this often, in seconds.
RESEND_SECONDS = 5.0
#: A withdrawal that the cloud has not confirmed is sent again after so long, ever more rarely up to the second, in seconds.
WITHDRAW_SECONDS, WITHDRAW_MOST = 15.0, 600.0
#: Where people look for what keeps machines from coming up.
LOOK: Mapping[str, str] = {
    offering_events.FRUITLESS: "see why its pods do not come to its nodes: gpuscaler why pod, and the scheduler's Events on them",
    offering_events.ABSENT: "look at how its machines join the cluster: their image, network and permissions",
    offering_events.LACKING: (
        "look at the device plugin and its pods on a node of the pool: whether they run there, and which resources they name"
    ),
}


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
    refused: tuple[node_refusals.Refused, ...] = ()
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
        breakers=_folded(memory.breakers, (*taken.fates, *interruptions.reclaimed((one.key for one in gone), now))),
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
    avoided = reduce(node_refusals.step, (*refused, *wheel.suspected), memory.refusals)
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
            clocks=idle_clocks.step(memory.clocks, idle_clocks.Observed(rolls.idle(cluster, now), now)),
            spared=_spared(memory.spared, departure, roll, now),
        )
    book, withdrawals, doubtful = _sent_again(book, facts, now)
    there = roll.listed.alive.keys() | roll.by_machine.keys()
    ended = {one.id for one in roll.listed.ended}
    tried, verdicts = futile_purchases.judged(
        memory.efforts, futile_purchases.left(found_coming, book, there, now, ended=ended), cluster.pods, now
    )
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
        refused=tuple(one for one in refused if isinstance(one, node_refusals.Refused)),
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


def is_urgent(seen: Look, before: Memory, crowded: Set[str]) -> bool:
    """Whether a look found something that a plan is to answer at once.

    ``before`` is what was remembered, ``crowded`` were the machines that the last look found crowded.
    """
    failed = offering_events.Failed | offering_events.Lacking | offering_events.Reclaimed
    return (
        any(isinstance(fate, failed) for fate in seen.arrivals.fates)
        or bool(seen.kept or seen.refused or seen.stray or seen.unfit or seen.turned_away)
        # Whose machine others came to first is planned for anew, before it opens.
        or bool(seen.crowded - crowded)
        # What a removal that has ended makes room for need not wait for the next resync.
        or len(seen.memory.ledger.leaving) < len(before.ledger.leaving)
        # What replaces a machine that is about to vanish is asked for before its pods are evicted.
        or bool(vanishing(seen.memory) - vanishing(before))
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


def _folded(known: breakers.Breakers, fates: Iterable[offering_events.Event]) -> breakers.Breakers:
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
        known = failed_removals.step(known, one)
    return failed_removals.remaining(known, roll.by_machine, now) if known.nodes else known


def _seen(known: boot_times.Boots, arrived: Iterable[boot_times.Arrived]) -> boot_times.Boots:
    for one in arrived:
        known = boot_times.step(known, one)
    return known


def _lessons(known: learned_templates.Learned, book: Ledger, found: Arrivals, cluster: Cluster, now: float) -> learned_templates.Learned:
    """What the nodes that became ready offer in truth."""
    ready = {step.machine for step in found.steps if isinstance(step, ledger.Ready)}
    for one in book.coming:
        if one.id in ready and one.node in cluster.nodes:
            known = learned_templates.step(known, learned_templates.Seen(one.key, now, cluster.nodes[one.node].allocatable))
    return known
