"""Decides from its tags whether an Auto Scaling group is adopted, reported, or ignored.

Tags: Cluster Autoscaler's discovery; kops' and those of OpenAI's autoscaler; EKS managed node groups; eksctl. A group that any tag assigns
to another cluster is never adopted, whatever its other tags. EKS puts Cluster Autoscaler's tags on every managed node group, including the
one for CoreDNS and autoscalers. They are no evidence there, so only groups with accelerators are adopted.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpuscaler.clouds.discovery.settings import matching_exclusion
from gpuscaler.model.quantities import shorten_value

CLUSTER_AUTOSCALER = "k8s.io/cluster-autoscaler/"
ENABLED = f"{CLUSTER_AUTOSCALER}enabled"
KOPS_CLUSTER = "KubernetesCluster"
KOPS_NODE = "k8s.io/role/node"
EKS_CLUSTER, EKS_NODEGROUP = "eks:cluster-name", "eks:nodegroup-name"
_EKSCTL_CLUSTER = "alpha.eksctl.io/cluster-name"
_OWNED = "kubernetes.io/cluster/"
#: Tags whose value is a cluster's name, and a prefix of keys that end with one.
_NAMING = (KOPS_CLUSTER, EKS_CLUSTER, _EKSCTL_CLUSTER)
_ROLES = ("KubernetesRole", "Role")
WORKERS = ("worker", "kubernetes-minion", "minion")
#: Roles of kops whose machines take no user pods.
_KOPS_OTHERS = tuple(f"k8s.io/role/{role}" for role in ("control-plane", "master", "bastion", "apiserver"))
#: The source of EKS managed node groups, and why those without accelerators are not adopted.
EKS = "eks"
NO_ACCELERATOR = "it has no accelerator; name it in aws.groups to adopt it"
#: Keys below Cluster Autoscaler's prefix that do not name a cluster.
_NOT_CLUSTERS = ("enabled", "node-template")


class Ownership(NamedTuple):
    """``source`` says how an adopted group was found; it is empty for any other group.

    ``reason`` says why a group is not adopted; it is empty if no tag concerns this cluster. ``foreign`` means that the group belongs to
    another cluster, which is ``cluster``. ``lacks`` are the tags that would make it adopted. ``tag`` is the tag whose value decided.
    """

    source: str = ""
    reason: str = ""
    foreign: bool = False
    cluster: str = ""
    tag: str = ""
    lacks: tuple[str, ...] = ()


def tag_keys(cluster: str) -> tuple[str, ...]:
    """The tag keys of which every relevant group has at least one."""
    return (ENABLED, f"{CLUSTER_AUTOSCALER}{cluster}", KOPS_CLUSTER, EKS_CLUSTER) if cluster else (ENABLED,)


def decide_ownership(
    name: str,
    tags: Mapping[str, str],
    *,
    cluster: str,
    named: Collection[str],
    extra: Mapping[str, str],
    exclude: Iterable[str] = (),
) -> Ownership:
    """Whether the group ``name`` belongs to the cluster.

    ``named``, ``extra`` and ``exclude`` are ``aws.groups``, ``aws.tags`` and ``aws.exclude`` of the settings.
    """
    claims = _claims(tags)
    marked = bool(extra) and all(tags.get(key) == value for key, value in extra.items())
    if not (name in named or marked or claims or ENABLED in tags):
        return Ownership()
    if not cluster:
        return Ownership(reason="saw no cluster name in the settings, so nothing is adopted; add cluster: … to aws")
    for claimed, key in claims.items():
        if claimed != cluster:
            return Ownership(
                reason=f"the tag {key} says cluster {shorten_value(claimed)}, expected {cluster}; the group is never changed",
                foreign=True,
                cluster=claimed,
                tag=key,
            )
    if entry := matching_exclusion(name, tags, exclude):
        return Ownership(reason=f"it matches {shorten_value(entry)} in aws.exclude and is ignored")
    kops_role = next((key for key in _KOPS_OTHERS if key in tags), "")
    if kops_role and name not in named:
        return Ownership(reason=f"saw the tag {kops_role}, expected a group of workers; its machines are not scaled")
    if name in named:
        return Ownership("named")
    return _discovered(tags, cluster=cluster, marked=marked)


def _discovered(tags: Mapping[str, str], *, cluster: str, marked: bool) -> Ownership:
    ours = f"{CLUSTER_AUTOSCALER}{cluster}"
    managed = EKS_NODEGROUP in tags and (tags.get(EKS_CLUSTER) == cluster or ours in tags)
    if ENABLED in tags and ours in tags:
        off = next((key for key in (ENABLED, ours) if tags[key].lower() == "false"), "")
        if off:
            return Ownership(reason=f"the tag {off} is false")
        if not managed:
            return Ownership("cluster-autoscaler")
    if managed:
        return Ownership("tags" if marked else EKS)
    if KOPS_CLUSTER in tags:
        role = next((key for key in _ROLES if key in tags), "")
        if KOPS_NODE in tags or (role and tags[role] in WORKERS):
            return Ownership("kops")
        if role and not marked:
            return Ownership(reason=f"the tag {role} is {shorten_value(tags[role])}, expected one of {', '.join(WORKERS)}", tag=role)
    if marked:
        return Ownership("tags")
    if ENABLED in tags:
        claim = _claims(tags).get(cluster)
        explanation = f"the tag {claim} says that it is this cluster's" if claim else "no tag names its cluster"
        return Ownership(
            reason=f"saw the tag {ENABLED} without {ours}, expected both: {explanation}; add {ours}=owned, or name it in aws.groups",
            lacks=(ours,),
        )
    lacks = (ENABLED,) if ours in tags else (ENABLED, ours)
    return Ownership(
        reason=f"it belongs to the cluster, but no tag says that it may be scaled; add {' and '.join(lacks)}, or name it in aws.groups",
        lacks=lacks,
    )


def _claims(tags: Mapping[str, str]) -> dict[str, str]:
    """The clusters that tags name, with the tag of each."""
    claims: dict[str, str] = {}
    for key, value in tags.items():
        if key in _NAMING and value:
            claims.setdefault(value, key)
        elif key.startswith(_OWNED):
            claims.setdefault(key.removeprefix(_OWNED), key)
        elif key.startswith(CLUSTER_AUTOSCALER):
            rest = key.removeprefix(CLUSTER_AUTOSCALER)
            if rest and rest.partition("/")[0] not in _NOT_CLUSTERS:
                claims.setdefault(rest, key)
    return claims
