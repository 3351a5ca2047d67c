"""Discovers the pools that an account has for a cluster: all regions are read concurrently, and known answers are not asked for again."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.api.groups import Group, GroupError, IncompleteGroupError, group_of, tags_of
from gpuscaler.clouds.aws.api.remembering import load_cache, save_cache
from gpuscaler.clouds.aws.discovery.ownership import EKS, NO_ACCELERATOR, decide_ownership
from gpuscaler.clouds.aws.discovery.pools import AwsPool, RegionData, pool_of, skipped_group
from gpuscaler.clouds.aws.discovery.regions import RegionReader, Scope
from gpuscaler.clouds.discovery.settings import with_overrides, with_unique_names
from gpuscaler.clouds.protocol import UNAUTHORISED, UNKNOWN, CloudError
from gpuscaler.model.aside import Skipped
from gpuscaler.model.overrides import EVERY_POOL, OfferingPrice, PoolOverride

#: Concurrent calls per region.
AT_ONCE = 8


class DiscoveryResult(Struct, frozen=True):
    """The result of a discovery pass. ``failed`` are regions that could not be read now; their pools are those of an earlier pass.

    ``unknown`` are the failed regions that were never read. ``causes`` are the causes of failures, by the object of the entry of
    ``set_aside`` that describes one. ``released`` are groups that would be pools if they had accelerators, or that were pools until
    someone removed a tag: they are skipped, but whatever is still in progress there, perhaps from an earlier version of gpuscaler, is
    finished.
    """

    pools: tuple[AwsPool, ...] = ()
    released: tuple[AwsPool, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    failed: tuple[str, ...] = ()
    causes: Mapping[str, str] = {}
    unknown: tuple[str, ...] = ()

    @property
    def forbidden(self) -> bool:
        """Whether AWS did not accept the caller's identity or denied a call."""
        return UNAUTHORISED in self.causes.values()


class _RegionResult(Struct, frozen=True):
    """The result of reading one region; it could not be read if there is a ``cause``."""

    pools: tuple[AwsPool, ...] = ()
    released: tuple[AwsPool, ...] = ()
    set_aside: tuple[Skipped, ...] = ()
    cause: str = ""


def _name(region: str) -> str:
    return f"Region {region}"


