"""Autoscalers of nodes that run beside each other: on the same groups, or for the same pods."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import combinations

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.programs import CLUSTER_AUTOSCALER, ESCALATOR, GPUSCALER, KARPENTER, OPENAI, Program, programs
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix

_PAGE = "docs/how-to/run-beside-them.md says how each gets machines and pods of its own"
_SAME_GROUPS = "each undoes what the other does: machines are bought twice, and removed while the other needs them"
_SAME_PODS = "both buy machines for a pod that both may buy for"
#: The tag of groups that both Cluster Autoscaler and gpuscaler adopt on AWS.
_ENABLED = "k8s.io/cluster-autoscaler/"
#: A Lease that is renewed is at most this old, in seconds.
_RENEWED = 120.0
#: The Lease of each program that buys machines, by the program's default. Sources: the flags of Cluster Autoscaler and Escalator, and
#: Karpenter's operator, of 2026.
_LEASES = {
    "cluster-autoscaler": CLUSTER_AUTOSCALER,
    "escalator-leader-elect": ESCALATOR,
    "karpenter-leader-election": KARPENTER,
    "gpuscaler": GPUSCALER,
}
_STATUS = "cluster-autoscaler-status"
_LAST_UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"


def find_rivals(evidence: Evidence) -> Iterable[Finding]:
    """D3: two autoscalers that act on the same groups of machines, or buy for the same pods."""
    acting = [program for program in programs(evidence) if program.runs and not _only_watches(program)]
    pools = frozenset(pool.name for pool in evidence.policy.pools) if evidence.policy is not None else frozenset[str]()
    for program in acting:
        if program.name == CLUSTER_AUTOSCALER and (shared := sorted(groups_of(program) & pools)):
            yield _rivals(program, f"{CLUSTER_AUTOSCALER} with --nodes of {', '.join(shared[:3])}, pools of the run file", CRITICAL)
    # Of two, the second is the finding: never the controller of the namespace that the user means.
    acting.sort(key=lambda program: (program.name, program.namespace) != (GPUSCALER, evidence.own_namespace))
    for first, second in combinations(acting, 2):
        # With the account, its groups show exactly which of them two programs scale.
        if not (evidence.of("aws/AutoScalingGroup") and {first.name, second.name} == {CLUSTER_AUTOSCALER, GPUSCALER}):
            yield from _pair(first, second)
    for program in acting:
        if program.name in (CLUSTER_AUTOSCALER, GPUSCALER) and _open_pools(evidence):
            seen = f"{program.name}, beside NodePools of Karpenter without a taint"
            yield _rivals(program, seen, WARNING, _SAME_PODS)


def _only_watches(program: Program) -> bool:
    return program.name == GPUSCALER and "dry-run" in program.flags


def groups_of(program: Program) -> frozenset[str]:
    """The groups that a Cluster Autoscaler is given by name."""
    return frozenset(value.split(":", 2)[2] for value in program.flags.get("nodes", ()) if value.count(":") >= 2)


def _discovery(program: Program) -> frozenset[str]:
    """How a Cluster Autoscaler finds its groups."""
    values = program.flags.get("node-group-auto-discovery", ())
    return frozenset(",".join(sorted(value.partition("=")[2].split(","))) for value in values)


def _lease(program: Program) -> tuple[str, str]:
    namespace = program.flag("leader-elect-resource-namespace", program.flag("namespace", "kube-system"))
    return namespace, program.flag("leader-elect-resource-name", "cluster-autoscaler")


def _pair(first: Program, second: Program) -> Iterator[Finding]:
    names = {first.name, second.name}
    if names == {CLUSTER_AUTOSCALER}:
        shared = groups_of(first) & groups_of(second) or _discovery(first) & _discovery(second)
        # Of those with one Lease, only one acts.
        if shared and first.cloud == second.cloud and _lease(first) != _lease(second):
            seen = f"two {CLUSTER_AUTOSCALER}s with {', '.join(sorted(shared)[:2])}, each with a Lease of its own"
            yield _rivals(second, seen, CRITICAL)
    elif names == {CLUSTER_AUTOSCALER, GPUSCALER}:
        autoscaler, own = (first, second) if first.name == CLUSTER_AUTOSCALER else (second, first)
        tagged = any(_ENABLED in value for value in _discovery(autoscaler))
        if own.cloud == autoscaler.cloud in ("aws", "azure") and (tagged or (autoscaler.cloud == "azure" and _discovery(autoscaler))):
            yield _rivals(autoscaler, f"{CLUSTER_AUTOSCALER} with --node-group-auto-discovery beside {GPUSCALER}", CRITICAL)
        else:
            yield _rivals(autoscaler, f"{CLUSTER_AUTOSCALER} beside {GPUSCALER}", INFO, _SAME_PODS)
    elif (names & {OPENAI, ESCALATOR} and len(names) == 2) or names == {GPUSCALER}:
        yield _rivals(second, f"{second.name} beside {first.name}, {first.workload.title}", WARNING)


def _rivals(program: Program, seen: str, severity: str, effect: str = _SAME_GROUPS) -> Finding:
    return Finding(
        "D3",
        severity,
        program.workload.title,
        "spec.template.spec.containers",
        seen,
        "one autoscaler for each group of machines and each pod",
        effect,
        Fix(advice=f"scale one of them to 0, or divide groups and pods: {_PAGE}"),
        program.workload.place,
    )


def _open_pools(evidence: Evidence) -> bool:
    """Whether Karpenter buys for pods that tolerate nothing."""
    return any(not pool.parts("spec", "template", "spec", "taints") for pool in evidence.of("NodePool"))


def find_hidden_autoscalers(evidence: Evidence) -> Iterator[Finding]:
    """D3: an autoscaler that runs outside of the cluster, as that of AKS does, and shows only by its Lease or status."""
    known = [program for program in programs(evidence) if program.runs]
    renewed: dict[str, Document] = {}
    outside: list[Document] = []
    for sign in (*evidence.of("Lease"), *evidence.of("ConfigMap")):
        name, age = _sign(sign), _age(_time(sign), evidence.now)
        if not name or age is None or age > _RENEWED:
            continue
        if name != GPUSCALER:
            renewed.setdefault(name, sign)
        elif not any(program.name == GPUSCALER and program.namespace == sign.namespace for program in known):
            outside.append(sign)
    deployed = [program for program in known if program.name == GPUSCALER and not _only_watches(program)]
    here = bool(deployed)
    if not (here or outside or any(group.flag("Scaled") for group in evidence.of("aws/AutoScalingGroup"))):
        return
    outside.sort(key=lambda lease: (lease.namespace != evidence.own_namespace, lease.key))
    if outside and outside[0].namespace == evidence.own_namespace:
        for program in deployed:
            yield _rivals(program, f"{GPUSCALER} beside {GPUSCALER}, which renews {outside[0].title}", WARNING)
        del outside[0]
    elif not here:
        # One of those outside is the only gpuscaler.
        del outside[:1]
    for sign in outside:
        yield _hidden(GPUSCALER, sign)
    for name, sign in renewed.items():
        if not any(program.name == name for program in known) and _may_share(name, evidence, here=here):
            yield _hidden(name, sign)


def _may_share(name: str, evidence: Evidence, *, here: bool) -> bool:
    """Whether gpuscaler's pools or pods may be also those of the program ``name``, as far as nothing else shows that exactly."""
    if name == KARPENTER:
        # Beside a gpuscaler of the cluster, its NodePools are found.
        return "NodePool" in evidence.unread or (_open_pools(evidence) and not here)
    # The pools of AKS show exactly which of them its autoscaler scales.
    return not (name == CLUSTER_AUTOSCALER and evidence.of("azure/AgentPool"))


