"""Reads a description: strict YAML to :class:`Description`, with every mistake and its line."""

from collections.abc import Mapping
from dataclasses import replace

from gpuscaler.generating.description.checking import (
    check_agent_pools,
    check_cluster,
    check_general,
    check_teams,
    check_teams_of,
    check_zones,
    refuse_twice,
)
from gpuscaler.generating.description.choosing import groups_of, types_of
from gpuscaler.generating.description.limits import check_pool
from gpuscaler.generating.description.remarks import check_minimums, remarks
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.description.settings import KOPS, MANAGED, TOOLS, DescriptionSettings
from gpuscaler.model.quantities import format_count
from gpuscaler.model.reading.cursor import MAX_VALUES, Cursor, Report, TooMuchError
from gpuscaler.model.reading.document import read_document
from gpuscaler.model.reading.errors import Problem, SettingsError
from gpuscaler.settings.fields.table import NO_CONTEXT, read

#: Auto Scaling allows 500 groups in a region, unless its owner asked for more; AKS allows 100 agent pools, two of which have no GPUs.
MAX_GROUPS: Mapping[str, int] = {"aws": 500, "azure": 98}
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
    """Return the description; None after a mistake. A key with a mistake has its default, and what depends on it is not checked."""
    settings = read(DescriptionSettings, top, NO_CONTEXT)
    if not isinstance(top.entry.value, dict):
        return None
    check_teams(top, settings)
    refuse_twice(top, "gpu_pools", (pool.name for pool in settings.gpu_pools))
    if top.has("gpu_pools") and top.descend("gpu_pools").entry.value == []:
        top.descend("gpu_pools").wrong("at least one pool; add - name: …", seen="an empty list")
    notes = list[str]()
    groups = _groups(top, settings, notes)
    if report.problems:
        return None
    cloud, cluster = settings.cloud, settings.cluster
    tool = settings.tool or TOOLS[cloud][0]
    description = Description(
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
    )
    check_minimums(top, description)
    return replace(description, notes=(*notes, *remarks(description)))


def _groups(top: Cursor, settings: DescriptionSettings, notes: list[str]) -> list[NodeGroup]:
    """Return the groups of all pools, and report what is wrong with them and with their cluster."""
    cloud, cluster = settings.cloud, settings.cluster
    known = cloud in TOOLS
    tool = settings.tool or (None if top.has("tool") or not known else TOOLS[cloud][0])
    if known and tool is not None and tool not in TOOLS[cloud]:
        top.descend("tool").wrong(f"one of {', '.join(TOOLS[cloud])} on {cloud}")
    if known:
        check_cluster(top, cloud, tool, settings)
        check_general(top, cloud, settings.general.types)
    zones = cluster.zones or ((f"{cluster.region}a", f"{cluster.region}b") if cloud == "aws" else ("",))
    groups = list[NodeGroup]()
    for at, pool in zip(top.descend("gpu_pools").items() if settings.gpu_pools else (), settings.gpu_pools, strict=True):
        check_teams_of(at, pool, settings)
        if not known:
            continue
        check_zones(at, cloud, cluster.region, pool.zones)
        added = list(groups_of(cloud, pool, types_of(at, pool, cloud, cluster.region, notes), pool.zones or zones))
        if pool.name and cloud == "azure":
            check_agent_pools(at, pool, added, groups)
        elif pool.name and tool is not None:
            check_pool(at, pool, added, before=groups, tool=tool, cluster=cluster.name)
        groups += added
    if known and len(groups) > MAX_GROUPS[cloud]:
        top.descend("gpu_pools").add_problem(
            f"saw {format_count(len(groups), 'group')} (a group for each type, market and zone), expected at most {MAX_GROUPS[cloud]}; "
            "name fewer types"
        )
    return groups