class Discovery:
    """Discovers the pools of a cluster. Used by one thread at a time; :meth:`discover` blocks while AWS answers.

    ``overrides`` and ``prices`` are the user's settings, which take precedence. ``folder`` caches rarely changing answers across restarts;
    with None there is no such cache. ``now`` is the wall clock.
    """

    def __init__(
        self,
        calls: Calls,
        scope: Scope,
        *,
        regions: Iterable[str],
        now: Callable[[], float],
        launch: str = "auto",
        overrides: Iterable[PoolOverride] = (),
        prices: tuple[OfferingPrice, ...] = (),
        folder: Path | None = None,
    ) -> None:
        self._scope, self._launch, self._folder = scope, launch, folder
        self._overrides = {pool_override.name: pool_override for pool_override in overrides}
        names = tuple(dict.fromkeys(regions))
        endpoint = calls.endpoint("ec2", names[0]) if names and folder is not None else ""
        # All regions of an account share one file.
        self._endpoint = endpoint.replace(names[0], "") if names else ""
        self._cache = load_cache(folder, self._endpoint)
        self._saved = msgspec.json.encode(self._cache)
        self._outer = ThreadPoolExecutor(max_workers=max(len(names), 1), thread_name_prefix="aws-region")
        self._workers = [ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix=f"aws-{name}") for name in names]
        self._readers = [
            RegionReader(name, calls, self._cache, workers=workers, now=now, prices=prices)
            for name, workers in zip(names, self._workers, strict=True)
        ]
        self._last: dict[str, _RegionResult] = {}

    def discover(self) -> DiscoveryResult:
        """Read the account now. Never raises for an answer of AWS: a region that fails is listed in the result."""
        by_region = dict(zip((reader.region for reader in self._readers), self._outer.map(self._read_region, self._readers), strict=True))
        failed = tuple(region for region, result in by_region.items() if result.cause)
        causes = {_name(region): result.cause for region, result in by_region.items() if result.cause}
        for region, result in by_region.items():
            if not result.cause:
                self._last[region] = result
        self._save_cache()
        results = [self._last[region] for region in by_region if region in self._last]
        aws_pools = with_unique_names(
            [aws_pool for result in results for aws_pool in (*result.pools, *result.released)], lambda aws_pool: aws_pool.group.region
        )
        released_names = {(aws_pool.group.region, aws_pool.group.name) for result in results for aws_pool in result.released}
        released = [aws_pool for aws_pool in aws_pools if (aws_pool.group.region, aws_pool.group.name) in released_names]
        pools = with_overrides((aws_pool for aws_pool in aws_pools if aws_pool not in released), self._overrides)
        without_accelerators = {aws_pool.pool.name for aws_pool in released}
        unused = [
            Skipped(
                f"Pool {name}",
                f"saw the pool in the file, but its group is not adopted: {NO_ACCELERATOR}"
                if name in without_accelerators
                else "saw the pool in the file, expected a group of that name in the account; nothing is changed",
            )
            for name in self._overrides
            if name not in {EVERY_POOL, *(aws_pool.pool.name for aws_pool in pools)}
        ]
        set_aside = (*(skipped for result in by_region.values() for skipped in result.set_aside), *unused)
        unknown = tuple(region for region in failed if region not in self._last)
        return DiscoveryResult(tuple(pools), tuple(released), set_aside, failed, causes, unknown)

    def set_overrides(self, overrides: Iterable[PoolOverride]) -> None:
        """Use ``overrides`` as the user's settings from the next pass on."""
        self._overrides = {pool_override.name: pool_override for pool_override in overrides}

    def close(self) -> None:
        for executor in (self._outer, *self._workers):
            executor.shutdown(wait=False, cancel_futures=True)

    def _read_region(self, reader: RegionReader) -> _RegionResult:
        try:
            return self._read_groups(reader)
        except CloudError as error:
            return _RegionResult(set_aside=(Skipped(_name(reader.region), error.detail),), cause=error.cause)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"saw {type(error).__name__}: {error} in a reply, expected one as AWS documents it"
            return _RegionResult(set_aside=(Skipped(_name(reader.region), reason),), cause=UNKNOWN)

    def _read_groups(self, reader: RegionReader) -> _RegionResult:
        groups: list[tuple[Group, str]] = []
        skipped: list[Skipped] = []
        last = self._last.get(reader.region, _RegionResult())
        before = {aws_pool.group.name: aws_pool for aws_pool in (*last.pools, *last.released)}
        untagged: list[AwsPool] = []
        for entry in reader.group_entries(self._scope, before):
            name = str(entry.get("AutoScalingGroupName"))
            scope = self._scope
            ownership = decide_ownership(
                name, tags_of(entry), cluster=scope.cluster, named=scope.groups, extra=scope.tags, exclude=scope.exclude
            )
            if name in before and not ownership.source and not ownership.foreign:
                untagged.append(before[name])
                skipped += [] if ownership.reason else [skipped_group(name, reader.region, "no tag assigns it to the cluster any more")]
            if ownership.reason:
                skipped.append(skipped_group(name, reader.region, ownership.reason))
            elif ownership.source:
                try:
                    groups.append((group_of(entry, reader.region), ownership.source))
                except GroupError as error:
                    skipped.append(skipped_group(name, reader.region, str(error)))
        result = self._build_pools(reader, sorted(groups, key=lambda found: found[0].name), skipped, before)
        return msgspec.structs.replace(result, released=(*result.released, *untagged))

    def _build_pools(
        self, reader: RegionReader, groups: list[tuple[Group, str]], skipped: list[Skipped], before: Mapping[str, AwsPool]
    ) -> _RegionResult:
        region_data = reader.read_region_data([group for group, _ in groups], self._scope.cluster) if groups else RegionData(reader.region)
        pools, released = [], []
        for group, source in groups:
            try:
                aws_pool = pool_of(group, source, region_data, launch=self._launch)
            except IncompleteGroupError as error:
                if group.name not in before:
                    skipped.append(skipped_group(group.name, reader.region, str(error)))
                    continue
                # An error of EC2 is no reason to forget the machines of a group.
                warnings = (f"{error}; its last known state is used", *before[group.name].warnings)
                aws_pool = msgspec.structs.replace(before[group.name], group=group, warnings=tuple(dict.fromkeys(warnings)))
            except GroupError as error:
                skipped.append(skipped_group(group.name, reader.region, str(error)))
                continue
            if source != EKS or aws_pool.has_accelerators:
                pools.append(aws_pool)
            else:
                released.append(aws_pool)
                skipped.append(skipped_group(group.name, reader.region, NO_ACCELERATOR))
        notes = [Skipped(f"Region {reader.region} {what}", text) for what, text in reader.notes.items()] if groups else []
        return _RegionResult(tuple(pools), tuple(released), (*skipped, *notes))

    def _save_cache(self) -> None:
        now = msgspec.json.encode(self._cache)
        if now != self._saved:
            self._saved = now
            save_cache(self._cache, self._folder, self._endpoint)