def _sign(document: Document) -> str:
    """The program of a Lease or of a status; empty for other objects."""
    if document.kind == "Lease":
        return _LEASES.get(document.name, "")
    return CLUSTER_AUTOSCALER if document.name == _STATUS else ""


def _time(sign: Document) -> str:
    if sign.kind != "Lease":
        return sign.annotations.get(_LAST_UPDATED, "")
    # Who releases a Lease as it ends clears the holder, and renews the Lease a last time with that.
    return sign.text("spec", "renewTime") if sign.text("spec", "holderIdentity") else ""


def _age(time: str, now: float) -> float | None:
    """How long ago ``time`` was; the status has ``2026-11-30 23:59:50.1 +0000 UTC``."""
    try:
        return abs(now - datetime.fromisoformat(f"{time[:10]}T{time[11:19]}+00:00").timestamp())
    except (ValueError, OverflowError):
        return None


def _hidden(name: str, sign: Document) -> Finding:
    aks = " (AKS: `az aks nodepool update --disable-cluster-autoscaler`)" if name == CLUSTER_AUTOSCALER else ""
    return Finding(
        "D3",
        WARNING,
        sign.title,
        "spec.renewTime" if sign.kind == "Lease" else f"metadata.annotations[{_LAST_UPDATED}]",
        f"{name} that is running and has no Deployment here",
        "one autoscaler for each group of machines and each pod",
        "if it may change gpuscaler's pools, each undoes what the other does",
        Fix(advice=f"switch it off for these pools{aks}, or divide groups and pods; {_PAGE}"),
        sign.place,
    )


CHECKS = (
    Check("D3", "autoscalers beside each other", ("Deployment",), find_rivals, reads=(*WORKLOADS, "NodePool")),
    Check("D3", "autoscalers outside of the cluster", ("Deployment", "Lease", "ConfigMap"), find_hidden_autoscalers),
)
