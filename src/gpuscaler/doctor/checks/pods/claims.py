"""Pending pods whose PersistentVolumeClaim does not exist."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.checks.pods.fitting import Waiting, pending
from gpuscaler.doctor.evidence import CLUSTER, Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix, Unchecked
from gpuscaler.model.similar import Similar


def find_missing_claims(evidence: Evidence) -> Iterable[Finding | Unchecked]:
    """D39: pods that wait for a claim that nothing has made."""
    waiting = [item for item in pending(evidence) if _names(item)]
    if waiting and "PersistentVolumeClaim" in evidence.unread:
        yield from in_part("D39", "the volumes of pending pods", evidence, "PersistentVolumeClaim")
        return
    claims: dict[str, list[str]] = defaultdict(list)
    for key in evidence.cluster.claims if waiting else ():
        space, _, name = key.partition("/")
        claims[space].append(name)
    similar = Similar()
    for item in waiting:
        yield from _missing(item, evidence, claims.get(item.spec.namespace, []), similar)


def _names(waiting: Waiting) -> tuple[str, ...]:
    """The claims that a person makes: those of ephemeral volumes come with the pod."""
    return tuple(use.claim for use in waiting.spec.volumes if use.claim and not use.ephemeral)


def _missing(waiting: Waiting, evidence: Evidence, here: list[str], similar: Similar) -> Iterator[Finding]:
    space = waiting.spec.namespace
    for name in _names(waiting):
        if f"{space}/{name}" in evidence.cluster.claims:
            continue
        near = next(iter(similar.to(name, here, cutoff=0.8, group=space)), "")
        expected = f"{near} (did you mean that?)" if near else "a claim that exists in its namespace"
        seen = f"PersistentVolumeClaim {name}, which does not exist"
        advice = f"create PersistentVolumeClaim {name} in its namespace, or correct the name in the pod's volumes"
        effect = "it stays pending until the claim exists, and no machine helps"
        yield Finding("D39", CRITICAL, waiting.source.title, f"{waiting.path}.volumes", seen, expected, effect, Fix(advice=advice))


CHECKS = (Check("D39", "volumes of pending pods", (CLUSTER, "Pod"), find_missing_claims, continuous=True),)
