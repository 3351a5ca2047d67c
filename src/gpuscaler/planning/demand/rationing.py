"""The planning budget: estimates the planning work of each pod class, and limits it per namespace and owner where it is too much.

Anyone who may create pods in one namespace writes rules that planning has to evaluate. A plan for all of them must not take so long that
nothing is bought for anyone. So the work is estimated before any is done, by counting rules and never by a clock. Where there is too much
of it, each namespace gets an equal share, and each owner an equal part of that. Simple pods and pods with many rules have separate shares,
so that namespaces full of rules do not shut out pods that cost next to nothing. Shares that are not needed go to the others, and so does
the rest of shares that are too small for any class or gang of their owner. Pods beyond the budget are reported, and planned for once the
pods before them have their machines. Demand with an estimate within the bound is not restricted.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodAffinityTerm, SpreadConstraint
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.demand.pending import Demand, Gang, PodClass

K = TypeVar("K")
H = TypeVar("H", bound=Hashable)
#: Whether an item is more than simple, its namespace, and its owner.
_OwnerKeys: TypeAlias = tuple[bool, str, str]

#: The budget for all demand of one plan, in units of about a microsecond on one core of a 2020s server.
TOTAL = 2_500_000
#: The minimum cost of a class, and the additional cost of each kind of rule. Time and memory grow with the square of the number of
#: different classes: 1,900 take 6 s and 700 MiB, and 1,250 take 3 s and 320 MiB.
CLASS, GANG, GANG_CLASS, WIDE, WIDE_ANTI, HOST, SPREAD, WORD = 2_000, 8_000, 5_000, 4_500, 2_500, 300, 500, 15
#: A class that costs no more than this is simple: requests, tolerations, a spread or a rule about pods on one host.
SIMPLE = 2 * CLASS
#: The seconds after which another of several equal items comes first: an item that cannot be served must not block the others.
TURN_SECONDS = 60.0


@dataclass(frozen=True)
class BudgetCut:
    """Pods that are not planned for now; ``detail`` says what they would have cost, and which budget is used up."""

    keys: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class _Item:
    """A class or a gang, which is planned for completely or not at all."""

    workload: PodClass | Gang
    namespace: str
    owner: str
    units: int
    order: tuple[object, ...]


def ration(
    demand: Demand, cluster: Cluster, now: float, *, first: Set[str] = frozenset(), total: int = TOTAL
) -> tuple[Demand, list[BudgetCut]]:
    """Return the demand that is planned for, and the cuts. Pods in ``first`` come before the others of their owner.

    ``now`` is in seconds since the epoch.
    """
    workloads: tuple[PodClass | Gang, ...] = (*demand.gangs, *demand.classes)
    items = [_item(workload, cluster, first) for workload in workloads]
    if sum(item.units for item in items) <= total:
        return demand, []
    shares = _shares(items, total)
    admitted: set[int] = set()
    waiting: dict[_OwnerKeys, list[_Item]] = {}
    for owner, owned in _grouped(items, _owner_keys).items():
        left = shares[owner]
        for item in _rotated(sorted(owned, key=lambda item: item.order), now):
            if item.units <= left:
                left -= item.units
                admitted.add(id(item.workload))
            else:
                waiting.setdefault(owner, []).append(item)
    spent = sum(item.units for item in items if id(item.workload) in admitted)
    unplanned = _leftovers(waiting, total - spent, now)
    admitted.update(id(item.workload) for owned in waiting.values() for item in owned if id(item.workload) not in unplanned)
    needs = {owner: sum(item.units for item in owned) for owner, owned in _grouped(items, _owner_keys).items()}
    late = (item for owned in waiting.values() for item in owned if id(item.workload) in unplanned)
    cuts = [
        BudgetCut(_pod_keys(item.workload), _cut_detail(item, shares[_owner_keys(item)], needs[_owner_keys(item)], total)) for item in late
    ]
    classes = tuple(pod_class for pod_class in demand.classes if id(pod_class) in admitted)
    return replace(demand, classes=classes, gangs=tuple(gang for gang in demand.gangs if id(gang) in admitted)), cuts


def _leftovers(waiting: Mapping[_OwnerKeys, Sequence[_Item]], left: int, now: float) -> set[int]:
    """Give the ``left`` unspent units to one owner after the other; return the ids of items that are still not planned for."""
    start = int(now // TURN_SECONDS) * 61 % len(waiting) if waiting else 0
    owners = sorted(waiting)
    queues = [waiting[owner] for owner in (*owners[start:], *owners[:start])]
    unplanned: set[int] = set()
    for round_ in range(max(map(len, queues), default=0)):
        for queue in queues:
            if round_ < len(queue) and queue[round_].units <= left:
                left -= queue[round_].units
            elif round_ < len(queue):
                unplanned.add(id(queue[round_].workload))
    return unplanned


def planning_units(workload: PodClass | Gang) -> int:
    """The estimated planning cost of a class or of a complete gang, in units of :data:`TOTAL`."""
    if isinstance(workload, Gang):
        return sum(map(class_units, workload.classes)) + GANG + GANG_CLASS * len(workload.classes)
    return class_units(workload)


def class_units(pod_class: PodClass) -> int:
    """The estimated planning cost of a class, regardless of the rest of the demand."""
    spec = pod_class.spec
    anti = [term for term in spec.anti_affinity if term.topology_key != HOSTNAME]
    units = CLASS + (WIDE if any(term.topology_key != HOSTNAME for term in spec.affinity) else 0) + (WIDE_ANTI if anti else 0)
    units += HOST * (len(spec.affinity) + len(spec.anti_affinity)) + SPREAD * len(spec.spread)
    units += WORD * (len(spec.host_ports) + len(spec.tolerations) + len(spec.requests) + len(spec.preferred_nodes))
    units += WORD * (len(spec.preferred_affinity) + len(spec.preferred_anti_affinity))
    units += WORD * (sum(map(_selector_words, (*spec.affinity, *spec.anti_affinity))) + sum(map(_selector_words, spec.spread)))
    terms = spec.node_affinity.terms if spec.node_affinity is not None else ()
    return units + WORD * sum(1 + len(requirement.values) for term in terms for requirement in (*term.expressions, *term.fields))


def _selector_words(rule: PodAffinityTerm | SpreadConstraint) -> int:
    """The size of a rule's selector beyond one label, in words."""
    requirements = rule.selector.requirements if rule.selector is not None else ()
    return max(0, sum(1 + len(requirement.values) for requirement in requirements) - 2)


