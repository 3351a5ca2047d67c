"""Reads a description: strict YAML to :class:`Description`, with every mistake and its line."""

import re
from collections.abc import Iterable, Mapping

from gpuscaler import catalogue
from gpuscaler.catalogue import InstanceType
from gpuscaler.catalogue.zones import region_of
from gpuscaler.generating.description.limits import check_cluster_name, check_pool
from gpuscaler.generating.description.naming import AGENT_POOL_LENGTH, group_names
from gpuscaler.generating.description.resolved import EXAMPLES_NAMESPACE, EXPORTER_NAMESPACE, POOL_TAINT, Description, NodeGroup
from gpuscaler.generating.description.settings import GIB, KOPS, MANAGED, TOOLS, DescriptionSettings, GpuPoolSettings
from gpuscaler.model.reading.cursor import MAX_VALUES, Cursor, Report, TooMuchError, did_you_mean
from gpuscaler.model.reading.document import read_document
from gpuscaler.model.reading.errors import Problem, SettingsError
from gpuscaler.model.taints import Taint
from gpuscaler.settings.fields.table import NO_CONTEXT, read

#: Auto Scaling allows 500 groups in a region, unless its owner asked for more; AKS allows 100 agent pools, two of which have no GPUs.
MAX_GROUPS: Mapping[str, int] = {"aws": 500, "azure": 98}
#: The most machines that AKS allows in an agent pool.
_MAX_AGENT_POOL = 1000
#: Azure allows '_', too, which a DNS name cannot have.
_AKS_NAME = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_GENERAL = {"aws": "m6i.large", "azure": "Standard_D4s_v5"}


def read_description(text: str, source: str = "description") -> Description:
    """Return the description in ``text``; ``source`` names it in messages. Raises :class:`SettingsError` with all mistakes."""
    root, problems = read_document(
        text, expected="a YAML mapping with the keys cloud, cluster and gpu_pools", needs="a description needs five"
    )
    report, description = Report(problems), None
    if root is not None and root.value is not None:
        try:
            description = _resolve(Cursor("", root, report), report)
        except TooMuchError:
            report.add(Problem("", None, f"expands to more than {MAX_VALUES:,} values; use fewer anchors"))
    elif not problems:
        report.add(Problem("", None, "is empty, expected a mapping with the keys cloud, cluster and gpu_pools"))
    if description is None or report.problems:
        raise SettingsError(source, report.problems)
    return description


def _resolve(top: Cursor, report: Report) -> Description | None:
    settings = read(DescriptionSettings, top, NO_CONTEXT)
    if report.problems:
        return None
    cloud, cluster = settings.cloud, settings.cluster
    tool = settings.tool or TOOLS[cloud][0]
    if tool not in TOOLS[cloud]:
        top.descend("tool").wrong(f"one of {', '.join(TOOLS[cloud])} on {cloud}")
    _check_cluster_name(top, cloud, tool, cluster.name)
    _check_region(top, cloud, cluster.region)
    zones = cluster.zones or ((f"{cluster.region}a", f"{cluster.region}b") if cloud == "aws" else ("",))
    _check_zones(top.descend("cluster"), cloud, cluster.region, cluster.zones)
    names = {team.name for team in settings.teams}
    _refuse_twice(top, "teams", (team.name for team in settings.teams))
    _check_namespaces(top, settings)
    _refuse_twice(top, "gpu_pools", (pool.name for pool in settings.gpu_pools))
    groups, notes = list[NodeGroup](), list[str]()
    for at, pool in zip(top.descend("gpu_pools").items(), settings.gpu_pools, strict=True):
        for team in at.descend("teams").items() if pool.teams else ():
            if team.entry.value not in names:
                team.add_problem(f'saw team "{team.entry.value}", expected one of teams; {did_you_mean(str(team.entry.value), names)}')
        _check_zones(at, cloud, cluster.region, pool.zones)
        types = _types(at, pool, cloud, cluster.region, notes)
        added = list(_groups(cloud, pool, types, pool.zones or zones))
        if cloud == "azure":
            _check_agent_pools(at, pool, added, groups)
        else:
            check_pool(at, pool, added, before=groups, tool=tool, cluster=cluster.name)
        groups += added
    if not settings.gpu_pools:
        top.descend("gpu_pools").wrong("at least one pool; add - name: …", seen="an empty list")
    if len(groups) > MAX_GROUPS[cloud]:
        problem = (
            f"saw {len(groups)} groups (a group for each type, market and zone), expected at most {MAX_GROUPS[cloud]}; name fewer types"
        )
        top.descend("gpu_pools").add_problem(problem)
    for at, type_ in zip(top.descend("general", "types").items() if settings.general.types else (), settings.general.types, strict=True):
        known = catalogue.lookup(type_)
        if known is not None and (known.cloud != cloud or known.gpus):
            at.wrong(f"an instance type of {cloud} without GPUs", seen=f"{type_}, with {known.gpus} GPUs on {known.cloud}")
    return Description(
        cloud=cloud,
        tool=tool,
        cluster=cluster,
        managed=settings.nodes == MANAGED and tool != KOPS,
        general=settings.general,
        general_types=settings.general.types or (_GENERAL[cloud],),
        groups=tuple(groups),
        pool_teams={pool.name: pool.teams for pool in settings.gpu_pools},
        teams=settings.teams,
        controller=settings.controller,
        prometheus=settings.prometheus,
        workloads=settings.workloads,
        notes=tuple(notes),
    )


def _check_namespaces(top: Cursor, settings: DescriptionSettings) -> None:
    """Report namespaces of Kubernetes' own, and teams whose namespace is another one's: its quota and its rights would be those of both."""
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
        of.setdefault(namespace, f"the team {team.name}")


