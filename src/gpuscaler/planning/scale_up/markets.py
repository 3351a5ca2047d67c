"""Which markets and offerings may be bought for a pending pod now.

This depends on its wait for spot, its deadline, refusals of spot while it waited, and machines that were bought for it and did not get
it scheduled. It restricts purchases only: existing machines of any market take any pod that fits, except the nodes that refused it.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain

from msgspec.structs import replace as replace_struct

from gpuscaler.model.offerings import MARKETS, OfferingKey
from gpuscaler.model.pods import Pod, PodOptions, PodSpec
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm, Requirement
from gpuscaler.planning.demand.deadlines import ON_DEMAND, PATIENCE, SPOT, Job, choose_market
from gpuscaler.planning.demand.pending import Demand, PodClass
from gpuscaler.planning.scale_up.draft.draft import PlanDraft, usable_templates
from gpuscaler.planning.state import State
from gpuscaler.planning.state.offering_events import Changed

#: The time from ordering a machine until the pod works on it, for plans that must hold: the default time limit for registration, after
#: which another machine is ordered.
CHANGEOVER_SECONDS = 900.0
#: The longest time until a decision to wait is reviewed. A decision for spot stands until its machine is ready, which takes one changeover.
STEP_SECONDS = 60.0
#: The minimum time for which a gang tries spot. All of it goes to one zone and one GPU product, so one request cannot name every zone and
#: product, and each one without capacity costs one answer. On-demand would cost extra for many machines, mostly for a long time.
GANG_SECONDS = 30.0

#: Markets, and the reason that they differ from the pod's own annotation; empty when they do not.
AllowedMarkets = tuple[tuple[str, ...], str]


def restrict_to_markets(draft: PlanDraft, demand: Demand, policy: Policy, state: State, now: float) -> Demand:
    """The demand restricted to the markets that may be bought for each pod at ``now``; a class whose pods differ in this is split."""
    all_classes = chain(demand.classes, *(gang.classes for gang in demand.gangs))
    hurries = state.skip_untried_spot_since is not None
    restless = hurries or any(c.options.spot_wait is not None or c.options.deadline is not None for c in all_classes)
    if not (restless or state.paused_offerings or state.refusing):
        return demand
    spot = frozenset(offering.key for offering in policy.offerings.values() if offering.market == SPOT and not offering.retired)
    has_spot, untried = bool(spot), spot - state.proven_offerings

    def is_plain(pod_class: PodClass) -> bool:
        return not has_spot or not (hurries or pod_class.options.spot_wait is not None or pod_class.options.deadline is not None)

    def split(pod_class: PodClass, gang_since: float | None = None) -> list[PodClass]:
        if pod_class.spec.digest in state.paused_offerings:
            pod_class = replace(pod_class, paused=state.paused_offerings[pod_class.spec.digest])
        if pod_class.spec.digest in state.refusing:
            pod_class = replace(pod_class, spec=exclude_nodes(pod_class.spec, state.refusing[pod_class.spec.digest]))
        if is_plain(pod_class):
            return [pod_class]
        pods, done = draft.cluster.pods, state.progress

        def markets_of(key: str) -> AllowedMarkets:
            skip_untried_since = state.skip_untried_spot_since if gang_since is None or now >= gang_since + GANG_SECONDS else None
            return allowed_markets(
                pod_class.options, waiting_since(pods[key], gang_since), skip_untried_since, now, done=done.get(key, 0.0)
            )

        return split_by_market(pod_class, markets_of, draft, untried)

    gangs = []
    for gang in demand.gangs:
        # Members are placed together, so the one that waited longest decides for all.
        first = min(waiting_since(draft.cluster.pods[key]) for pod_class in gang.classes for key in pod_class.keys)
        gangs.append(replace(gang, classes=tuple(part for pod_class in gang.classes for part in split(pod_class, first))))
    classes = [part for pod_class in demand.classes for part in split(pod_class)]
    return replace(demand, classes=tuple(sorted(classes, key=lambda pod_class: pod_class.order)), gangs=tuple(gangs))


def waiting_since(pod: Pod, gang_since: float | None = None) -> float:
    """When the pod, or its gang if given, became unschedulable; the creation time if this is unknown."""
    return gang_since if gang_since is not None else pod.unschedulable_since or pod.created


def split_by_market(
    pod_class: PodClass, markets_of: Callable[[str], AllowedMarkets], draft: PlanDraft, untried: frozenset[OfferingKey]
) -> list[PodClass]:
    """The pods of a class, split by the markets that may be bought for them now.

    A pod that should hurry is not planned onto ``untried`` spot offerings, and takes recently granted spot where that fits. Where
    neither such spot nor on-demand fits, its markets stay as they were.
    """
    groups: dict[AllowedMarkets, list[str]] = {}
    for key in pod_class.keys:
        groups.setdefault(markets_of(key), []).append(key)
    parts: list[PodClass] = []
    for (markets, why), keys in sorted(groups.items()):
        part = replace(pod_class, keys=tuple(keys), announced=0 if parts else pod_class.announced)
        if markets != pod_class.options.market:
            changed = replace(part, options=replace_struct(pod_class.options, market=markets), market_because=why)
            if why == HURRY:
                sure = replace(part, paused=part.paused | untried, market_because=HURRY)
                only_spot = replace(sure, options=replace_struct(pod_class.options, market=(SPOT,)))
                changed = sure if can_be_bought(draft, only_spot) else changed if can_be_bought(draft, changed) else part
            part = changed
        parts.append(part)
    return parts


def can_be_bought(draft: PlanDraft, pod_class: PodClass) -> bool:
    """Whether a pod of the class fits on an empty machine that may be ordered now and that the limits admit."""
    rows = usable_templates(draft.templates, pod_class) & draft.room.static_mask(pod_class.spec)[draft.template_rows]
    kinds = draft.templates.kinds_within(rows)
    return any(
        is_usable and draft.remaining.admitted_count(kind, 1) > 0
        for kind, is_usable in zip(draft.templates.kinds, kinds.tolist(), strict=True)
    )


HURRY = "spot was refused while the pod was waiting"


def allowed_markets(
    options: PodOptions, since: float, skip_untried_since: float | None, now: float, *, done: float = 0.0
) -> AllowedMarkets:
    """The markets that may be bought for a pod that has been pending since the time ``since``, in the order of ``MARKETS``.

    If the pod has been pending since ``skip_untried_since`` or longer, spot is left out. ``done`` is the part of its work, in seconds, that
    it does not have to repeat.
    """
    allowed = set(options.market) or set(MARKETS)
    why = ""
    if options.deadline is not None:
        safe_markets, reason = markets_for_deadline(options, now, done=done)
        # Where none of the pod's own markets is safe, they are used nevertheless.
        if allowed & safe_markets and allowed - safe_markets:
            allowed, why = allowed & safe_markets, reason
    if {SPOT, ON_DEMAND} <= allowed:
        if options.spot_wait is not None and now < since + options.spot_wait:
            allowed.discard(ON_DEMAND)
            why = f"the pod waits for spot until {format_clock(since + options.spot_wait)} (gpuscaler.io/spot-wait)"
        elif skip_untried_since is not None and since <= skip_untried_since:
            allowed.discard(SPOT)
            why = HURRY
    return (tuple(market for market in MARKETS if market in allowed), why) if why else (options.market, "")


def markets_for_deadline(options: PodOptions, now: float, *, done: float) -> tuple[set[str], str]:
    """The markets that keep the deadline of ``options``, and the reason to report. Reserved machines always keep it."""
    job = deadline_job(options, now, done=done)
    if job is None:
        return {"reserved", ON_DEMAND}, "it has a deadline but no gpuscaler.io/expected-duration, so its spare time is unknown"
    if choose_market(job) != SPOT:
        return {"reserved", ON_DEMAND}, f"its deadline at {format_clock(options.deadline or 0.0)} leaves no time for a reclaim"
    if choose_market(replace_struct(job, spot=False, step=STEP_SECONDS)) == ON_DEMAND:
        return set(MARKETS), ""
    return {"reserved", SPOT}, f"its deadline at {format_clock(options.deadline or 0.0)} leaves time to wait for spot"


def deadline_job(options: PodOptions, now: float, *, done: float) -> Job | None:
    """A pending pod with a deadline as a job with ``done`` seconds done and spot available; None without an expected duration.

    Without ``gpuscaler.io/restart-cost`` a reclaim is assumed to lose all the work that the pod does from now on.
    """
    total, end = options.expected_duration, options.deadline
    if total is None or end is None:
        return None
    work, left = max(0.0, total - done), end - now
    loss = work if options.restart_cost is None else min(work, options.restart_cost)
    return Job(total, left, work, left, CHANGEOVER_SECONDS, CHANGEOVER_SECONDS, spot=True, loss=loss)


def next_market_change(pods: Iterable[Pod], now: float, progress: Mapping[str, float] | None = None) -> float | None:
    """The first moment after ``now`` at which the markets of a pending pod change only because time passes, or None.

    ``progress`` is the same as in :class:`~gpuscaler.planning.state.State`.
    """
    done = progress or {}
    moments = [moment for pod in pods for moment in market_changes(pod, done.get(pod.key, 0.0)) if moment > now]
    return min(moments, default=None)


def market_changes(pod: Pod, done: float) -> list[float]:
    """The moments at which the markets of a pending pod change: its wait for spot ends, its patience ends, spot is no longer safe."""
    options = pod.options
    moments = [] if options.spot_wait is None else [waiting_since(pod) + options.spot_wait]
    job = deadline_job(options, 0.0, done=done)
    if job is not None:
        latest = job.left - job.work - job.loss
        moments += [latest - PATIENCE * job.work, latest - job.changeover - job.step]
    # Slightly later, because at these moments the earlier answer still holds.
    return [moment + 0.001 for moment in moments]


def changed_pools(before: Policy, after: Policy, now: float) -> tuple[Changed, ...]:
    """The pools that differ ``after``, or all pools if anything else differs. Prices and stocks do not count: they resolve no failure."""
    if replace_struct(before, pools=()) != replace_struct(after, pools=()):
        return (Changed(now),)
    pools = {pool.name: configuration_of(pool) for pool in before.pools}
    return tuple(Changed(now, pool.name) for pool in after.pools if pool.name in pools and configuration_of(pool) != pools[pool.name])


def configuration_of(pool: Pool) -> Pool:
    """``pool`` without its prices, counts and priority."""
    sold = (offering for offering in pool.offerings if not offering.retired)
    return replace_struct(pool, priority=0, offerings=tuple(replace_struct(offering, price=0.0, count=None) for offering in sold))


def format_clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def exclude_nodes(spec: PodSpec, nodes: Set[str]) -> PodSpec:
    """``spec`` with ``nodes`` excluded, by a requirement that kube-scheduler would understand, and with its own digest."""
    names = sorted(nodes)
    fields = tuple(Requirement("metadata.name", "NotIn", (name,)) for name in names)
    if spec.node_affinity is None:
        terms: tuple[NodeSelectorTerm, ...] = (NodeSelectorTerm(fields=fields),)
    else:
        # A term without any requirement matches no node; with the new fields it would match some.
        terms = tuple(
            replace_struct(term, fields=(*term.fields, *fields)) for term in spec.node_affinity.terms if term.expressions or term.fields
        )
    mark = sha256("\n".join(names).encode()).hexdigest()[:12]
    return replace_struct(spec, digest=f"{spec.digest}:avoids-{mark}", node_affinity=NodeSelector(terms))
