"""Discovers the pools of a cluster in its subscriptions: all parts are read concurrently, and each keeps its last good state.

A part is an AKS cluster or a resource group. A part that does not answer now is reported with the pools of its last answer; nothing of
another part depends on it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import Arm, GoneError
from gpuscaler.clouds.azure.discovery.accounts import Account, ClusterPart, Contents, FoundPool, GroupPart, skipped_resources
from gpuscaler.clouds.azure.discovery.locations import LocationReader
from gpuscaler.clouds.azure.discovery.offerings import LocationData, PriceSource
from gpuscaler.clouds.azure.discovery.overrides import for_pools
from gpuscaler.clouds.azure.discovery.ownership import AKS, NO_ACCELERATOR, is_named
from gpuscaler.clouds.azure.discovery.pools import AUTO, AzurePool, PoolError, pool_of
from gpuscaler.clouds.azure.documents.resources import SCALE_SETS, is_word
from gpuscaler.clouds.azure.documents.skus import sku_in_catalogue
from gpuscaler.clouds.azure.documents.usages import Usage
from gpuscaler.clouds.azure.documents.wire import ReadingError
from gpuscaler.clouds.discovery.settings import with_overrides, with_unique_names
from gpuscaler.clouds.protocol import CONFIGURATION, UNAUTHORISED, UNKNOWN, CloudError
from gpuscaler.model.aside import Skipped
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.overrides import EVERY_POOL, PoolOverride

#: How many names of pools a message lists.
_LISTED: Final = 10
#: What to do if Azure does not know a subscription: it says the same of one in which the identity has no right at all.
_SUBSCRIPTION_ADVICE: Final = "correct id in azure.subscriptions, or give gpuscaler's identity a role in that subscription"

#: (subscription, location), both in lower case.
Place = tuple[str, str]


class Prices(PriceSource, Protocol):
    """Prices that are read now and then. ``refresh`` returns notes on what could not be read."""

    async def refresh(self, locations: Iterable[str], sizes: Collection[str]) -> Mapping[str, str]: ...


class DiscoveryResult(Struct, frozen=True):
    """The result of a discovery pass. ``failed`` are parts that could not be read now; their pools are those of an earlier pass.

    ``unknown`` are the failed parts that were never read. ``causes`` are the causes of failures, by the object of the entry of
    ``set_aside`` that describes one. ``released`` are pools that would be adopted if they had accelerators, or that were adopted until
    someone removed a tag: they are skipped, but whatever is still in progress there is finished. ``usages`` are the quotas by
    (subscription, location), both in lower case.
    """

    pools: tuple[AzurePool, ...] = ()
    released: tuple[AzurePool, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    failed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    causes: Mapping[str, str] = {}
    usages: Mapping[Place, Mapping[str, Usage]] = {}

    @property
    def forbidden(self) -> bool:
        """Whether Azure did not accept the caller's identity or denied a call."""
        return UNAUTHORISED in self.causes.values()


