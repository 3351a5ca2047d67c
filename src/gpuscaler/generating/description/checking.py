"""What of a description contradicts its cloud or itself: regions, zones, names of clusters, namespaces and groups of teams."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from gpuscaler import catalogue
from gpuscaler.catalogue.zones import region_of
from gpuscaler.generating.description.limits import check_cluster_name
from gpuscaler.generating.description.naming import AGENT_POOL_LENGTH
from gpuscaler.generating.description.resolved import EXAMPLES_NAMESPACE, EXPORTER_NAMESPACE, NodeGroup
from gpuscaler.generating.description.settings import KOPS, DescriptionSettings, GpuPoolSettings
from gpuscaler.model.reading.cursor import Cursor, did_you_mean

#: The most machines that AKS allows in an agent pool.
_MAX_AGENT_POOL: Final = 1000
#: Azure allows '_', too, which a DNS name cannot have.
_AKS_NAME: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_REGION: Final = "[a-z]+[a-z0-9-]*[a-z0-9]"
_OBJECT_ID: Final = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"


def check_cluster(top: Cursor, cloud: str, tool: str | None, settings: DescriptionSettings) -> None:
    """Report a name, a region or zones that the cloud does not have. ``tool`` is None where it is a mistake itself."""
    cluster = settings.cluster
    if not top.has("cluster"):
        return
    at = top.descend("cluster")
    if cluster.name and tool == KOPS and "." not in cluster.name:
        at.descend("name").wrong("the name of a kOps cluster, which includes its domain, such as train.example.com")
    if cluster.name and cloud == "aws" and tool is not None:
        check_cluster_name(at.descend("name"), tool, cluster.name)
    elif cluster.name and cloud == "azure" and not re.fullmatch(_AKS_NAME, cluster.name):
        at.descend("name").wrong("the name of an AKS cluster: up to 63 letters, digits and '-', with a letter or digit at both ends")
    known = catalogue.regions().get(cluster.region)
    if known not in {None, cloud}:
        at.descend("region").wrong(f"a region of {cloud}", seen=f"{cluster.region}, a region of {known}")
    elif cluster.region and not re.fullmatch(_REGION, cluster.region):
        words = cluster.region.lower().split()
        near = next((f"; did you mean {name}?" for name in ("-".join(words), "".join(words)) if name in catalogue.regions()), "")
        at.descend("region").wrong(f"the name of a region such as {'us-east-1' if cloud == 'aws' else 'eastus'}{near}")
    check_zones(at, cloud, cluster.region, cluster.zones)


def check_zones(at: Cursor, cloud: str, region: str, zones: tuple[str, ...]) -> None:
    """Report zones of ``at`` that are not in the region."""
    for zone in at.descend("zones").items() if zones and (re.fullmatch(_REGION, region) or cloud == "azure") else ():
        name = zone.entry.value
        if name not in zones:
            continue  # Not even text, which was reported.
        if cloud == "aws" and (not re.fullmatch(f"{re.escape(region)}[a-z]", name) or region_of(name, region) != region):
            zone.wrong(f"a zone of {region}, such as {region}a")
        elif cloud == "azure" and name not in {"1", "2", "3"}:
            zone.wrong('one of "1", "2" and "3", quoted')


def _is_of_kubernetes(namespace: str) -> bool:
    """Whether Kubernetes creates the namespace, or reserves its name (the prefix `kube-`)."""
    return namespace == "default" or namespace.startswith("kube-")


def check_teams(top: Cursor, settings: DescriptionSettings) -> None:
    """Report teams whose namespace is another one's (its quota and rights would be those of both), and groups that Azure cannot have."""
    refuse_twice(top, "teams", (team.name for team in settings.teams))
    if _is_of_kubernetes(settings.controller.namespace):
        top.descend("controller", "namespace").wrong(
            "a namespace for gpuscaler alone, such as gpuscaler: it gets the Pod Security Standard restricted, which refuses network "
            "plugins, storage drivers and device plugins"
        )
    of = {settings.controller.namespace: "gpuscaler", EXPORTER_NAMESPACE: "the exporter"}
    of[EXAMPLES_NAMESPACE] = "the examples"
    for at, team in zip(top.descend("teams").items() if settings.teams else (), settings.teams, strict=True):
        namespace = team.namespace or team.name
        if _is_of_kubernetes(namespace):
            of[namespace] = "Kubernetes"
        if namespace in of:
            at.add_problem(f"saw the namespace {namespace}, which is that of {of[namespace]}; add namespace: …, with a name of its own")
        if namespace:
            of.setdefault(namespace, f"the team {team.name}")
        if settings.cloud == "azure" and team.group and not re.fullmatch(_OBJECT_ID, team.group):
            at.descend("group").wrong(
                "the object id of a group of Microsoft Entra ID, by which AKS knows groups; see `az ad group show --group NAME --query id`"
            )


def check_teams_of(at: Cursor, pool: GpuPoolSettings, settings: DescriptionSettings) -> None:
    """Report teams of a pool that there are not."""
    names = {team.name for team in settings.teams}
    if "" in names:
        return  # The name of one is a mistake, and may be the one that is meant.
    for team in at.descend("teams").items() if pool.teams else ():
        name = team.entry.value
        if name in pool.teams and name not in names:
            advice = f"expected one of teams; {did_you_mean(name, names)}" if names else "but there are no teams; add teams: [{name: …}]"
            team.add_problem(f'saw team "{name}", {advice}')


def refuse_twice(top: Cursor, key: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for index, name in enumerate(names):
        if name in seen:
            top.descend(key).items()[index].add_problem(f'saw the name "{name}" a second time, expected each once; rename one')
        seen |= {name} - {""}  # A name that is a mistake.


def check_agent_pools(at: Cursor, pool: GpuPoolSettings, groups: Iterable[NodeGroup], before: Iterable[NodeGroup]) -> None:
    """Report what AKS refuses: a pool that is too large, or whose agent pools have the names of those of another pool."""
    if pool.max > _MAX_AGENT_POOL:
        at.descend("max").wrong(f"at most {_MAX_AGENT_POOL} machines in an agent pool of AKS; use more zones or types")
    others = {group.name: group.pool for group in before}
    for group in groups:
        if group.name in others and others[group.name] != pool.name:
            at.descend("name").add_problem(
                f'saw the pools "{others[group.name]}" and "{pool.name}", of both of which AKS would have an agent pool {group.name} '
                f"(names have at most {AGENT_POOL_LENGTH} letters and digits), expected names that differ when shortened; rename one"
            )
            return


def check_general(top: Cursor, cloud: str, types: Sequence[str]) -> None:
    """Report types with GPUs, or of another cloud, among those for everything else. Types that the catalogue lacks are accepted."""
    for at in top.descend("general", "types").items() if types else ():
        known = catalogue.lookup(str(at.entry.value))
        if known is not None and (known.cloud != cloud or known.gpus):
            at.wrong(f"an instance type of {cloud} without GPUs", seen=f"{known.name}, with {known.gpus} GPUs on {known.cloud}")
