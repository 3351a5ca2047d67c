"""What Azure's errors mean for offerings: causes that breakers know, what is closed and for how long."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from gpuscaler.clouds.azure.api.errors import (
    BOTH_MARKETS_SCOPE,
    DAY,
    EXCEEDED,
    FAMILY_SCOPE,
    HOUR,
    INSUFFICIENT,
    NO_SCOPE,
    OFFERING_SCOPE,
    REGION_SCOPE,
    SIZE_SCOPE,
    SPOT_SCOPE,
    TEN_MINUTES,
    ZONES_SCOPE,
    ArmFailure,
    clean,
    failure_of,
    judge,
)
from gpuscaler.clouds.protocol import CAPACITY, QUOTA, THROTTLED, Refusal
from gpuscaler.model.offerings import ON_DEMAND, RESERVED, SPOT, OfferingKey

__all__ = ["ArmFailure", "ErrorMeaning", "SkuFacts", "clean", "failure_of", "meaning_of", "pause_of", "refusals"]

_FAMILY_NAME: Final = re.compile(r"\bfor family (?P<name>[\w ]{1,80}?)(?= for | in |[.,]|$)", re.IGNORECASE)
_LIMIT, _USAGE = re.compile(r"current limit:\s*([\d,]+)", re.IGNORECASE), re.compile(r"current usage:\s*([\d,]+)", re.IGNORECASE)
_LEFT: Final = re.compile(r"(?:remaining|left (?:regional |family |spot )?vcpu quota)\s+([\d,]+)", re.IGNORECASE)
_SIZE: Final = re.compile(r"\bStandard_[A-Za-z0-9_-]+", re.IGNORECASE)
_ZONE: Final = re.compile(r"\bzone \(?'?(?P<zone>(?:[a-z]+[0-9]*-)?[1-9])\b", re.IGNORECASE)
_NOT_IN_FAMILY: Final = re.compile(r"standard|family|cores|vcpus?|[^a-z0-9]")


class SkuFacts(Protocol):
    """What is used of a size: its quota family, such as ``standardNCADSH100v5Family``, and its number of vCPUs."""

    @property
    def family(self) -> str: ...

    @property
    def vcpus(self) -> float: ...


class ErrorMeaning(Struct, frozen=True, gc=False):
    """What an error means: its ``cause``, what it closes (``scope``) and for how many ``seconds`` at least, and what its text names.

    ``zone`` is the zone as the text has it, ``2`` or ``eastus-2``; ``family`` the family of a quota. ``room`` are the vCPUs that a quota
    still has, None if unknown. ``target`` is the bucket of a throttled call.
    """

    cause: str
    detail: str
    scope: str = OFFERING_SCOPE
    seconds: float = 0.0
    code: str = ""
    instance_type: str = ""
    zone: str = ""
    family: str = ""
    room: int | None = None
    target: str = ""


def meaning_of(failure: ArmFailure) -> ErrorMeaning:
    """What ``failure`` means; an error that is not known has the cause ``unknown``."""
    cause, scope, seconds = judge(failure)
    code, text = failure.code, failure.text
    detail = clean(": ".join(filter(None, (code if code not in text else "", text)))) or (
        f"HTTP {failure.status}" if failure.status >= 400 else "no reason was given"
    )
    size, zone = _SIZE.search(text), _ZONE.search(text)
    meaning = ErrorMeaning(
        cause,
        detail,
        scope,
        seconds,
        code=code,
        instance_type=size.group().rstrip("-_") if size else "",
        zone=zone["zone"].lower() if zone else "",
        target=failure.target,
    )
    return _quota(meaning, text) if cause == QUOTA else meaning


def _quota(meaning: ErrorMeaning, text: str) -> ErrorMeaning:
    """``meaning`` with the quota that ``text`` names, and the vCPUs that are left of it."""
    exceeded = EXCEEDED.search(text) or INSUFFICIENT.search(text)
    name = exceeded["name"] if exceeded else ""
    small = name.lower().replace(" ", "")
    named = _FAMILY_NAME.search(text)
    scope, family = FAMILY_SCOPE, named["name"].strip() if named else ""
    if "lowpriority" in small or "spot" in small:
        scope = SPOT_SCOPE
    elif not family and ("regional" in small or small == "cores"):
        scope = REGION_SCOPE
    elif not family and "family" in small:
        family = re.sub(r"\s*(?:cores|vcpus?)\s*$", "", name, flags=re.IGNORECASE)
    seconds = HOUR if scope == SPOT_SCOPE or _number(_LIMIT, text) == 0 else TEN_MINUTES
    return ErrorMeaning(QUOTA, meaning.detail, scope, seconds, code=meaning.code, family=family, room=_room_in(text), target=meaning.target)


def _room_in(text: str) -> int | None:
    limit, usage = _number(_LIMIT, text), _number(_USAGE, text)
    if limit == 0:
        return 0
    return _number(_LEFT, text) if limit is None or usage is None else max(0, limit - usage)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    digits = match[1].replace(",", "")[:12] if match else ""
    return int(digits) if digits else None


def pause_of(meanings: Iterable[ErrorMeaning], *, retry_after: float = 0.0) -> float:
    """For how many seconds a request that was throttled, or met another operation, should be held back; 0 if it was neither."""
    return max((max(meaning.seconds, retry_after) for meaning in meanings if meaning.cause == THROTTLED), default=0.0)


def refusals(
    meanings: Iterable[ErrorMeaning],
    requested: Sequence[OfferingKey],
    offered: Iterable[OfferingKey],
    skus: Mapping[str, SkuFacts],
    *,
    partial: bool = False,
) -> tuple[Refusal, ...]:
    """The refusals of a request for ``requested`` that ended with ``meanings``.

    ``offered`` are all offerings of the same subscription and location, some of which an error closes, too. ``partial`` says that the
    request brought some machines: capacity is then not yet short elsewhere. Throttling closes nothing, see :func:`pause_of`; neither does a
    quota in which a single machine of each size still fits.
    """
    result: dict[tuple[str, OfferingKey, tuple[str, ...]], Refusal] = {}
    everything = tuple(dict.fromkeys((*requested, *offered)))
    for meaning in meanings:
        for refusal in _refusals(meaning, tuple(requested), everything, skus, partial=partial):
            result.setdefault((refusal.cause, refusal.offering, refusal.bucket), refusal)
    return tuple(result.values())


def _refusals(
    meaning: ErrorMeaning,
    requested: tuple[OfferingKey, ...],
    everything: tuple[OfferingKey, ...],
    skus: Mapping[str, SkuFacts],
    *,
    partial: bool,
) -> list[Refusal]:
    if meaning.cause == THROTTLED or meaning.scope == NO_SCOPE or not requested:
        return []
    keys = _named(meaning, requested)
    if meaning.cause in (CAPACITY, QUOTA) and all(key.market == RESERVED for key in keys):
        # What is reserved is not short for others, and does not count towards quotas: the reservation itself is used up.
        return [Refusal(CAPACITY, key, meaning.detail, retry_after=min(meaning.seconds, HOUR)) for key in keys]
    if meaning.cause == QUOTA:
        return _quota_refusals(meaning, keys, everything, skus)
    if meaning.cause == CAPACITY:
        return _capacity_refusals(meaning, keys, everything, partial=partial)
    return [Refusal(meaning.cause, key, meaning.detail, retry_after=meaning.seconds) for key in keys]


def _named(meaning: ErrorMeaning, requested: tuple[OfferingKey, ...]) -> tuple[OfferingKey, ...]:
    """The requested offerings that an error is about: those of the size and the zone that it names, as far as it names any of them."""
    size = meaning.instance_type.lower()
    keys = tuple(key for key in requested if size and key.instance_type.lower() == size) or requested
    return tuple(key for key in keys if meaning.zone and key.zone.rpartition("-")[2] == meaning.zone.rpartition("-")[2]) or keys


def _capacity_refusals(
    meaning: ErrorMeaning, keys: tuple[OfferingKey, ...], everything: tuple[OfferingKey, ...], *, partial: bool
) -> list[Refusal]:
    if meaning.scope == SIZE_SCOPE:
        # Spot that is not available comes back sooner than a size that the region does not offer.
        return [
            Refusal(CAPACITY, key, meaning.detail, every_zone=True, retry_after=min(meaning.seconds, HOUR if key.market == SPOT else DAY))
            for key in {(key.market, key.instance_type): key for key in reversed(keys)}.values()
        ]
    closed = list(keys)
    if meaning.scope in (ZONES_SCOPE, BOTH_MARKETS_SCOPE) and not meaning.zone:
        # A scale set in several zones may have tried each of them.
        closed += [key for key in everything if any((*key[:3],) == (*asked[:3],) for asked in keys)]
    if meaning.scope == BOTH_MARKETS_SCOPE and not partial:
        places = {(key.instance_type, key.zone) for key in closed}
        taken = {key[1:] for key in closed}
        for key in everything:
            if key.market in (SPOT, ON_DEMAND) and (key.instance_type, key.zone) in places and key[1:] not in taken:
                closed.append(key)
                taken.add(key[1:])
    # A market that was not asked is probably short, too; that is found out sooner than the long wait of the one that was.
    asked_markets = {key.market for key in keys}
    return [
        Refusal(CAPACITY, key, meaning.detail, retry_after=meaning.seconds if key.market in asked_markets else 0.0)
        for key in dict.fromkeys(closed)
    ]


def _quota_refusals(
    meaning: ErrorMeaning, keys: tuple[OfferingKey, ...], everything: tuple[OfferingKey, ...], skus: Mapping[str, SkuFacts]
) -> list[Refusal]:
    """Refusals of the sizes that no longer fit, by market.

    Spot counts towards a quota of its own, whatever the family: https://learn.microsoft.com/azure/quotas/spot-quota
    """
    facts = {name.lower(): sku for name, sku in skus.items()}
    markets = [SPOT] if meaning.scope == SPOT_SCOPE else list(dict.fromkeys(key.market for key in keys if key.market != RESERVED))
    if meaning.scope == REGION_SCOPE and ON_DEMAND not in markets:
        markets.append(ON_DEMAND)
    result = []
    for market in markets:
        sizes = sorted({key.instance_type for key in everything if key.market == market})
        if meaning.scope == FAMILY_SCOPE:
            sizes = _of_family(meaning.family, sizes, {key.instance_type for key in keys}, facts)
        if meaning.room is not None:
            too_large = [size for size in sizes if size.lower() not in facts or facts[size.lower()].vcpus > meaning.room]
            # Where no machine of the requested size fits, all of spot closes, since smaller sizes would use up the little that is left.
            closes_all = meaning.scope == SPOT_SCOPE and any(key.instance_type in too_large for key in keys)
            sizes = sizes if closes_all else too_large
        first = next((key for key in (*keys, *everything) if key.market == market and key.instance_type in sizes), None)
        if first is not None:
            result.append(Refusal(QUOTA, first, meaning.detail, bucket=tuple(sizes), every_zone=True, retry_after=meaning.seconds))
    return result


def _of_family(name: str, sizes: Iterable[str], requested: Collection[str], facts: Mapping[str, SkuFacts]) -> list[str]:
    """Those of ``sizes`` that are of the family, which is that of ``requested`` if no size is known to be of ``name``."""
    families = ({_family(name)} - {""}) & {_family(sku.family) for sku in facts.values()}
    families = families or {_family(facts[size.lower()].family) for size in requested if size.lower() in facts}
    return [size for size in sizes if (_family(facts[size.lower()].family) in families if size.lower() in facts else size in requested)]


def _family(name: str) -> str:
    """A family's name without what spellings of it differ in."""
    return _NOT_IN_FAMILY.sub("", name.lower())
