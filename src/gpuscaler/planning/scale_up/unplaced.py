"""Reasons that a pod was not placed: one per pool, for the offering that comes closest to fitting."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from gpuscaler.model.accelerators import ACCELERATORS, is_device
from gpuscaler.model.pods import PodSpec, Resources
from gpuscaler.model.pools import Offering, Policy, Pool, is_scattered
from gpuscaler.model.table import Mask
from gpuscaler.model.well_known import ARCH
from gpuscaler.planning.capacity.node_templates import admits_arch
from gpuscaler.planning.demand.deadlines import SPOT
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.rationing import BudgetCut
from gpuscaler.planning.demand.topology import without_hosts
from gpuscaler.planning.feasibility.min_gpus import FOR_GPUS, MIN_GPUS, explain_min_gpus
from gpuscaler.planning.plans import EXCLUSIONS, PERMANENT_EXCLUSIONS, Reason, Unplaced
from gpuscaler.planning.scale_up.draft.draft import PlanDraft, Queue, in_market, open_to_pods
from gpuscaler.planning.scale_up.gangs import UnplacedGang
from gpuscaler.planning.scale_up.markets import HURRY
from gpuscaler.planning.scale_up.suggestions import Suggestions

#: The word of :data:`~gpuscaler.planning.plans.EXCLUSIONS` for each filter of kube-scheduler.
WORDS: Mapping[str, str] = {
    "NodeUnschedulable": "selector",
    "NodeName": "selector",
    "NodeAffinity": "affinity",
    "TaintToleration": "taint",
    "NodePorts": "port",
    "NodeResourcesFit": "resource",
    "VolumeRestrictions": "volume",
    "NodeVolumeLimits": "volume",
    "VolumeBinding": "volume",
    "VolumeZone": "volume",
    "PodTopologySpread": "topology",
    "InterPodAffinity": "topology",
    MIN_GPUS: "taint",
    FOR_GPUS: "taint",
}


#: Exclusions by the number of GPUs that pods request, which apply to whole pools.
GPU_RULES = (MIN_GPUS, FOR_GPUS)
#: Exclusions that may not apply to another type or in another zone of the pool.
PER_OFFERING = PERMANENT_EXCLUSIONS | {"volume", "topology"}


def exclusion_reasons(
    draft: PlanDraft, pod_class: PodClass, pools: Sequence[Pool], suggestions: Suggestions, *, gang: str = ""
) -> tuple[Reason, ...]:
    """One reason per pool, in the order of the pools, for the offering closest to fitting. ``gang`` is what a gang lacks."""
    rows: dict[str, list[int]] = {pool.name: [] for pool in pools}
    for row, pool in enumerate(draft.templates.pools):
        rows[pool.name].append(row)
    stages = checks_of(draft, pod_class)
    first = np.full(len(draft.templates.nodes), len(stages))
    for place, (_, passes) in reversed(list(enumerate(stages))):
        first[~passes] = place
    buyable = {kind.pool.name for kind in draft.templates.kinds}
    reasons = []
    for pool in pools:
        if not rows[pool.name]:
            reasons.append(Reason(pool.name, "market", refusal_of(draft, pool)))
            continue
        # Where the cloud chooses, all offerings of a set must fit, so the first that does not gives the reason for the set.
        order = lambda r: (first[r], nearness(draft, r, fits=first[r] == len(stages)), -r)  # noqa: E731
        row = max((min(set_rows, key=order) for set_rows in purchase_sets(draft, pool, rows[pool.name])), key=order)
        word = stages[first[row]][0] if first[row] < len(stages) else ""
        if not word and pool.name not in buyable:
            reasons.append(Reason(pool.name, "market", refusal_of(draft, pool)))
            continue
        excluded_by, detail = explain_exclusion(draft, pod_class, row, suggestions, word=word, gang=gang)
        fitting = {draft.templates.offerings[r].zone for r in rows[pool.name] if first[r] == len(stages)}
        advice = zone_advice(pool, pod_class, fitting, gang=gang)
        if excluded_by in PER_OFFERING and word not in GPU_RULES and (elsewhere := pause_reason(draft, pod_class, pool)):
            excluded_by, advice = "market", f"{advice}; {elsewhere}"
        reasons.append(Reason(pool.name, excluded_by, detail + advice))
    return tuple(reasons)


def nearness(draft: PlanDraft, row: int, *, fits: bool) -> tuple[int, ...]:
    """Sort key: how close a template is to fitting. If none fits: the largest; if a limit excludes them: the smallest that ``fits``."""
    size = draft.templates.sizes[row]
    return tuple(-amount for amount in size) if fits else size


def pause_reason(draft: PlanDraft, pod_class: PodClass, pool: Pool) -> str:
    """Why an offering of ``pool`` that suits the pod by itself cannot be bought now; empty where there is no such offering."""
    for offering in draft.templates.blocked.get(pool.name, ()):
        if suits(pool, offering, pod_class):
            return f"{offering.instance_type} in {offering.zone}: {draft.trouble(offering.key) or 'it cannot be bought now'}"
    return ""


def suits(pool: Pool, offering: Offering, pod_class: PodClass) -> bool:
    """Whether an empty machine of ``offering`` would hold a pod by its labels, taints, size, architecture and market."""
    spec, arch = pod_class.spec, offering.labels.get(ARCH, "amd64")
    wanted = pod_class.options.market
    return (
        offering.admits(spec)
        and all(offering.allocatable.get(resource, 0) >= amount for resource, amount in spec.requests.items())
        and (arch in ("amd64", pool.arch) or admits_arch(spec))
        and (not wanted or "any" in wanted or offering.market in wanted)
    )


def purchase_sets(draft: PlanDraft, pool: Pool, rows: Sequence[int]) -> list[list[int]]:
    """The templates of ``pool`` grouped by what a purchase can name: each alone, all of them, or those of each zone."""
    if pool.chooser != "cloud":
        return [[row] for row in rows]
    by_zone: dict[str, list[int]] = {}
    for row in rows:
        by_zone.setdefault(draft.templates.offerings[row].zone if pool.names_zone else "", []).append(row)
    return list(by_zone.values())


def zone_advice(pool: Pool, pod_class: PodClass, fitting: Set[str], *, gang: str) -> str:
    """Advice where the cloud chooses the zone of machines of ``pool`` and the pod fits only in the ``fitting`` zones; else empty."""
    if not is_scattered(pool) or not fitting:
        return ""
    zones = sorted({offering.zone for offering in pool.offerings})
    if fitting != set(zones):
        needed = f"the pod fits only in {' or '.join(sorted(fitting))}"
    elif gang and pod_class.options.gang_topology != "any":
        needed = "a gang goes to one zone"
    else:
        return ""
    return f"; the cloud chooses among {', '.join(zones)} for each machine of this pool, and {needed}: make one pool per zone"


def refusal_of(draft: PlanDraft, pool: Pool) -> str:
    """Why no offering of ``pool`` can be bought now: the reason of the cheapest one that has a reason."""
    if all(offering.retired for offering in pool.offerings):
        return "no offering of this pool is sold any more"
    troubles = [
        trouble for offering in sorted(pool.offerings, key=lambda offering: offering.price) if (trouble := draft.trouble(offering.key))
    ]
    why = f": {troubles[0]}" if troubles else ""
    return f"no offering of this pool can be bought now{why}"


def checks_of(draft: PlanDraft, pod_class: PodClass) -> list[tuple[str, Mask]]:
    """The checks that a pod must pass on each template, most static first: (name of the filter or our word, templates that pass)."""
    passes = {
        name: mask[draft.template_rows] for name, mask in draft.room.verdict(without_hosts(pod_class.spec), pod_class.labels).passes.items()
    }
    own_checks = {"resource": draft.templates.holds_one(pod_class.spec), "market": in_market(draft.templates, pod_class)}
    if draft.templates.for_gpus is not None:
        own_checks[FOR_GPUS] = open_to_pods(draft.templates, pod_class)
    if not admits_arch(pod_class.spec):
        own_checks["architecture"] = ~draft.templates.foreign_arch
    named = [(WORDS.get(name, name), name, mask) for name, mask in (passes | own_checks).items()]
    return [(name, mask) for _, name, mask in sorted(named, key=lambda entry: EXCLUSIONS.index(entry[0]))]


def explain_exclusion(
    draft: PlanDraft, pod_class: PodClass, row: int, suggestions: Suggestions, *, word: str, gang: str
) -> tuple[str, str]:
    """The exclusion of one template as (word, detail). ``word`` is the first check that it failed, empty when it failed none."""
    offering = draft.templates.offerings[row]
    place = f"{offering.instance_type} in {offering.zone}" if offering.zone else offering.instance_type
    if word == "architecture":
        return word, f"{place} is {offering.labels[ARCH]}; the pod has no selector or affinity on {ARCH} that admits it"
    if word in ("resource", "NodeResourcesFit"):
        return "resource", f"{place}: {shortage(draft, pod_class, row, suggestions)}"
    if word == "market" and offering.market == SPOT and pod_class.market_because == HURRY:
        return word, f"{place} was not granted recently and is not tried now: {HURRY}"
    if word == "market" and offering.key in pod_class.paused:
        return word, f"{place}: the last machines bought for these pods did not get them scheduled; paused for these pods"
    if word == "market":
        because = f": {pod_class.market_because}" if pod_class.market_because else ""
        if draft.templates.pools[row].divides and not because:
            because = "; the cloud divides the machines of this pool between markets: make one pool per market"
        return word, f"{place} is {offering.market}; the pod wants {', '.join(pod_class.options.market)}{because}"
    if word in GPU_RULES:
        return WORDS[word], f"{place} {explain_gpu_rule(draft, pod_class.spec, row, suggestions, word=word)}"
    if word:
        _, detail = draft.room.reason(without_hosts(pod_class.spec), pod_class.labels, draft.first_template + row)
        # The name of a machine is known once it exists; the template's name is internal.
        detail = detail.replace(draft.templates.nodes[row].name, "(a new name)")
        if word == "NodeAffinity":
            return selector_word(draft, pod_class, row), f"{place}: {detail}{suggestions.for_selector(pod_class.spec, offering.pool)}"
        misnamed = suggestions.for_resources(pod_class.spec) if word == "TaintToleration" else ""
        return WORDS[word], f"{place}: {detail}{misnamed}"
    if gang:
        return "gang", gang
    used_up = used_up_limit(draft, row)
    near_others = pod_class.spec.affinity or pod_class.spec.anti_affinity or any(constraint.hard for constraint in pod_class.spec.spread)
    if near_others and not used_up:
        return "topology", f"{place}: affinity or topology spread admits no more pods of this class"
    return "limit", used_up or f"{place}: more pods were pending than the limits admit"


def explain_gpu_rule(draft: PlanDraft, spec: PodSpec, row: int, suggestions: Suggestions, *, word: str) -> str:
    """Why the machines of a pool are kept for pods that request more GPUs than a pod of ``spec``."""
    pool = draft.templates.pools[row]
    misnamed = suggestions.for_resources(spec)
    if word == MIN_GPUS:
        return f"{explain_min_gpus(spec, pool.min_gpus_per_pod)}{misnamed}"
    advice = misnamed or f"; set min_gpus_per_pod: 0 on pool {pool.name} to buy it for other pods, too"
    return f"is bought only for pods that request GPUs, and the pod requests none{advice}"


def selector_word(draft: PlanDraft, pod_class: PodClass, row: int) -> str:
    """Whether a plain node selector or node affinity excludes a template, as a word of ``EXCLUSIONS``."""
    labels = draft.templates.nodes[row].labels
    return "selector" if any(labels.get(key) != value for key, value in pod_class.spec.node_selector) else "affinity"


def shortage(draft: PlanDraft, pod_class: PodClass, row: int, suggestions: Suggestions) -> str:
    """The resource that an empty machine lacks for one pod, accelerators first, with both amounts; empty when the pod fits."""
    room = draft.templates.nodes[row].allocatable
    whole = draft.templates.offerings[row].allocatable
    for resource, amount in sorted({**pod_class.spec.requests, "pods": 1}.items(), key=lambda entry: (not is_device(entry[0]), entry)):
        if room.get(resource, 0) < amount:
            taken = whole.get(resource, 0) - room.get(resource, 0)
            daemons = f" ({format_resource(resource, taken)} go to DaemonSets)" if taken else ""
            has = format_resource(resource, room.get(resource, 0))
            requested = f"{format_resource(resource, amount)} {resource} requested"
            advice = suggestions.for_resource(resource) or _parts_advice(resource, whole)
            return f"{requested}, an empty machine has {has}{daemons}{advice}"
    return ""


def _parts_advice(resource: str, whole: Resources) -> str:
    """Advice where divided or shared accelerators are requested, which are unknown before a machine of the pool is a node; else empty."""
    if resource in ACCELERATORS or not is_device(resource) or whole.get(resource):
        return ""
    return "; if its nodes divide their accelerators like this, declare it in the pool's resources, or with a tag of the pool in the cloud"


def used_up_limit(draft: PlanDraft, row: int) -> str:
    """Which limit is used up for an offering; empty when none is."""
    offering, left = draft.templates.offerings[row], draft.remaining
    gpus = offering.gpus
    if left.held:
        return left.held
    if left.pools.get(offering.pool) == 0:
        return f"pool {offering.pool} is at its maximum"
    if offering.count is not None and left.spent.get(offering.key, 0) >= offering.count:
        return f"only {offering.count} {offering.instance_type} can be bought, and all are taken"
    if left.machines == 0:
        return "the limit on machines is reached (limits.machines or machines_per_minute)"
    if left.gpus is not None and gpus > left.gpus:
        return f"{offering.instance_type} has {gpus} GPU{'s' if gpus != 1 else ''}, the limit leaves {left.gpus} (limits.gpus)"
    if left.dollars_per_hour is not None and offering.price > left.dollars_per_hour + 1e-9:
        money = f"${offering.price:.2f}/h, the limit leaves ${left.dollars_per_hour:.2f}/h"
        source = "the default, because no limits are set" if left.assumed else "limits.dollars_per_hour"
        return f"{offering.instance_type} costs {money} ({source})"
    return ""


def format_resource(resource: str, amount: int) -> str:
    """Format an amount for people: cores, GiB, or a count."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{amount / 2**30:.4g}Gi"
    return str(amount)