def _is_of_kubernetes(namespace: str) -> bool:
    """Whether Kubernetes creates the namespace, or reserves its name (the prefix `kube-`)."""
    return namespace == "default" or namespace.startswith("kube-")


def _check_cluster_name(top: Cursor, cloud: str, tool: str, name: str) -> None:
    if tool == KOPS and "." not in name:
        top.descend("cluster", "name").wrong("the name of a kOps cluster, which includes its domain, such as train.example.com")
    if cloud == "aws":
        check_cluster_name(top.descend("cluster", "name"), tool, name)
    elif not re.fullmatch(_AKS_NAME, name):
        top.descend("cluster", "name").wrong(
            "the name of an AKS cluster: up to 63 letters, digits and '-', with a letter or digit at both ends"
        )


def _check_region(top: Cursor, cloud: str, region: str) -> None:
    if catalogue.regions().get(region) not in {None, cloud}:
        top.descend("cluster", "region").wrong(f"a region of {cloud}", seen=f"{region}, a region of {catalogue.regions()[region]}")


def _check_zones(at: Cursor, cloud: str, region: str, zones: tuple[str, ...]) -> None:
    """Report zones of ``at`` that are not in the region."""
    for zone in at.descend("zones").items() if zones else ():
        name = str(zone.entry.value)
        if cloud == "aws" and (not re.fullmatch(f"{re.escape(region)}[a-z]", name) or region_of(name, region) != region):
            zone.wrong(f"a zone of {region}, such as {region}a")
        elif cloud == "azure" and name not in {"1", "2", "3"}:
            zone.wrong('one of "1", "2" and "3", quoted')


def _refuse_twice(top: Cursor, key: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for index, name in enumerate(names):
        if name in seen:
            top.descend(key).items()[index].add_problem(f'saw the name "{name}" a second time, expected each once; rename one')
        seen.add(name)


def _types(at: Cursor, pool: GpuPoolSettings, cloud: str, region: str, notes: list[str]) -> list[InstanceType]:
    """Return the types of a pool. Where GPUs are asked for, these are the cheapest of each GPU model that the region sells."""
    if pool.types:
        return [found for cursor in at.descend("types").items() if (found := _known_type(cursor, cloud)) is not None]
    sold = [type_ for type_ in catalogue.types(cloud, region) if type_.gpus]
    if not sold:
        sold = [type_ for type_ in catalogue.types(cloud) if type_.gpus]
        notes.append(f"Pool {pool.name}: no prices of {region} are known, so check that the region sells the types that were chosen.")
    fitting = [type_ for type_ in sold if type_.gpus == pool.gpus and _has_memory(type_, pool.gpu_memory)]
    cheapest = dict[str, InstanceType]()
    for type_ in sorted(fitting, key=lambda type_: (_price(type_, region), type_.name)):
        cheapest.setdefault(type_.gpu_product or type_.gpu_karpenter_name, type_)
    if not cheapest:
        counts = ", ".join(map(str, sorted({type_.gpus for type_ in sold})))
        memory = f" of at least {pool.gpu_memory / 1e9:g} GB each" if pool.gpu_memory else ""
        at.add_problem(f"saw {pool.gpus} GPUs{memory}, for which no type is known in {region}; types with {counts} GPUs are known")
    elif len(fitting) > len(cheapest):
        chosen = ", ".join(type_.name for type_ in cheapest.values())
        notes.append(
            f"Pool {pool.name}: of {len(fitting)} types with {pool.gpus} GPUs, the cheapest of each GPU model are used: {chosen}. "
            "To choose others, name them in types."
        )
    return list(cheapest.values())


def _has_memory(type_: InstanceType, least: int) -> bool:
    """Whether each GPU has ``least`` bytes: the catalogue's sizes are rounded down to whole MiB (24 GB are 22,888)."""
    return type_.gpu_manufacturer == "nvidia" and (type_.gpu_memory_mib + 1) * 2**20 > least


def _price(type_: InstanceType, region: str) -> float:
    """Return the on-demand price in the region, or the lowest one anywhere."""
    return (type_.prices.get(region) or min(type_.prices.values(), key=lambda price: price.on_demand)).on_demand


def _known_type(at: Cursor, cloud: str) -> InstanceType | None:
    name = str(at.entry.value)
    known = catalogue.lookup(name)
    if known is None:
        near = did_you_mean(name, [type_.name for type_ in catalogue.types(cloud) if type_.gpus])
        advice = near if near.startswith("did") else "docs/reference/catalogue.md lists them"
        at.wrong(f"a GPU instance type of {cloud} that the catalogue has; {advice}")
    elif known.cloud != cloud or not known.gpus:
        at.wrong(f"an instance type of {cloud} with GPUs", seen=f"{name}, with {known.gpus} GPUs on {known.cloud}")
    else:
        return known
    return None


def _groups(cloud: str, pool: GpuPoolSettings, types: list[InstanceType], zones: tuple[str, ...]) -> Iterable[NodeGroup]:
    reserved = (Taint(POOL_TAINT, pool.name, "NoSchedule"),) if pool.teams else ()
    for type_, market, zone, name in group_names(cloud, pool.name, types, pool.markets, zones):
        yield NodeGroup(
            name=name,
            pool=pool.name,
            instance_type=type_,
            market=market,
            zone=zone,
            min=pool.min,
            max=pool.max,
            labels=pool.labels,
            taints=(*pool.taints, *reserved),
            disk_gib=-(-pool.disk // GIB),
        )


def _check_agent_pools(at: Cursor, pool: GpuPoolSettings, groups: Iterable[NodeGroup], before: Iterable[NodeGroup]) -> None:
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
