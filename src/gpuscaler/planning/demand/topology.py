"""Constraints of a pod class that depend on other pods, and their scale: one machine, or a larger domain such as a zone."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodAffinityTerm, PodSpec, SpreadConstraint
from gpuscaler.model.selector_index import LabelIndex
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.demand.pending import PodClass, covers
from gpuscaler.planning.mix.problem import SharedCap


def selects(cluster: Cluster, term: PodAffinityTerm, pod_class: PodClass) -> bool:
    """Whether an affinity term matches the pods of ``pod_class``."""
    return term.selector is not None and term.selector.matches(pod_class.labels) and covers(term, pod_class.spec.namespace, cluster)


def spreads_over(constraint: SpreadConstraint, owner: PodClass, pod_class: PodClass) -> bool:
    """Whether a spread constraint of ``owner`` counts the pods of ``pod_class``: those of its own namespace that its selector matches."""
    return (
        constraint.selector is not None
        and owner.spec.namespace == pod_class.spec.namespace
        and constraint.selector.matches(pod_class.labels)
    )


@dataclass(frozen=True)
class Shape:
    """The hard topology constraints of one class, sorted by how they must be met.

    ``wide_*`` concern domains larger than a machine, ``host_*`` single machines. ``self_*`` has only constraints that count the class
    itself, so that placing one of its pods changes where the next may go. ``by_host`` says that it has rules about the pods that share
    a machine. ``per_host`` is the number of its pods that its own rules allow on a bought machine; None without such rules.
    """

    wide_affinity: tuple[PodAffinityTerm, ...]
    host_affinity: tuple[PodAffinityTerm, ...]
    self_wide_anti: tuple[PodAffinityTerm, ...]
    host_anti: tuple[PodAffinityTerm, ...]
    self_wide_spread: tuple[SpreadConstraint, ...]
    host_spread: tuple[SpreadConstraint, ...]
    wide: bool
    by_host: bool
    per_host: int | None

    @property
    def moves_domains(self) -> bool:
        """Whether placing one pod changes which domains the next may use."""
        return bool(self.wide_affinity or self.self_wide_anti or self.self_wide_spread)


def shape(cluster: Cluster, pod_class: PodClass) -> Shape:
    spec = pod_class.spec
    hard = tuple(constraint for constraint in spec.spread if constraint.hard)
    wide_anti = tuple(term for term in spec.anti_affinity if term.topology_key != HOSTNAME)
    wide_spread = tuple(constraint for constraint in hard if constraint.topology_key != HOSTNAME)
    host_anti = tuple(term for term in spec.anti_affinity if term.topology_key == HOSTNAME)
    host_spread = tuple(constraint for constraint in hard if constraint.topology_key == HOSTNAME)
    wide_affinity = tuple(term for term in spec.affinity if term.topology_key != HOSTNAME)
    alone = bool(spec.host_ports) or any(selects(cluster, term, pod_class) for term in host_anti)
    return Shape(
        wide_affinity=wide_affinity,
        host_affinity=tuple(term for term in spec.affinity if term.topology_key == HOSTNAME),
        self_wide_anti=tuple(term for term in wide_anti if selects(cluster, term, pod_class)),
        host_anti=host_anti,
        self_wide_spread=tuple(constraint for constraint in wide_spread if spreads_over(constraint, pod_class, pod_class)),
        host_spread=host_spread,
        wide=bool(wide_affinity or wide_anti or wide_spread),
        by_host=bool(host_anti or host_spread or spec.host_ports),
        per_host=1 if alone else min((c.max_skew for c in host_spread if spreads_over(c, pod_class, pod_class)), default=None),
    )


def without_hosts(spec: PodSpec) -> PodSpec:
    """``spec`` without rules about single machines (host names, ports): the rules that apply to a template as a whole domain.

    A template stands for any number of machines, so two pods on one template need not share a machine.
    """
    if not (spec.affinity or spec.anti_affinity or spec.spread or spec.host_ports or spec.volumes):
        return spec
    return msgspec.structs.replace(
        spec,
        digest=f"{spec.digest}:wide",
        affinity=tuple(term for term in spec.affinity if term.topology_key != HOSTNAME or has_unreadable_selector(term)),
        anti_affinity=tuple(term for term in spec.anti_affinity if term.topology_key != HOSTNAME or has_unreadable_selector(term)),
        spread=tuple(
            constraint for constraint in spec.spread if constraint.topology_key != HOSTNAME or has_unreadable_selector(constraint)
        ),
        host_ports=(),
    )


def without_peer_rules(spec: PodSpec) -> PodSpec:
    """``spec`` without its own rules about other pods, except unreadable ones, which refuse it everywhere; others' rules still apply."""
    if not (spec.affinity or spec.anti_affinity or spec.spread or spec.host_ports):
        return spec
    return msgspec.structs.replace(
        spec,
        digest=f"{spec.digest}:alone",
        affinity=tuple(filter(has_unreadable_selector, spec.affinity)),
        anti_affinity=tuple(filter(has_unreadable_selector, spec.anti_affinity)),
        spread=tuple(filter(has_unreadable_selector, spec.spread)),
        host_ports=(),
    )


