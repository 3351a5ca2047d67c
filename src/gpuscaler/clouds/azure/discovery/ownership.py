"""Decides whether an agent pool or scale set is adopted, reported, or ignored.

Agent pools of the configured cluster belong to it, and those with accelerators are adopted; a pool that is named in ``azure.pools`` is
adopted without them, too. Scale sets that AKS does not manage are adopted by their tags: Cluster Autoscaler's, in both of its forms, and
gpuscaler's own. A scale set that any tag assigns to another cluster is never adopted, whatever its other tags.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from gpuscaler.clouds.azure.documents.resources import ScaleSet
from gpuscaler.clouds.azure.templates.tags import decoded_tags, encoded_key
from gpuscaler.clouds.discovery.settings import matching_exclusion
from gpuscaler.model.azure_names import fold_id, pool_in_name
from gpuscaler.model.quantities import shorten_value

#: How a pool was found: as AKS's, by name, by the tags of the settings, of Cluster Autoscaler, or of gpuscaler.
AKS, NAMED, TAGS, CLUSTER_AUTOSCALER, OWN_TAG = "aks", "named", "tags", "cluster-autoscaler", "gpuscaler"
NO_ACCELERATOR = "it has no accelerator; name it in pools of its subscription to adopt it"
#: The tag of AKS with the pool that a scale set is of; ``poolName`` is its older name.
_POOL_TAGS: Final = ("aks-managed-poolname", "poolname")
#: Tags of Cluster Autoscaler in its two forms: keys as on AWS, and those of its page about Azure.
_PREFIX: Final = "k8s.io/cluster-autoscaler/"
_ENABLED: Final = (f"{_PREFIX}enabled", "cluster-autoscaler-enabled")
_NAME: Final = "cluster-autoscaler-name"
#: The tag of gpuscaler, whose value is the cluster's name.
_OWN: Final = "gpuscaler.io/cluster"
#: Keys below Cluster Autoscaler's prefix that do not name a cluster.
_NOT_CLUSTERS: Final = ("enabled", "node-template")


class Ownership(NamedTuple):
    """``source`` says how an adopted pool was found; it is empty for any other one.

    ``reason`` says why it is not adopted; it is empty if nothing concerns this cluster. ``foreign`` means that it is another cluster's.
    """

    source: str = ""
    reason: str = ""
    foreign: bool = False


def agent_pool_in(scale_set: ScaleSet) -> str:
    """The agent pool that AKS made a scale set for, by its tag, else by its name; empty if there is none."""
    for key, value in scale_set.tags.items():
        if fold_id(key) in _POOL_TAGS and value:
            return value
    return pool_in_name(scale_set.name) if fold_id(scale_set.name).startswith("aks-") else ""


def decide_agent_pool(name: str, tags: Mapping[str, str], *, named: Collection[str], exclude: Iterable[str]) -> Ownership:
    """Whether the agent pool ``name`` of the cluster is adopted; :data:`AKS` only if it turns out to have accelerators."""
    if entry := matching_exclusion(name, tags, exclude, fold=fold_id):
        return Ownership(reason=f"it matches {shorten_value(entry)} in exclude and is ignored")
    return Ownership(NAMED if is_named(name, named) else AKS)


def is_named(name: str, named: Iterable[str]) -> bool:
    """Whether ``named`` has the name of an agent pool or scale set: Azure ignores the case of such names."""
    return fold_id(name) in map(fold_id, named)


def decide_scale_set(
    name: str,
    tags: Mapping[str, str],
    *,
    cluster: str,
    named: Collection[str],
    extra: Mapping[str, str],
    exclude: Iterable[str],
) -> Ownership:
    """Whether a scale set that AKS does not manage belongs to the cluster.

    ``cluster`` is the cluster's name, empty if the settings have none; ``named``, ``extra`` and ``exclude`` are ``pools``, ``tags`` and
    ``exclude`` of its subscription in the settings.
    """
    decoded = decoded_tags(tags)
    claims = _claims(decoded)
    enabled = next((key for key in _ENABLED if key in decoded), "")
    folded_tags = {fold_id(key): value for key, value in tags.items()}
    marked = bool(extra) and all(folded_tags.get(fold_id(key)) == value for key, value in extra.items())
    if not (is_named(name, named) or marked or claims or enabled):
        return Ownership()
    if cluster:
        for claimed, key in claims.items():
            if claimed != fold_id(cluster):
                text = f"the tag {encoded_key(key)} says cluster {shorten_value(claimed)}, expected {cluster}"
                return Ownership(reason=f"{text}; the scale set is never changed", foreign=True)
    if entry := matching_exclusion(name, tags, exclude, fold=fold_id):
        return Ownership(reason=f"it matches {shorten_value(entry)} in exclude and is ignored")
    if is_named(name, named):
        return Ownership(NAMED)
    if marked:
        return Ownership(TAGS)
    if not cluster:
        key = encoded_key(enabled or next(iter(claims.values())))
        return Ownership(
            reason=f"saw the tag {key}, but the settings name no cluster, so it may be another's; name the scale set in pools, or one of "
            "its tags in tags"
        )
    return _discovered(decoded, claims.get(fold_id(cluster), ""), enabled)


def _discovered(tags: Mapping[str, str], claim: str, enabled: str) -> Ownership:
    """Whether tags say both that a scale set may be scaled and that it is this cluster's. ``claim`` is the tag that says the second."""
    if claim == _OWN:
        return Ownership(OWN_TAG)
    if enabled and claim:
        off = next((key for key in (enabled, claim) if tags[key].lower() == "false"), "")
        return Ownership(reason=f"the tag {encoded_key(off)} is false") if off else Ownership(CLUSTER_AUTOSCALER)
    if enabled:
        return Ownership(
            reason=f"saw the tag {encoded_key(enabled)}, but no tag names its cluster; add {encoded_key(_OWN)}, or name it in pools"
        )
    return Ownership(
        reason=f"the tag {encoded_key(claim)} says that it is this cluster's, but no tag says that it may be scaled; add "
        f"{encoded_key(_ENABLED[0])}, or name it in pools"
    )


def _claims(tags: Mapping[str, str]) -> dict[str, str]:
    """The clusters that decoded tags name, by folded name, with the tag of each."""
    claims: dict[str, str] = {}
    for key, value in tags.items():
        if key in (_NAME, _OWN):
            if value:
                claims.setdefault(fold_id(value), key)
        elif key.startswith(_PREFIX):
            rest = key.removeprefix(_PREFIX)
            if rest and rest.partition("/")[0] not in _NOT_CLUSTERS:
                claims.setdefault(fold_id(rest), key)
    if tags.get(_OWN):
        claims[fold_id(tags[_OWN])] = _OWN
    return claims
