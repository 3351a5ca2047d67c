"""What machines are of: markets, shapes, images."""

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.doctor.checks.azure.account import SPOT, AzurePool, AzureScaleSet, agent_pools, azure_check, scale_sets
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix


def _own_scale_sets(evidence: Evidence) -> Iterator[AzureScaleSet]:
    return (scale_set for scale_set in scale_sets(evidence) if scale_set.adopted and not scale_set.agent_pool)


def find_unequal_shapes(evidence: Evidence) -> Iterable[Finding]:
    """D15: sizes with different numbers of GPUs, among which Azure chooses."""
    for scale_set in _own_scale_sets(evidence):
        gpus = scale_set.document.part("Gpus")
        counts = sorted({gpus.whole(size) for size in scale_set.sizes if gpus.has(size)})
        if len(counts) > 1:
            yield Finding(
                "D15",
                WARNING,
                scale_set.title,
                "skuProfile.vmSizes",
                f"sizes with {', '.join(map(str, counts))} GPUs",
                "one number of GPUs in a scale set",
                "Azure chooses the size, so a pod may get a machine that it does not fit, or one GPU of a machine with eight",
                Fix(advice="make a scale set for each number of GPUs"),
            )


def find_narrow_spot(evidence: Evidence) -> Iterable[Finding]:
    """D19: a strategy that buys what is evicted most."""
    for scale_set in _own_scale_sets(evidence):
        if SPOT in scale_set.markets and scale_set.is_word("LowestPrice", "skuProfile", "allocationStrategy"):
            yield Finding(
                "D19",
                WARNING,
                scale_set.title,
                "skuProfile.allocationStrategy",
                "LowestPrice",
                "CapacityOptimized",
                "the cheapest spot capacity is that whose machines are evicted most",
                Fix((scale_set.update("--set", "skuProfile.allocationStrategy=CapacityOptimized"),)),
            )


def find_mixed_markets(evidence: Evidence) -> Iterable[Finding]:
    """D20: on demand and spot in one scale set."""
    for scale_set in _own_scale_sets(evidence):
        mix = scale_set.document.part("properties", "priorityMixPolicy")
        base, percent = mix.number("baseRegularPriorityCount") or 0, mix.number("regularPriorityPercentageAboveBase") or 0
        if base or 0 < percent < 100:
            yield Finding(
                "D20",
                WARNING,
                scale_set.title,
                "priorityMixPolicy",
                f"the first {base:g} on demand, then {percent:g} %",
                "one market in each scale set",
                "Azure divides machines between the markets: if spot is dry, the request fails, and none on demand comes in its place",
                Fix(
                    (scale_set.update("--regular-priority-count", "0", "--regular-priority-percentage", "0"),),
                    "make another scale set of machines on demand; gpuscaler goes over from one to the other",
                ),
            )


#: Beginnings of names of node images with the day of their end. Source: AKS's retirement notices (AKS issues 4873, 4874, 4988, 5648, 5701).
_NODE_IMAGES: Final = (
    ("AKSUbuntu-1604", "2021-04-30"),
    ("AKSUbuntu-1804", "2025-06-17"),
    ("AKSUbuntu-2004", "2027-03-17"),
    ("AKSUbuntu-2204", "2027-06-30"),
    ("AKSAzureLinux-V2", "2025-11-30"),
    ("AKSCBLMariner-", "2025-11-30"),
    ("AKSFlatcar-", "2026-06-08"),
)
#: Parts of offers and versions of images of the marketplace. Source: Ubuntu's release cycle, without Ubuntu Pro; aks-engine's archive.
_MARKETPLACE: Final = (
    (re.compile(r"16[._]04"), "2021-04-30"),
    (re.compile(r"18[._]04"), "2023-05-31"),
    (re.compile(r"20[._]04|-focal"), "2025-05-31"),
    (re.compile(r"^microsoft-aks "), "2023-07-31"),
)


def find_images(evidence: Evidence) -> Iterator[Finding]:
    """D22: operating systems that have ended."""
    for pool in agent_pools(evidence):
        image = pool.document.text("properties", "nodeImageVersion")
        end = next((day for start, day in _NODE_IMAGES if image.lower().startswith(start.lower())), "")
        if _is_past(end, evidence.now):
            yield _ended(
                pool, "nodeImageVersion", image, end, "upgrade the pool to a newer version of Kubernetes: `az aks nodepool upgrade`"
            )
    for scale_set in _own_scale_sets(evidence):
        reference = scale_set.document.part("properties", "virtualMachineProfile", "storageProfile", "imageReference")
        image = " ".join(filter(None, map(reference.text, ("publisher", "offer", "sku"))))
        end = next((day for pattern, day in _MARKETPLACE if pattern.search(image.lower())), "")
        if _is_past(end, evidence.now):
            advice = "set an image that is maintained in the model of the scale set"
            yield _ended(scale_set, "virtualMachineProfile.storageProfile.imageReference", image, end, advice)


def _is_past(day: str, now: float) -> bool:
    return bool(day) and dt.datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() <= now


def _ended(machines: AzurePool | AzureScaleSet, field: str, image: str, day: str, advice: str) -> Finding:
    return Finding(
        "D22",
        WARNING,
        machines.title,
        field,
        f"{image}, which ended on {day}",
        "an operating system that is maintained",
        "there are no patches, drivers of today do not support it, and new machines fail once the image is deleted",
        Fix(advice=advice),
    )


CHECKS = (
    azure_check("D15", "shapes of machines in one scale set", (), find_unequal_shapes),
    azure_check("D19", "spot capacity of scale sets", (), find_narrow_spot),
    azure_check("D20", "markets of scale sets", (), find_mixed_markets),
    azure_check("D22", "operating systems of pools", (), find_images),
)