class _PartResult(Struct, frozen=True):
    """The result of reading one part. ``contents`` is None if it could not be read, for one of ``causes``."""

    contents: Contents | None = None
    pools: tuple[AzurePool, ...] = ()
    released: tuple[AzurePool, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    causes: Mapping[str, str] = {}


class Discovery:
    """Discovers the pools of a cluster. ``api`` is the setting that says how machines are bought; ``now`` is the wall clock.

    ``overrides`` are the user's settings, which take precedence.
    """

    def __init__(
        self,
        arm: Arm,
        accounts: Sequence[Account],
        *,
        now: Callable[[], float],
        prices: Prices,
        api: str = AUTO,
        overrides: Iterable[PoolOverride] = (),
    ) -> None:
        self._arm, self._accounts, self._now = arm, tuple(accounts), now
        self._api, self._prices = api, prices
        self._overrides = {pool_override.name: pool_override for pool_override in overrides}
        self._parts: tuple[ClusterPart | GroupPart, ...] = tuple(part for account in accounts for part in _parts_of(arm, account, now))
        self._locations: dict[Place, LocationReader] = {}
        #: The last good result of each part, by its name.
        self._last: dict[str, _PartResult] = {}

    async def discover(self) -> DiscoveryResult:
        """Read the subscriptions now. Never raises for an answer of Azure: a part that fails is listed in the result."""
        read = dict(zip(self._parts, await asyncio.gather(*map(self._read_part, self._parts)), strict=True))
        places, failures, notes = await self._read_places(read.values())
        results = {part: self._with_pools(part, result, places, failures) for part, result in read.items()}
        failed = tuple(part.name for part, result in results.items() if result.contents is None)
        for part, result in results.items():
            if result.contents is not None:
                self._last[part.name] = result
        known = [self._last[part.name] for part in self._parts if part.name in self._last]
        pools, released = self._named(known)
        set_aside = [skipped for result in results.values() for skipped in result.set_aside]
        # What a part that was not read has is unknown: it may well have the pools of the file.
        complete = not any(result.set_aside for result in read.values())
        unused = self._unused_overrides(pools, released, results.values()) if complete else ()
        return DiscoveryResult(
            pools=pools,
            released=released,
            set_aside=tuple(dict.fromkeys((*set_aside, *notes, *self._missing_pools(results), *unused))),
            failed=failed,
            unknown=tuple(name for name in failed if name not in self._last),
            causes={about: cause for result in results.values() for about, cause in result.causes.items()},
            usages={place: location_data.usages for place, location_data in places.items()},
        )

    def set_overrides(self, overrides: Iterable[PoolOverride]) -> None:
        """Use ``overrides`` as the user's settings from the next pass on."""
        self._overrides = {pool_override.name: pool_override for pool_override in overrides}

    async def _read_part(self, part: ClusterPart | GroupPart) -> _PartResult:
        """What a part holds. A part that does not exist is a mistake in the settings, unless it had pools before."""
        try:
            return _PartResult(await part.read())
        except GoneError as error:
            advice = _SUBSCRIPTION_ADVICE if error.failure.code.lower() == "subscriptionnotfound" else part.advice
            skipped = Skipped(part.name, f"{error.detail.rstrip('.')}; {advice}")
            last = self._last.get(part.name, _PartResult())
            gone = not (last.pools or last.released)
            return _PartResult(Contents(), set_aside=(skipped,)) if gone else _failed_part(skipped, CONFIGURATION)
        except CloudError as error:
            advice = f"; {part.advice}" if error.cause == CONFIGURATION else ""
            skipped = Skipped(part.name, f"{error.detail}{advice}")
            return _failed_part(skipped, error.cause)
        except ReadingError as error:
            return _failed_part(Skipped(part.name, str(error)), UNKNOWN)

    async def _read_places(
        self, results: Iterable[_PartResult]
    ) -> tuple[dict[Place, LocationData], dict[Place, CloudError], tuple[Skipped, ...]]:
        """(data by subscription and location, places of which no size is known, notes on what else could not be read)."""
        sizes: dict[Place, dict[str, None]] = {}
        groups: dict[Place, dict[str, None]] = {}
        for found in (found for result in results if result.contents is not None for found in result.contents.found):
            place = _place_of(found)
            sizes.setdefault(place, {}).update(dict.fromkeys(found.resources.all_sizes))
            group = found.resources.reservation_group
            groups.setdefault(place, {}).update({group: None} if group else {})
        for place in sizes:
            if place not in self._locations:
                self._locations[place] = LocationReader(self._arm, *place, now=self._now)
        locations = {location for _, location in sizes}
        all_sizes = {size for names in sizes.values() for size in names}
        price_notes, *answers = await asyncio.gather(
            self._prices.refresh(locations, all_sizes) if sizes else _no_notes(),
            *(self._locations[place].read(sizes[place], groups[place]) for place in sizes),
            return_exceptions=True,
        )
        places, failures = {}, {}
        for place, answer in zip(sizes, answers, strict=True):
            if isinstance(answer, LocationData):
                places[place] = answer
            elif isinstance(answer, CloudError):
                failures[place] = answer
            elif isinstance(answer, BaseException):
                raise answer
        if isinstance(price_notes, BaseException):
            raise price_notes
        assert isinstance(price_notes, Mapping)
        notes = [Skipped(f"Prices {what}", text) for what, text in price_notes.items()]
        for subscription, location in sizes:
            reader = self._locations[subscription, location]
            notes += [Skipped(f"Location {subscription}/{location} {what}", text) for what, text in reader.notes.items()]
        return places, failures, tuple(notes)

    def _with_pools(
        self,
        part: ClusterPart | GroupPart,
        result: _PartResult,
        places: Mapping[Place, LocationData],
        failures: Mapping[Place, CloudError],
    ) -> _PartResult:
        """The part with its pools. It counts as not read while nothing is known of a location that its pools are in."""
        if result.contents is None:
            return result
        contents = result.contents
        unknown = {place: failures[place] for found in contents.found if (place := _place_of(found)) in failures}
        if unknown:
            skipped = tuple(Skipped(f"{part.name} in {location}", error.detail) for (_, location), error in unknown.items())
            causes = {entry.object: error.cause for entry, error in zip(skipped, unknown.values(), strict=True)}
            return replace(result, contents=None, set_aside=(*result.set_aside, *contents.set_aside, *skipped), causes=causes)
        last = self._last.get(part.name, _PartResult())
        before = {azure_pool.id: azure_pool for azure_pool in (*last.pools, *last.released)}
        pools, released, set_aside = [], [], [*result.set_aside, *contents.set_aside]
        for found in contents.found:
            location_data = places[_place_of(found)]
            lacks_accelerators = found.source == AKS and not _may_have_accelerators(found, location_data)
            try:
                azure_pool = self._build(found, location_data, before)
            except PoolError as error:
                set_aside.append(skipped_resources(found.resources, NO_ACCELERATOR if lacks_accelerators else str(error)))
                # Whatever is in progress there is finished, such as after AKS's autoscaler was switched on.
                released += [before[found.resources.id]] if found.resources.id in before else []
                continue
            if lacks_accelerators or (found.source == AKS and not azure_pool.has_accelerators):
                released.append(azure_pool)
                set_aside.append(skipped_resources(found.resources, NO_ACCELERATOR))
            else:
                pools.append(azure_pool)
        stayed, lost = _not_found_again(contents, last, {azure_pool.id for azure_pool in (*pools, *released)})
        pools += [azure_pool for azure_pool in stayed if azure_pool.id not in {azure_pool.id for azure_pool in last.released}]
        released += [azure_pool for azure_pool in stayed if azure_pool.id in {azure_pool.id for azure_pool in last.released}] + lost
        return _PartResult(contents, tuple(pools), tuple(released), tuple(set_aside), result.causes)

    def _build(self, found: FoundPool, location_data: LocationData, before: Mapping[str, AzurePool]) -> AzurePool:
        """The pool, or its last state if a part of it cannot be read now. Raises PoolError."""
        resources = found.resources
        try:
            if resources.scale_set is None and resources.agent_pool is not None and is_word(resources.agent_pool.kind, SCALE_SETS):
                group = resources.agent_pool.node_resource_group
                raise PoolError(f"saw no scale set of it in {group}, expected one", incomplete=True)
            return pool_of(resources, found.source, location_data, self._prices, api=self._api)
        except PoolError as error:
            earlier = before.get(resources.id)
            if not error.incomplete or earlier is None:
                raise
            return _unchanged(earlier, str(error))

    def _named(self, results: Sequence[_PartResult]) -> tuple[tuple[AzurePool, ...], tuple[AzurePool, ...]]:
        """(pools with the user's overrides, released ones), with names that are unique over all parts."""
        released_ids = {azure_pool.id for result in results for azure_pool in result.released}
        # A scale set may be in two parts, if a resource group is listed beside its cluster.
        unique = {azure_pool.id: azure_pool for result in reversed(results) for azure_pool in (*result.released, *result.pools)}
        ordered = sorted(unique.values(), key=lambda azure_pool: azure_pool.id)
        named = with_unique_names(ordered, lambda azure_pool: azure_pool.location)
        kept = [azure_pool for azure_pool in named if azure_pool.id not in released_ids]
        pools = with_overrides(kept, for_pools(self._overrides, [azure_pool.pool for azure_pool in kept]))
        return tuple(pools), tuple(azure_pool for azure_pool in named if azure_pool.id in released_ids)

    def _missing_pools(self, results: Mapping[ClusterPart | GroupPart, _PartResult]) -> Iterable[Skipped]:
        """Names in the settings that are not in Azure, for accounts of which all parts were read."""
        for account in self._accounts:
            contents = [result.contents for part, result in results.items() if part.account is account]
            names = {name for content in contents if content is not None for name in content.names}
            if None in contents:
                continue
            for name in account.pools:
                if not is_named(name, names):
                    listed = ", ".join(sorted(names)[:_LISTED]) or "none"
                    yield Skipped(
                        f"Pool {account.subscription}/{name}",
                        f"saw the name in pools, expected an agent pool or scale set of that name; Azure has {listed}; correct the name",
                    )

    def _unused_overrides(
        self, pools: Iterable[AzurePool], released: Iterable[AzurePool], results: Iterable[_PartResult]
    ) -> Iterable[Skipped]:
        names = {fold_id(azure_pool.pool.name) for azure_pool in pools}
        in_azure = {fold_id(name) for result in results if result.contents is not None for name in result.contents.names}
        without_accelerators = {fold_id(azure_pool.pool.name) for azure_pool in released if not azure_pool.has_accelerators}
        for name in self._overrides:
            if name == EVERY_POOL or fold_id(name) in names:
                continue
            if fold_id(name) in without_accelerators:
                reason = f"but its agent pool is not adopted: {NO_ACCELERATOR}"
            elif fold_id(name) in in_azure:
                reason = "but it is not adopted in Azure; its own entry says why, if there is one"
            else:
                reason = "expected an agent pool or scale set of that name in Azure; nothing is changed"
            yield Skipped(f"Pool {name}", f"saw the pool in the file, {reason}")


def _failed_part(skipped: Skipped, cause: str) -> _PartResult:
    return _PartResult(set_aside=(skipped,), causes={skipped.object: cause})


def _parts_of(arm: Arm, account: Account, now: Callable[[], float]) -> Iterable[ClusterPart | GroupPart]:
    if account.cluster_group:
        yield ClusterPart(arm, account)
    for group in {fold_id(group): group for group in account.resource_groups}.values():
        yield GroupPart(arm, account, group, now=now)


def _place_of(found: FoundPool) -> Place:
    return fold_id(found.resources.subscription), found.resources.location


def _may_have_accelerators(found: FoundPool, location_data: LocationData) -> bool:
    """Whether a size has GPUs, or is not known at all."""
    skus = [location_data.skus.get(fold_id(size)) or sku_in_catalogue(size) for size in found.resources.sizes]
    return any(sku is None or sku.gpus > 0 for sku in skus)


def _not_found_again(contents: Contents, last: _PartResult, listed: Collection[str]) -> tuple[list[AzurePool], list[AzurePool]]:
    """(pools whose documents cannot be read now, as they were; pools that still exist, and lost the tag by which they were found).

    Pools that another cluster's tag claims now, or that are gone, are in neither.
    """
    names = {fold_id(name) for name in contents.names}
    unreadable = {fold_id(name): reason for name, reason in contents.unreadable.items()}
    found = {found_pool.resources.id for found_pool in contents.found}
    stayed, lost = [], []
    for azure_pool in (*last.pools, *last.released):
        name = fold_id(azure_pool.resources.own_name)
        if azure_pool.id in {*listed, *found, *contents.foreign}:
            continue
        if name in unreadable:
            stayed.append(_unchanged(azure_pool, unreadable[name]))
        elif name in names:
            lost.append(azure_pool)
    return stayed, lost


def _unchanged(earlier: AzurePool, reason: str) -> AzurePool:
    """The last known state of a pool of which a part cannot be read now: that is no reason to forget its machines."""
    return replace(earlier, warnings=tuple(dict.fromkeys((f"{reason}; its last known state is used", *earlier.warnings))))


async def _no_notes() -> Mapping[str, str]:
    return {}