def pods_over_budget(cuts: Iterable[BudgetCut], policy: Policy) -> Iterator[Unplaced]:
    """Every pod that was not planned for because the planning budget of its namespace or owner is used up."""
    for cut in cuts:
        why = tuple(Reason(pool.name, "budget", cut.detail) for pool in policy.pools)
        yield from (Unplaced(key, why) for key in cut.keys)


def unplaced_pods(draft: PlanDraft, queues: Sequence[Queue], refused: Sequence[UnplacedGang], policy: Policy) -> tuple[Unplaced, ...]:
    """Every unplaced pod, with the reasons of its class."""
    unplaced: list[Unplaced] = []
    # A pod is unplaced for other reasons than the size of machines of closed pools.
    draft.set_any_size(allowed=True)
    suggestions = Suggestions(draft)
    for queue in queues:
        if queue.left:
            why = exclusion_reasons(draft, queue.pod_class, policy.pools, suggestions)
            unplaced += [Unplaced(key, why) for key in queue.pod_class.keys[queue.taken :]]
    for entry in refused:
        for pod_class in entry.gang.classes:
            why = exclusion_reasons(draft, pod_class, policy.pools, suggestions, gang=entry.detail)
            unplaced += [Unplaced(key, why) for key in pod_class.keys]
    return tuple(sorted(unplaced, key=lambda entry: entry.pod))
