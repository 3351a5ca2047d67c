"""Reads one region: its groups, and what is needed to make pools of them. Failures are noted, and the rest is still read."""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from gpuscaler import catalogue
from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.api.groups import Group, Reply
from gpuscaler.clouds.aws.api.remembering import NODEGROUPS_SECONDS, TYPES_SECONDS, AnswerCache
from gpuscaler.clouds.aws.discovery import ownership
from gpuscaler.clouds.aws.discovery.pools import RegionData, requirements_key
from gpuscaler.clouds.aws.prices.asking import PriceReader
from gpuscaler.clouds.aws.prices.reservations import Reservation, reservations_of
from gpuscaler.clouds.aws.templates import instance_types
from gpuscaler.clouds.aws.templates.launches import Launch, configuration_of
from gpuscaler.clouds.aws.templates.nodegroups import Nodegroup, nodegroup_named, nodegroup_of
from gpuscaler.clouds.aws.templates.templates import Templates
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.clouds.remembering import DatedAnswer
from gpuscaler.model.overrides import OfferingPrice

T = TypeVar("T")

#: How many names or filter values a call accepts.
MAX_NAMES, MAX_VALUES = 50, 100


class Scope(Struct, frozen=True):
    """What to look for: see the keys of ``aws`` in the settings."""

    cluster: str
    groups: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    exclude: tuple[str, ...] = ()


def chunks(items: Iterable[T], size: int) -> list[list[T]]:
    """The items in lists of at most ``size``."""
    all_items = list(items)
    return [all_items[start : start + size] for start in range(0, len(all_items), size)]


