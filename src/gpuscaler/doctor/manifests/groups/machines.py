"""Instance types of groups: different ones in a group, those that are gone, and what their spot machines are chosen by."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, removed
from gpuscaler.doctor.manifests.groups.groups import Group, gpus_of, groups_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Machine, Manifests, Path
from gpuscaler.doctor.retirements import retirement_of

_GPUS = Mistake("L8", CRITICAL, "an autoscaler takes one of them for all: it buys too much, or machines that the pods do not fit")
_SIZES = Mistake("L8", WARNING, "Cluster Autoscaler computes with the first of them, and buys too much or too little")
_GONE = Mistake("L9", CRITICAL, "the cloud has no such machines: the group never grows")
_GOING = Mistake("L9", WARNING, "the cloud will have no such machines: the group will not grow any more")
_NO_TYPE = Mistake("L9", WARNING, "the group never grows, unless the type is newer than gpuscaler's catalogue")
_VOLUME = Mistake("L9", INFO, "the disks cost more and are slower")
_LOWEST = Mistake("L10", WARNING, "machines come from the pools that are interrupted first")
_PRICE = Mistake("L10", WARNING, "machines are interrupted, or not started, as soon as the price rises above it")
_MIXED = Mistake(
    "L10", WARNING, "which of the machines are on demand is left to AWS, so an autoscaler cannot fail over from one to the other"
)
_BEST = "price-capacity-optimized"


def find_unequal_types(manifests: Manifests) -> Iterable[Finding]:
    """L8: types with different numbers of GPUs, or different sizes, in one group."""
    for group in groups_of(manifests):
        counts = {name: gpus_of(name, manifests.machines) for _, name in group.types}
        known = {name: count for name, count in counts.items() if count is not None}
        if len(set(known.values())) > 1:
            listed = ", ".join(f"{name} with {count}" for name, count in sorted(known.items(), key=lambda item: item[1]))
            yield _GPUS.at(
                group.manifest,
                group.types[0][0][:-1],
                seen=f"{listed} GPUs",
                expected="types with the same number of GPUs",
                advice="make one group for each number of GPUs",
            )
            continue
        shapes = {name: manifests.machines[name] for name in counts if name in manifests.machines}
        cpus = {machine.cpus for machine in shapes.values()}
        memory = [machine.memory_mib for machine in shapes.values()]
        if len(cpus) > 1 or (memory and max(memory) > 1.3 * min(memory)):
            listed = ", ".join(f"{name} with {item.cpus} CPUs and {item.memory_mib // 1024} GiB" for name, item in shapes.items())
            yield _SIZES.at(
                group.manifest,
                group.types[0][0][:-1],
                seen=listed,
                expected="types with the same CPUs and memory",
                advice="make one group for each size",
            )


def find_former_types(manifests: Manifests) -> Iterable[Finding]:
    """L9: types that are out of service or that do not exist, and disks of gp2."""
    sizes = _gpu_sizes(manifests.machines)
    for group in groups_of(manifests):
        for path, name in group.types:
            yield from _unknown_size(group, path, name, sizes)
        for path, name in group.types:
            retirement = retirement_of(name, manifests.now)
            if retirement is not None:
                yield (_GONE if retirement.over else _GOING).at(
                    group.manifest,
                    path,
                    seen=f"{name}, which {retirement.text}",
                    expected="a type that the cloud offers",
                    advice="write a type of the families g4dn, g5, g6, p4 or p5 on AWS, NCasT4_v3 or NCads_H100_v5 on Azure",
                )
        for field in ("volumeType", "rootVolumeType"):
            if group.document.text(field) == "gp2":
                path = (*group.path, field)
                yield _VOLUME.at(group.manifest, path, seen="gp2", expected="gp3", new=changed(group.manifest.data, path, "gp3"))


def _gpu_sizes(machines: Mapping[str, Machine]) -> dict[str, list[str]]:
    """The types with GPUs of each family of AWS. Of these families the catalogue has all sizes, of others only some."""
    sizes: dict[str, list[str]] = defaultdict(list)
    for name, machine in machines.items():
        family, dot, _ = name.partition(".")
        if dot and machine.gpus:
            sizes[family].append(name)
    return sizes


def _unknown_size(group: Group, path: Path, name: str, sizes: Mapping[str, list[str]]) -> Iterator[Finding]:
    """A finding if ``name`` is of a family with GPUs that has no such size."""
    family = sizes.get(name.partition(".")[0].lower(), [])
    if not family or name in family:
        return
    # Another number is no slip of the pen.
    near = [known for known in difflib.get_close_matches(name.lower(), family, 3, 0.8) if _digits(known) == _digits(name)]
    expected = f"{near[0]} (did you mean that?)" if near else f"one of {', '.join(sorted(family, key=len))}"
    new = changed(group.manifest.data, path, near[0]) if near else None
    yield _NO_TYPE.at(group.manifest, path, seen=f"{name}, which is no type", expected=expected, new=new)


def _digits(name: str) -> str:
    return re.sub(r"\D", "", name)


def find_spot_settings(manifests: Manifests) -> Iterable[Finding]:
    """L10: how spot machines are chosen, and what they may cost."""
    for group in groups_of(manifests):
        yield from _eksctl_spot(group) if group.maker == "eksctl" else _kops_spot(group) if group.maker == "kops" else ()


def _eksctl_spot(group: Group) -> Iterable[Finding]:
    spot = group.document.part("instancesDistribution")
    if not spot.data:
        return
    share, base = spot.number("onDemandPercentageAboveBaseCapacity"), spot.number("onDemandBaseCapacity") or 0
    if share is None or share >= 100:
        return
    path = (*group.path, "instancesDistribution")
    strategy = spot.text("spotAllocationStrategy")
    if strategy in ("", "lowest-price"):
        new = changed(group.manifest.data, (*path, "spotAllocationStrategy"), _BEST)
        if spot.has("spotInstancePools"):
            new = removed(new, (*path, "spotInstancePools"))
        seen = strategy or "none, which is lowest-price"
        yield _LOWEST.at(group.manifest, (*path, "spotAllocationStrategy"), seen=seen, expected=_BEST, new=new)
    if spot.has("maxPrice"):
        yield _max_price(group, (*path, "maxPrice"), str(spot.value("maxPrice")))
    if share > 0 or base > 0:
        yield _MIXED.at(
            group.manifest,
            path,
            seen=f"{base:g} and {share:g} % of the rest on demand, the others spot",
            expected="one market in a group",
            advice="make one group with spot machines and another on demand",
        )


def _kops_spot(group: Group) -> Iterable[Finding]:
    path = ("spec", "mixedInstancesPolicy", "spotAllocationStrategy")
    if group.manifest.document.text(*path) == "lowest-price":
        new = changed(group.manifest.data, path, _BEST)
        pools = ("spec", "mixedInstancesPolicy", "spotInstancePools")
        new = removed(new, pools) if group.manifest.document.has(*pools) else new
        yield _LOWEST.at(group.manifest, path, seen="lowest-price", expected=_BEST, new=new)
    if group.document.has("maxPrice"):
        yield _max_price(group, ("spec", "maxPrice"), str(group.document.value("maxPrice")))


def _max_price(group: Group, path: tuple[str | int, ...], price: str) -> Finding:
    # Without a price, an InstanceGroup of kOps would be on demand.
    new = None if group.maker == "kops" else removed(group.manifest.data, path)
    advice = "use mixedInstancesPolicy with onDemandAboveBase: 0, which makes a group of spot machines without a price"
    return _PRICE.at(group.manifest, path, seen=price, expected="no price: the most is then the price on demand", new=new, advice=advice)


LINTS = (
    Lint("L8", "instance types of one group that differ", find_unequal_types),
    Lint("L9", "instance types and disks that are out of date", find_former_types),
    Lint("L10", "how spot machines are chosen", find_spot_settings),
)
