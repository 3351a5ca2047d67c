"""Pending pods that no node will ever hold, with the one thing that each lacks."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.nodes.gpu_nodes import nodes_without_gpus
from gpuscaler.doctor.checks.nodes.labels import required_keys
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE, source_of
from gpuscaler.doctor.checks.pods.places import Places
from gpuscaler.doctor.checks.tolerating import add_tolerations
from gpuscaler.doctor.commands import ObjectName, kubectl_patch
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix
from gpuscaler.model.accelerators import is_device, right_name
from gpuscaler.model.live_templates import format_amount
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.similar import Similar, meant_label
from gpuscaler.model.table import Mask
from gpuscaler.model.taints import Taint, untolerated
from gpuscaler.model.well_known import ZONE_LABELS
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.feasibility.nodes import explain_selector

#: Pods are pending for this long for passing reasons: caches that start, machines that boot. Seconds.
_PENDING_FOR = 600.0
_FOREVER = "it stays pending for ever"


class Waiting(NamedTuple):
    """A pending pod that stands for others alike, with the object to edit."""

    pod: Pod
    source: ObjectName

    @property
    def spec(self) -> PodSpec:
        return self.pod.spec

    @property
    def path(self) -> str:
        return "spec" if self.source.kind == "Pod" else "spec.template.spec"


def find_pods_without_a_place(evidence: Evidence) -> Iterable[Finding]:
    """D39, and D40 if only a toleration is missing: pods that fit no node and no template, regardless of what runs there."""
    places, similar = Places(evidence.cluster, evidence.policy), Similar()
    if not len(places):
        return
    absent = {resource for _, resource in nodes_without_gpus(evidence)}
    for waiting in pending(evidence):
        spec = waiting.spec
        if evidence.policy is not None and (spec.resource_claims or spec.priority < evidence.policy.priority_cutoff):
            yield _never_bought(waiting, evidence.policy.priority_cutoff)
        elif not spec.resource_claims:
            finding = _obstacle(waiting, places, evidence, absent, similar)
            if finding is not None:
                yield finding


def pending(evidence: Evidence) -> Iterator[Waiting]:
    """One pod of each kind that waits for a place, and has waited for long where that may be a passing state."""
    seen: set[tuple[str, ObjectName]] = set()
    for key, bucket in sorted(evidence.cluster.unbound.items(), key=lambda item: item[1].keys[0]):
        pod = bucket.sample
        if key.terminating or pod.spec.gates or pod.owner.kind == "DaemonSet" or key.nominated:
            continue
        since = pod.unschedulable_since or pod.created
        # With the pools it is certain at once that a pod that the scheduler refused fits nowhere.
        if (key.unschedulable is not True or evidence.policy is None) and evidence.now - since < _PENDING_FOR:
            continue
        source = source_of(pod, evidence.cluster)
        if (pod.spec.digest, source) not in seen:
            seen.add((pod.spec.digest, source))
            yield Waiting(pod, source)


def _never_bought(waiting: Waiting, cutoff: int) -> Finding:
    if waiting.spec.resource_claims:
        return Finding(
            "D39",
            CRITICAL,
            waiting.source.title,
            f"{waiting.path}.resourceClaims",
            "claims of dynamic resource allocation",
            "resources.limits[nvidia.com/gpu]",
            "gpuscaler buys no machines for pods with claims: it waits until an existing node has room",
            Fix(advice="request GPUs as a resource, or keep machines ready with spare in the run file"),
        )
    return Finding(
        "D39",
        INFO,
        waiting.source.title,
        f"{waiting.path}.priorityClassName",
        f"priority {waiting.spec.priority}",
        f"at least {cutoff}, the priority_cutoff of the run file",
        "gpuscaler buys no machines for it: it runs only where there is room",
        Fix(advice="give it a higher priority, unless it is a placeholder"),
    )


def _obstacle(waiting: Waiting, places: Places, evidence: Evidence, absent: set[str], similar: Similar) -> Finding | None:
    """The first thing that leaves no place for the pod; None if a place is left."""
    spec = waiting.spec
    mask = places.sold(spec)
    selected = mask & places.selected(spec)
    if evidence.policy is not None and (lacking := _lacking_label(waiting, places, evidence, selected)) is not None:
        return lacking
    if not selected.any():
        return _selects_nothing(waiting, places, mask, evidence, similar)
    mask = selected
    for resource, amount in sorted(spec.requests.items(), key=lambda item: (not is_device(item[0]), item)):
        holds = places.offers(resource, amount)
        if not (mask & holds).any():
            # The plugin of the node is at fault (D12, D13), or the name (reported by another check).
            return None if resource in absent or right_name(resource) else _too_large(waiting, places, mask, resource, evidence)
        mask = mask & holds
    if not (mask & places.tolerated(spec)).any():
        return _shut_out(waiting, places, mask, evidence)
    mask = mask & places.tolerated(spec)
    if not (mask & places.reached(spec)).any() and all(
        f"{spec.namespace}/{use.claim}" in evidence.cluster.claims for use in spec.volumes if use.claim
    ):
        return _out_of_reach(waiting, places, mask, evidence)
    return None


def _finding(waiting: Waiting, evidence: Evidence, *, field: str, seen: str, expected: str, fix: Fix, check: str = "D39") -> Finding:
    known = evidence.policy is not None
    effect = f"{_FOREVER}: no pool has such machines" if known else f"{_FOREVER}, unless a group without nodes now has such nodes"
    severity = CRITICAL if known and check == "D39" else WARNING
    return Finding(check, severity, waiting.source.title, f"{waiting.path}.{field}", seen, expected, effect, fix)


def _what(evidence: Evidence) -> str:
    return "pool or node" if evidence.policy is not None else "node"


def _selects_nothing(waiting: Waiting, places: Places, mask: Mask, evidence: Evidence, similar: Similar) -> Finding:
    spec = waiting.spec
    missing = {key: value for key, value in spec.node_selector if value not in places.values(key)}
    field = "nodeSelector" if missing or not spec.node_affinity else "affinity.nodeAffinity"
    if not missing:
        rows = np.flatnonzero(mask)
        row = int(rows[0]) if len(rows) else 0
        seen = (
            explain_selector(spec, places.at(row)).partition(" wanted")[0] if field != "nodeSelector" else _pairs(dict(spec.node_selector))
        )
        advice = f"use labels that one {_what(evidence)} has together"
        return _finding(waiting, evidence, field=field, seen=seen, expected=f"labels of a {_what(evidence)}", fix=Fix(advice=advice))
    change: dict[str, str | None] = {}
    known = []
    for key, value in missing.items():
        key_meant, value_meant = meant_label(key, value, places, similar)
        if value_meant:
            change |= {key_meant: value_meant} if key_meant == key else {key: None, key_meant: value_meant}
            known.append(f"{key_meant}={value_meant}")
    expected = f"{', '.join(known)} (did you mean that?)" if len(known) == len(missing) else _choices(next(iter(missing)), places, evidence)
    fix = Fix(advice="correct the selector, or give the label to a group")
    if len(known) == len(missing) and waiting.source.kind in CHANGEABLE:
        fix = Fix((kubectl_patch(waiting.source, {"spec": {"template": {"spec": {"nodeSelector": change}}}}),))
    return _finding(waiting, evidence, field="nodeSelector", seen=_pairs(missing), expected=expected, fix=fix)


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _choices(key: str, places: Places, evidence: Evidence) -> str:
    values = sorted(places.values(key))
    if not values:
        return f"a label that a {_what(evidence)} has; none has {key}"
    more = f" and {len(values) - 5} more" if len(values) > 5 else ""
    return f"one of {', '.join(values[:5])}{more}"


def _too_large(waiting: Waiting, places: Places, mask: Mask, resource: str, evidence: Evidence) -> Finding:
    most = int(places.table.allocatable(resource)[mask].max(initial=0))
    elsewhere = int(places.table.allocatable(resource).max(initial=0))
    seen = format_amount(resource, waiting.spec.requests[resource])
    expected = f"at most {format_amount(resource, most)}, what one {_what(evidence)} has at most"
    advice = "request less, or split the work into several pods"
    if most == 0:
        expected = f"a resource that a {_what(evidence)} offers"
        advice = "correct the name, or install the plugin that registers it"
    if elsewhere > most:
        expected += f" (others have {format_amount(resource, elsewhere)}, but its selector does not admit them)"
        advice = "change its selector, or request less"
    field = f"containers[].resources.requests[{resource}]"
    return _finding(waiting, evidence, field=field, seen=seen, expected=expected, fix=Fix(advice=advice))


def _shut_out(waiting: Waiting, places: Places, mask: Mask, evidence: Evidence) -> Finding:
    """Only taints keep the pod away: that of the fewest, and of the most nodes."""
    spec = waiting.spec
    sets = [
        tuple(taint for taint in places.at(int(row)).taints if untolerated((taint,), spec.tolerations))
        for row in np.flatnonzero(mask)[:1000]
    ]
    taints: tuple[Taint, ...] = min(sets, key=lambda taints: (len(taints), str(taints)))
    names = ", ".join(map(str, taints))
    wants_gpus = any(map(is_device, spec.requests))
    fix = Fix(advice="add the toleration to its pod template, and create it again")
    if waiting.source.kind in CHANGEABLE or waiting.source.kind == "Pod":
        fix = Fix((add_tolerations(waiting.source, spec, taints),))
    if not wants_gpus:
        fix = Fix(advice="add nodes without the taint, or a toleration if the pod may run there")
    check = "D40" if wants_gpus else "D39"
    return _finding(
        waiting, evidence, field="tolerations", seen=f"none of {names}", expected=f"a toleration of {names}", fix=fix, check=check
    )


def _out_of_reach(waiting: Waiting, places: Places, mask: Mask, evidence: Evidence) -> Finding:
    where = _volume_zones(waiting, places)
    there = f"its volume is in {where}, where no {_what(evidence)} holds it" if where else f"no {_what(evidence)} is where its volume is"
    zones = sorted({places.at(int(row)).labels.get(ZONE_LABELS[0], "") for row in np.flatnonzero(mask)[:1000]} - {""})
    expected = f"a volume in {' or '.join(zones)}" if zones else "a volume that nodes reach"
    return _finding(
        waiting,
        evidence,
        field="volumes",
        seen=there,
        expected=expected,
        fix=Fix(advice="add a pool in the volume's zone, or move the data"),
    )


def _volume_zones(waiting: Waiting, places: Places) -> str:
    """The zones that the volumes of the pod are in; empty if they do not say."""
    zones: dict[str, None] = {}
    for use in waiting.spec.volumes:
        claim = places.cluster.claims.get(f"{waiting.spec.namespace}/{use.claim}")
        volume = places.cluster.volumes.get(claim.volume) if claim is not None else None
        for term in volume.node_affinity.terms if volume is not None and volume.node_affinity is not None else ():
            for requirement in term.expressions:
                if "zone" in requirement.key and requirement.operator == "In":
                    zones |= dict.fromkeys(requirement.values)
    return " or ".join(zones)


def _lacking_label(waiting: Waiting, places: Places, evidence: Evidence, selected: Mask) -> Finding | None:
    """D9: live nodes of a pool have the labels that the pod selects, and the pool's template does not."""
    first = len(places.nodes)
    if selected[first:].any() or not selected[:first].any() or evidence.policy is None:
        return None
    nodes = {places.at(int(row)).name: places.at(int(row)) for row in np.flatnonzero(selected[:first])}
    for name, member in members(nodes, evidence.policy, evidence.unlisted).items():
        if member.offering is None:
            continue
        keys = dict.fromkeys(required_keys(waiting.spec))
        lacking = {key: nodes[name].labels[key] for key in keys if key in nodes[name].labels and key not in member.offering.labels}
        if lacking:
            return Finding(
                "D9",
                CRITICAL,
                f"Pool {member.pool.name}",
                "labels",
                f"no {', '.join(lacking)}, which pending pods select",
                f"{_pairs(lacking)}, as on its nodes",
                "no machine of the pool is bought for these pods: it never grows from zero for them",
                Fix(advice=f"add the label to the pool in the run file, or the tag node-template/label/{next(iter(lacking))} to its group"),
            )
    return None


#: What decides, beside nodes, where a pod fits.
_OF_PODS = (
    *("PersistentVolume", "PersistentVolumeClaim", "StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity", "VolumeAttachment"),
    *("DeviceClass", "ResourceSlice", "ResourceClaim", "PodGroup", "Workload", "JobSet", "Job", "ReplicaSet", "PriorityClass", "Namespace"),
)
CHECKS = (Check("D39", "pods that fit nowhere", (CLUSTER, "Pod", "Node"), find_pods_without_a_place, reads=_OF_PODS, continuous=True),)