def _item(workload: PodClass | Gang, cluster: Cluster, first: Set[str]) -> _Item:
    classes = workload.classes if isinstance(workload, Gang) else (workload,)
    keys = _pod_keys(workload)
    pod = cluster.pods.get(keys[0]) if keys else None
    # Pods without an owner share the owner "".
    owner = (pod.owner.uid or pod.owner.name) if pod is not None else ""
    spec = classes[0].spec
    behind = first.isdisjoint(keys)
    return _Item(
        workload,
        spec.namespace,
        owner,
        planning_units(workload),
        (behind, -max(pod_class.spec.priority for pod_class in classes), not isinstance(workload, Gang)),
    )


def _pod_keys(workload: PodClass | Gang) -> tuple[str, ...]:
    return tuple(key for pod_class in workload.classes for key in pod_class.keys) if isinstance(workload, Gang) else workload.keys


def _grouped(items: Iterable[_Item], key: Callable[[_Item], K]) -> dict[K, list[_Item]]:
    groups: dict[K, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _owner_keys(item: _Item) -> _OwnerKeys:
    return item.units > SIMPLE, item.namespace, item.owner


def _shares(items: Sequence[_Item], total: int, depth: int = 0) -> dict[_OwnerKeys, int]:
    """The shares of ``total`` of each owner, for simple pods and for others, level by level of :data:`_OwnerKeys`."""
    parts = _grouped(items, lambda item: _owner_keys(item)[depth])
    shares = fair_shares({part: sum(item.units for item in owned) for part, owned in parts.items()}, total)
    if depth == len(_owner_keys(items[0])) - 1:
        return {_owner_keys(owned[0]): shares[part] for part, owned in parts.items()}
    return {owner: share for part, owned in parts.items() for owner, share in _shares(owned, shares[part], depth + 1).items()}


def fair_shares(needs: Mapping[H, int], total: int) -> dict[H, int]:
    """Fair shares of ``total``: each gets what it needs, or an equal share with all others that need more."""
    shares: dict[H, int] = {}
    left = total
    for place, (name, need) in enumerate(sorted(needs.items(), key=lambda entry: (entry[1], entry[0]))):
        shares[name] = min(need, left // (len(needs) - place))
        left -= shares[name]
    return shares


def _rotated(items: Sequence[_Item], now: float) -> list[_Item]:
    """``items``, sorted by order; among equal ones, the first changes every ``TURN_SECONDS``."""
    rotated: list[_Item] = []
    for alike in _grouped(items, lambda item: item.order).values():
        start = int(now // TURN_SECONDS) * 61 % len(alike)
        rotated += alike[start:] + alike[:start]
    return rotated


def _cut_detail(item: _Item, share: int, needs: int, total: int) -> str:
    if item.units > total:
        return (
            f"planning for it takes {item.units} units of work, more than the {total} of one plan, so it is not planned for while "
            f"other pods are pending; use fewer different pods, or fewer rules"
        )
    return (
        f"planning budget of namespace {item.namespace} used up: the rules of its pods of one owner take {needs} units of work, and "
        f"their share of this plan is {share}; it is planned for once the pods before it have their machines; use fewer "
        f"different pods, or fewer rules"
    )