def has_unreadable_selector(rule: PodAffinityTerm | SpreadConstraint) -> bool:
    """Whether the scheduler cannot parse a selector of ``rule``, and therefore refuses its pod on every machine."""
    selectors = (rule.selector, rule.namespace_selector) if isinstance(rule, PodAffinityTerm) else (rule.selector,)
    return any(selector is not None and not selector.valid for selector in selectors)


@dataclass(frozen=True)
class HostRules:
    """Rules between items on new machines: caps over sets of items, and pairs that stay apart.

    Indices are positions in ``classes``.
    """

    shared_caps: tuple[SharedCap, ...]
    exclusive_pairs: tuple[tuple[int, int], ...]


def host_rules(cluster: Cluster, classes: Sequence[PodClass], shapes: Sequence[Shape]) -> HostRules:
    """Anti-affinity, spread over host names and host ports, as rules for one machine that hold in any order of arrival.

    A spread constraint over host names is met in every order if no machine ever holds more than ``maxSkew`` of the pods it counts: in the
    worst case the emptiest machine holds none. Pods that the constraint counts, but that do not have it themselves, may arrive at any time.
    So they never share a machine with pods that have it.
    """
    caps: dict[tuple[int, ...], int] = {}
    apart: set[tuple[int, int]] = set()
    for carriers, matched, cap in _families(cluster, classes, shapes):
        inside = tuple(sorted(carriers & matched))
        if inside:
            caps[inside] = min(cap, caps.get(inside, cap))
        for i in carriers:
            apart.update((min(i, j), max(i, j)) for j in matched - carriers)
        for i in carriers - matched:
            apart.update((min(i, j), max(i, j)) for j in matched & carriers)
    for ports in _port_clashes(classes):
        caps[ports] = 1
    shared_caps = tuple(SharedCap(items, cap) for items, cap in sorted(caps.items()))
    return HostRules(shared_caps, tuple(sorted(apart)))


def _families(cluster: Cluster, classes: Sequence[PodClass], shapes: Sequence[Shape]) -> list[tuple[set[int], set[int], int]]:
    """Tuples: classes that have one constraint, classes that it counts, and how many counted pods one machine may hold."""
    carriers: dict[object, tuple[set[int], PodAffinityTerm | SpreadConstraint, int]] = {}
    for i, (pod_class, constraints) in enumerate(zip(classes, shapes, strict=True)):
        for term in constraints.host_anti:
            carriers.setdefault(term, (set(), term, i))[0].add(i)
        for constraint in constraints.host_spread:
            carriers.setdefault((constraint, pod_class.spec.namespace), (set(), constraint, i))[0].add(i)
    families = []
    index = LabelIndex((pod_class.spec.namespace, pod_class.labels) for pod_class in classes)
    for classes_with_rule, rule, first in carriers.values():
        if isinstance(rule, SpreadConstraint):
            near = index.candidates(classes[first].spec.namespace, rule.selector)
            families.append((classes_with_rule, {j for j in near if spreads_over(rule, classes[first], classes[j])}, rule.max_skew))
        else:
            anywhere = rule.namespace_selector is not None
            within = range(len(classes)) if anywhere else (j for space in rule.namespaces for j in index.candidates(space, rule.selector))
            families.append((classes_with_rule, {j for j in within if selects(cluster, rule, classes[j])}, 1))
    return families


def _port_clashes(classes: Sequence[PodClass]) -> list[tuple[int, ...]]:
    """Sets of classes of which one machine takes a single pod, because they use the same host port.

    Addresses are ignored: two pods with the same port on different addresses could share a machine, but get one machine each here.
    """
    users: dict[tuple[int, str], list[int]] = {}
    for i, pod_class in enumerate(classes):
        for port in dict.fromkeys((port.port, port.protocol) for port in pod_class.spec.host_ports):
            users.setdefault(port, []).append(i)
    return sorted({tuple(users_of_port) for users_of_port in users.values()})