class RegionReader:
    """Knowledge of one region, kept from pass to pass. ``workers`` make calls concurrently; used by one thread at a time.

    Without ``list_prices`` the Pricing API is not asked.
    """

    def __init__(
        self,
        region: str,
        calls: Calls,
        cache: AnswerCache,
        *,
        workers: Executor,
        now: Callable[[], float],
        prices: tuple[OfferingPrice, ...] = (),
        list_prices: bool = True,
    ) -> None:
        self.region = region
        self._calls, self._cache, self._workers, self._now = calls, cache, workers, now
        self._templates = Templates(region, calls, workers)
        self._price_reader = PriceReader(region, calls, cache, workers=workers, now=now, own=prices, list_prices=list_prices)
        self._nodegroups: dict[str, DatedAnswer[Nodegroup]] = {}
        self._architectures: dict[str, str] = {}
        self._matching: dict[str, DatedAnswer[tuple[str, ...]]] = {}
        self.notes: dict[str, str] = {}

    def group_entries(self, scope: Scope, before: Collection[str] = ()) -> list[Reply]:
        """All groups that could concern the cluster, as AWS describes them. Raises CloudError: nothing works without them.

        Groups that were found ``before`` are included as long as they exist, whatever their tags are now.
        """
        asks: list[dict[str, object]] = [{"Filters": [{"Name": "tag-key", "Values": list(ownership.tag_keys(scope.cluster))}]}]
        if scope.tags:
            asks.append({"Filters": [{"Name": f"tag:{key}", "Values": [value]} for key, value in scope.tags.items()]})
        asks += [{"AutoScalingGroupNames": names} for names in chunks(scope.groups, MAX_NAMES)]
        entries_by_name = {
            entry.get("AutoScalingGroupName"): entry for entries in self._workers.map(self._groups, asks) for entry in entries
        }
        missing = [
            {"AutoScalingGroupNames": names} for names in chunks((name for name in before if name not in entries_by_name), MAX_NAMES)
        ]
        entries_by_name |= {
            entry.get("AutoScalingGroupName"): entry for entries in self._workers.map(self._groups, missing) for entry in entries
        }
        return list(entries_by_name.values())

    def _groups(self, ask: Mapping[str, Any]) -> list[Reply]:
        pages = self._calls.pages("autoscaling", self.region, "DescribeAutoScalingGroups", "AutoScalingGroups", MaxRecords=100, **ask)
        return list(pages)

    def read_region_data(self, groups: Collection[Group], cluster: str) -> RegionData:
        """What is needed to make pools of ``groups``; afterwards ``notes`` lists what could not be read."""
        self.notes = {}
        launches, notes = self._templates.resolve(ref for group in groups for ref in group.templates)
        self.notes |= notes
        configurations = self._configurations({group.configuration for group in groups if group.configuration})
        matching = self._matching_types(groups, [*launches.values(), *configurations.values()])
        names = {choice.instance_type for group in groups for choice in group.choices}
        names |= {launch.instance_type for launch in (*launches.values(), *configurations.values())}
        names |= {name for types in matching.values() for name in types}
        # Existing machines may have types that their group no longer launches.
        names |= {machine.instance_type for group in groups for machine in group.machines}
        names.discard("")
        types = self._types(names)
        spot = _uses_spot(groups, [*launches.values(), *configurations.values()])
        tariff, notes = self._price_reader.read_prices(types, on_spot=types if spot else ())
        self.notes |= notes
        reserved = {ident for group in groups for ident in group.reservations} | {
            ident for launch in launches.values() for ident in launch.reservations
        }
        return RegionData(
            region=self.region,
            launches=launches,
            configurations=configurations,
            types=types,
            matching=matching,
            offered=self._offered(types),
            nodegroups=self._read_nodegroups(groups, cluster),
            reservations=self._reservations(sorted(reserved)),
            tariff=tariff,
        )

    def _attempt(self, what: str, ask: Callable[[], T], default: T) -> T:
        """The answer, or ``default`` with a note about what is missing."""
        try:
            return ask()
        except CloudError as error:
            self.notes[what] = error.detail
            return default

    def _configurations(self, names: set[str]) -> dict[str, Launch]:
        def ask() -> dict[str, Launch]:
            launches = {}
            for batch in chunks(sorted(names), MAX_NAMES):
                for entry in self._calls.pages(
                    "autoscaling", self.region, "DescribeLaunchConfigurations", "LaunchConfigurations", LaunchConfigurationNames=batch
                ):
                    launches[entry["LaunchConfigurationName"]] = configuration_of(entry)
            return launches

        return self._attempt("launch configurations", ask, {}) if names else {}

    def _matching_types(self, groups: Iterable[Group], launches: Iterable[Launch]) -> dict[str, tuple[str, ...]]:
        """Types by requirements, for groups and templates that give requirements instead of types."""
        images = {launch.image for launch in launches if launch.image}
        wanted = [choice.requirements for group in groups for choice in group.choices if choice.requirements is not None]
        wanted += [launch.requirements for launch in launches if launch.requirements is not None]
        matching = {}
        for key, requirements in {requirements_key(requirements): requirements for requirements in wanted}.items():
            cached = self._matching.get(key)
            if cached is None or not cached.is_fresh(self._now(), TYPES_SECONDS):
                names = self._attempt("types by requirements", partial(self._ask_matching, requirements, images), None)
                if names is None:
                    continue
                cached = self._matching[key] = DatedAnswer(self._now(), names)
            matching[key] = cached.value
        return matching

    def _ask_matching(self, requirements: Mapping[str, object], images: Collection[str]) -> tuple[str, ...]:
        entries = self._calls.pages(
            "ec2",
            self.region,
            "GetInstanceTypesFromInstanceRequirements",
            "InstanceTypes",
            ArchitectureTypes=self._architectures_of(images),
            VirtualizationTypes=["hvm"],
            InstanceRequirements=requirements,
        )
        return tuple(sorted(entry["InstanceType"] for entry in entries))

    def _architectures_of(self, images: Collection[str]) -> list[str]:
        """Architectures of the images that groups use; x86_64 if none is known."""
        unknown = sorted(image for image in images if image.startswith("ami-") and image not in self._architectures)
        for batch in chunks(unknown, MAX_NAMES):
            nothing: list[Reply] = []
            entries = self._attempt("images", partial(self._images, batch), nothing)
            self._architectures |= {entry["ImageId"]: entry.get("Architecture", "") for entry in entries}
        architectures = {self._architectures.get(image, "") for image in images} & instance_types.ARCHITECTURES.keys()
        return sorted(architectures) or ["x86_64"]

    def _images(self, batch: list[str]) -> list[Reply]:
        return list(self._calls.pages("ec2", self.region, "DescribeImages", "Images", Filters=[{"Name": "image-id", "Values": batch}]))

    def _types(self, names: Collection[str]) -> dict[str, InstanceType]:
        """All known types; the catalogue fills in those the account could not be asked about."""
        now, key = self._now(), f"{self.region}/"
        stale = [
            name for name in sorted(names) if not (cached := self._cache.types.get(key + name)) or not cached.is_fresh(now, TYPES_SECONDS)
        ]
        asked = self._attempt("instance types", lambda: self._ask_types(stale), None)
        if asked is not None:
            for name in stale:
                self._cache.types[key + name] = DatedAnswer(now, asked.get(name))
        instance_types = {}
        for name in names:
            stored = self._cache.types.get(key + name)
            described = self._decode_type(name, stored.value) if stored is not None and stored.value else None
            # A type that the account does not have cannot be bought, even if the catalogue lists it.
            kind = described or (catalogue.lookup(name) if stored is None else None)
            if kind is not None:
                instance_types[name] = kind
        return instance_types

    def _decode_type(self, name: str, entry: Reply) -> InstanceType | None:
        try:
            return instance_types.type_of(entry)
        except ValueError as error:
            self.notes[f"instance type {name}"] = str(error)
            return None

    def _ask_types(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Types by filter: in a call by name, one unknown name would fail the whole call."""
        entries = {}
        for batch in chunks(names, MAX_VALUES):
            ask = [{"Name": "instance-type", "Values": batch}]
            for entry in self._calls.pages("ec2", self.region, "DescribeInstanceTypes", "InstanceTypes", Filters=ask):
                entries[entry["InstanceType"]] = entry
        return entries

    def _offered(self, types: Collection[str]) -> dict[str, frozenset[str]]:
        """Zones by type, as far as known."""
        now, key = self._now(), f"{self.region}/"
        stale = [
            name for name in sorted(types) if not (cached := self._cache.offered.get(key + name)) or not cached.is_fresh(now, TYPES_SECONDS)
        ]
        asked = self._attempt("zones of instance types", lambda: self._ask_offered(stale), None)
        if asked is not None:
            for name in stale:
                self._cache.offered[key + name] = DatedAnswer(now, sorted(asked.get(name, ())))
        return {name: frozenset(cached.value) for name in types if (cached := self._cache.offered.get(key + name)) is not None}

    def _ask_offered(self, names: Iterable[str]) -> dict[str, set[str]]:
        zones: dict[str, set[str]] = {}
        for batch in chunks(names, MAX_VALUES):
            ask = [{"Name": "instance-type", "Values": batch}]
            for entry in self._calls.pages(
                "ec2",
                self.region,
                "DescribeInstanceTypeOfferings",
                "InstanceTypeOfferings",
                LocationType="availability-zone",
                Filters=ask,
            ):
                zones.setdefault(entry["InstanceType"], set()).add(entry["Location"])
        return zones

    def _reservations(self, ids: list[str]) -> dict[str, Reservation]:
        """Reservations, one call each: a deleted one would fail a call for several, and there are few."""
        reservations: dict[str, Reservation] = {}
        for ident, answer in zip(ids, self._workers.map(self._reservation, ids), strict=True):
            if isinstance(answer, CloudError):
                self.notes[f"capacity reservation {ident}"] = answer.detail
            else:
                reservations |= answer
        return reservations

    def _reservation(self, ident: str) -> dict[str, Reservation] | CloudError:
        try:
            reply = self._calls.read("ec2", self.region, "DescribeCapacityReservations", CapacityReservationIds=[ident])
        except CloudError as error:
            return error
        return reservations_of(reply.get("CapacityReservations") or ())

    def _read_nodegroups(self, groups: Iterable[Group], cluster: str) -> dict[str, Nodegroup]:
        """Managed node groups by the name of their Auto Scaling group."""
        managed = {group.name: group.tags[ownership.EKS_NODEGROUP] for group in groups if ownership.EKS_NODEGROUP in group.tags}
        now = self._now()
        stale = {
            name: nodegroup
            for name, nodegroup in managed.items()
            if not (cached := self._nodegroups.get(name)) or not cached.is_fresh(now, NODEGROUPS_SECONDS)
        }
        for name, answer in zip(
            stale, self._workers.map(lambda nodegroup: self._nodegroup(cluster, nodegroup), stale.values()), strict=True
        ):
            if isinstance(answer, CloudError):
                self.notes["node groups"] = f"{answer.detail}; labels and taints of managed node groups come from tags only"
            else:
                self._nodegroups[name] = DatedAnswer(now, answer)
        return {
            name: self._nodegroups[name].value if name in self._nodegroups else nodegroup_named(nodegroup)
            for name, nodegroup in managed.items()
        }

    def _nodegroup(self, cluster: str, name: str) -> Nodegroup | CloudError:
        try:
            reply = self._calls.read("eks", self.region, "DescribeNodegroup", clusterName=cluster, nodegroupName=name)
            return nodegroup_of(reply["nodegroup"])
        except CloudError as error:
            return error
        except (KeyError, TypeError) as error:
            return CloudError("unknown", f"eks in {self.region}: saw {error!r} in node group {name}, expected its description")


def _uses_spot(groups: Iterable[Group], launches: Iterable[Launch]) -> bool:
    """Whether anything is bought on the spot market."""
    return any(group.shares and "spot" in group.shares.markets for group in groups) or any(launch.market == "spot" for launch in launches)
