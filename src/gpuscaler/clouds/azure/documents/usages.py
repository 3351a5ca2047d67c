"""Quotas of a subscription in a location, and how many machines still fit into them. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from gpuscaler.clouds.azure.documents.resources import SPOT
from gpuscaler.clouds.azure.documents.skus import Sku
from gpuscaler.clouds.azure.documents.wire import ReadingError, decoded
from gpuscaler.model.azure_names import fold_id

#: Quotas that are not of a family, as the usages name them: all vCPUs of the location, and those of spot machines of all sizes.
REGIONAL, LOW_PRIORITY = "cores", "lowPriorityCores"
#: Names of quotas that readers know.
_WORDS: Final = {fold_id(REGIONAL): "Total Regional Cores", fold_id(LOW_PRIORITY): "LowPriorityCores"}


class Usage(Struct, frozen=True, gc=False):
    """A quota in vCPUs, and what is used of it."""

    name: str
    current: int
    limit: int

    @property
    def left(self) -> int:
        """The number of vCPUs that still fit, not negative."""
        return max(self.limit - self.current, 0)


class _Name(Struct):
    value: str | None = None


class _Document(Struct, rename="camel"):
    name: _Name
    current_value: int
    limit: int


def usages_of(documents: Iterable[object]) -> dict[str, Usage]:
    """The quotas by folded name; entries that cannot be read are left out, and count as unknown."""
    usages: dict[str, Usage] = {}
    for document in documents:
        try:
            wire = decoded(document, _Document)
        except ReadingError:
            continue
        if wire.name.value:
            usages[fold_id(wire.name.value)] = Usage(wire.name.value, wire.current_value, wire.limit)
    return usages


def quotas_of(sku: Sku, market: str, usages: Mapping[str, Usage]) -> tuple[Usage, ...]:
    """The known quotas that a machine of ``sku`` in ``market`` counts towards: spot machines have one of their own for all sizes."""
    names = (LOW_PRIORITY,) if market == SPOT else (sku.family, REGIONAL)
    return tuple(usage for name in names if (usage := usages.get(fold_id(name))) is not None)


def room_of(sku: Sku, market: str, usages: Mapping[str, Usage]) -> int | None:
    """How many machines of ``sku`` still fit into the quotas of ``market``; None if no quota is known."""
    return min((usage.left // sku.vcpus for usage in quotas_of(sku, market, usages)), default=None)


def quota_name(usage: Usage) -> str:
    """The name of a quota as Azure's errors and its portal call it."""
    return _WORDS.get(fold_id(usage.name), usage.name)
