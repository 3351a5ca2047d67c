"""Maps AWS's error codes and texts to the few causes that breakers know.

Codes come from replies. The texts of scaling activities contain a code at best, often only a sentence. Unrecognised errors are ``unknown``.
The sentences are those of AWS's documentation on troubleshooting Auto Scaling and of its API references, autumn 2026.
"""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, PRICE, QUOTA, THROTTLED, UNAUTHORISED, UNKNOWN, Refusal
from gpuscaler.model.offerings import OfferingKey

#: The scope of an error: the offering that it names, all types of a zone, or all types of a quota's bucket.
OFFERING_SCOPE, ZONE_SCOPE, BUCKET_SCOPE = "offering", "zone", "bucket"


class ErrorMeaning(Struct, frozen=True, gc=False):
    """What an error means: its ``cause``, its ``scope``, and the instance type, zone and market that its text names."""

    cause: str
    detail: str
    scope: str = OFFERING_SCOPE
    instance_type: str = ""
    zone: str = ""
    market: str = ""


#: Causes and scopes by code. A type that a zone does not offer is treated as sold out there: the pool's other zones remain usable.
_CODES: Final[dict[str, tuple[str, str]]] = {
    "InsufficientInstanceCapacity": (CAPACITY, OFFERING_SCOPE),
    "InsufficientHostCapacity": (CAPACITY, OFFERING_SCOPE),
    "InsufficientCapacity": (CAPACITY, OFFERING_SCOPE),
    "InsufficientReservedInstanceCapacity": (CAPACITY, OFFERING_SCOPE),
    "InsufficientCapacityOnHost": (CAPACITY, OFFERING_SCOPE),
    "ReservationCapacityExceeded": (CAPACITY, OFFERING_SCOPE),
    "UnfulfillableCapacity": (CAPACITY, OFFERING_SCOPE),
    "Unsupported": (CAPACITY, OFFERING_SCOPE),
    "InsufficientFreeAddressesInSubnet": (CAPACITY, ZONE_SCOPE),
    "VcpuLimitExceeded": (QUOTA, BUCKET_SCOPE),
    "InstanceLimitExceeded": (QUOTA, BUCKET_SCOPE),
    "MaxSpotInstanceCountExceeded": (QUOTA, BUCKET_SCOPE),
    "MaxFleetCountExceeded": (QUOTA, BUCKET_SCOPE),
    "SpotMaxPriceTooLow": (PRICE, OFFERING_SCOPE),
    "RequestLimitExceeded": (THROTTLED, OFFERING_SCOPE),
    "Throttling": (THROTTLED, OFFERING_SCOPE),
    "ThrottlingException": (THROTTLED, OFFERING_SCOPE),
    "ThrottledException": (THROTTLED, OFFERING_SCOPE),
    "RequestThrottled": (THROTTLED, OFFERING_SCOPE),
    "RequestThrottledException": (THROTTLED, OFFERING_SCOPE),
    "EC2ThrottledException": (THROTTLED, OFFERING_SCOPE),
    "TooManyRequestsException": (THROTTLED, OFFERING_SCOPE),
    "SlowDown": (THROTTLED, OFFERING_SCOPE),
    "ServiceUnavailable": (THROTTLED, OFFERING_SCOPE),
    "Unavailable": (THROTTLED, OFFERING_SCOPE),
    # The group is busy with another operation for a moment.
    "ResourceContention": (THROTTLED, OFFERING_SCOPE),
    "ScalingActivityInProgress": (THROTTLED, OFFERING_SCOPE),
    "IdempotentCallInProgress": (THROTTLED, OFFERING_SCOPE),
    "UnauthorizedOperation": (UNAUTHORISED, OFFERING_SCOPE),
    "AccessDenied": (UNAUTHORISED, OFFERING_SCOPE),
    "AccessDeniedException": (UNAUTHORISED, OFFERING_SCOPE),
    "AuthFailure": (UNAUTHORISED, OFFERING_SCOPE),
    "Blocked": (UNAUTHORISED, OFFERING_SCOPE),
    "PendingVerification": (UNAUTHORISED, OFFERING_SCOPE),
    "OptInRequired": (UNAUTHORISED, OFFERING_SCOPE),
    "ExpiredToken": (UNAUTHORISED, OFFERING_SCOPE),
    "ExpiredTokenException": (UNAUTHORISED, OFFERING_SCOPE),
    "RequestExpired": (UNAUTHORISED, OFFERING_SCOPE),
    "InvalidClientTokenId": (UNAUTHORISED, OFFERING_SCOPE),
    "UnrecognizedClientException": (UNAUTHORISED, OFFERING_SCOPE),
    "SignatureDoesNotMatch": (UNAUTHORISED, OFFERING_SCOPE),
    "MissingAuthenticationToken": (UNAUTHORISED, OFFERING_SCOPE),
    "ValidationError": (CONFIGURATION, OFFERING_SCOPE),
    "InvalidFleetConfiguration": (CONFIGURATION, OFFERING_SCOPE),
    "InvalidFleetConfig": (CONFIGURATION, OFFERING_SCOPE),
    "UnsupportedOperation": (CONFIGURATION, OFFERING_SCOPE),
    "MissingParameter": (CONFIGURATION, OFFERING_SCOPE),
    "VolumeTypeNotAvailableInZone": (CONFIGURATION, OFFERING_SCOPE),
    # The account's limit on the number or size of disks is reached, whatever the machine's type.
    "VolumeLimitExceeded": (CONFIGURATION, OFFERING_SCOPE),
    "Client.InternalError": (CONFIGURATION, OFFERING_SCOPE),
}
#: Codes of a broken template, image, key, subnet or role start like this: ``InvalidAMIID.NotFound`` and its many siblings.
_BROKEN: Final = re.compile(r"Invalid[A-Z]\w*")
#: Sentences without a code, by a fragment of them, the most specific first.
_TEXTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("not supported in your requested availability zone", CAPACITY, OFFERING_SCOPE),
    ("the requested configuration is currently not supported", CAPACITY, OFFERING_SCOPE),
    ("there is no spot capacity available", CAPACITY, OFFERING_SCOPE),
    ("unable to fulfill capacity", CAPACITY, OFFERING_SCOPE),
    ("we currently do not have sufficient", CAPACITY, OFFERING_SCOPE),
    ("you have requested more vcpu capacity than your current vcpu limit", QUOTA, BUCKET_SCOPE),
    ("max spot instance count exceeded", QUOTA, BUCKET_SCOPE),
    ("you have exceeded your maximum fleet count", QUOTA, BUCKET_SCOPE),
    ("is lower than the minimum required spot request fulfillment price", PRICE, OFFERING_SCOPE),
    ("not enough free addresses in subnet", CAPACITY, ZONE_SCOPE),
    ("does not have enough free addresses", CAPACITY, ZONE_SCOPE),
    ("client error on launch", CONFIGURATION, OFFERING_SCOPE),
    ("you are not authorized to", UNAUTHORISED, OFFERING_SCOPE),
    ("is not authorized to", UNAUTHORISED, OFFERING_SCOPE),
    ("rate exceeded", THROTTLED, OFFERING_SCOPE),
    ("request limit exceeded", THROTTLED, OFFERING_SCOPE),
    ("launch template does not exist", CONFIGURATION, OFFERING_SCOPE),
    ("does not exist", CONFIGURATION, OFFERING_SCOPE),
    ("invalid device name", CONFIGURATION, OFFERING_SCOPE),
    ("is not valid", CONFIGURATION, OFFERING_SCOPE),
)
#: Something else filled the group; the next observation shows it. SetDesiredCapacity answers "New SetDesiredCapacity value 16 is above max
#: value 10 for the AutoScalingGroup" (buildkite-agent-scaler#34), UpdateAutoScalingGroup "Desired capacity:10 must be between the specified
#: min size:1 and max size:1" (terraform-aws-autoscaling#56). No public page quotes LaunchInstances, so any similar wording matches.
_FULL: Final = re.compile(
    r"(above|beyond|exceed\w*|(greater|larger|higher|more) than)\b[^.]*\bmax(imum|size)?\b|between the specified min size", re.IGNORECASE
)
#: The usual reason behind a code whose text gives no reason.
_HINTS: Final = {
    "Client.InternalError": "usually the KMS key of its disks: give the service-linked role of Auto Scaling a grant for the key",
}
_WORDS: Final = re.compile(r"(?:Client\.)?[A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)*")
_TYPE: Final = re.compile(r"\b[a-z][a-z0-9-]*\.(?:\d*xlarge|large|medium|small|micro|nano|metal[a-z0-9-]*)\b")
_MARKET: Final = re.compile(r"\b(?:spot|on-demand)\b", re.IGNORECASE)
_ZONE: Final = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d[a-z]\b")


def interpret_error(code: str, text: str) -> ErrorMeaning:
    """What the error ``code`` with the sentence ``text`` means; either may be empty."""
    instance_type, zone = _type_and_zone(text)
    cause_and_scope = _by_text(text) if _is_vague(code) else None
    cause_and_scope = cause_and_scope or _by_code(code) or _by_code_in_text(text) or _by_text(text) or (UNKNOWN, OFFERING_SCOPE)
    detail = ": ".join(filter(None, (code if code not in text else "", text))) or "no reason was given"
    hint = next((text_of_hint for word, text_of_hint in _HINTS.items() if word in (code, *_WORDS.findall(text))), "")
    return ErrorMeaning(
        cause_and_scope[0], f"{detail} ({hint})" if hint else detail, cause_and_scope[1], instance_type, zone, _market(code, text)
    )


def _market(code: str, text: str) -> str:
    """The market that an error is about: groups that use both markets name the one in which a launch failed."""
    match = _MARKET.search(text)
    return match.group().lower() if match else "spot" if "Spot" in code else ""


def _is_vague(code: str) -> bool:
    """Whether only the sentence gives the cause: an impossible fleet, for example, may be due to one type or to all of them."""
    return code in ("", "InvalidFleetConfiguration", "InvalidFleetConfig", "ValidationError", "InternalError")


def _by_code(code: str) -> tuple[str, str] | None:
    plain = code.removesuffix("Fault")
    if plain in _CODES:
        return _CODES[plain]
    plain = _without_prefix(plain)
    return _CODES.get(plain) or ((CONFIGURATION, OFFERING_SCOPE) if _BROKEN.match(plain) else None)


def _without_prefix(code: str) -> str:
    """``code`` without the prefix "Client." or "Server." of some services and state reasons."""
    return code if code in _CODES else code.removeprefix("Client.").removeprefix("Server.")


def _by_code_in_text(text: str) -> tuple[str, str] | None:
    """The cause by the first code in a sentence; for the code of an impossible fleet the rest of the sentence decides."""
    for word in map(_without_prefix, _WORDS.findall(text)):
        if not _is_vague(word) and (word in _CODES or (_BROKEN.match(word) and "." in word)):
            return _by_code(word)
    return _by_text(text) or next((_CODES[word] for word in map(_without_prefix, _WORDS.findall(text)) if word in _CODES), None)


def _by_text(text: str) -> tuple[str, str] | None:
    small = text.lower()
    cause_and_scope = next(((cause, scope) for words, cause, scope in _TEXTS if words in small), None)
    if cause_and_scope is not None and cause_and_scope[0] != CONFIGURATION:
        return cause_and_scope
    return (UNKNOWN, OFFERING_SCOPE) if _FULL.search(text) else cause_and_scope


def _type_and_zone(text: str) -> tuple[str, str]:
    """The instance type and the zone that a sentence is about; zones named later in it are advice on where to launch instead."""
    match, zone = _TYPE.search(text), _ZONE.search(text)
    return (match.group() if match else "", zone.group() if zone else "")


def refusals(meanings: Iterable[ErrorMeaning], offerings: Iterable[OfferingKey], *, retry_after: float = 0.0) -> tuple[Refusal, ...]:
    """Refusals of the ``offerings`` that were requested: for each offering in scope, the first of ``meanings`` with each cause.

    An error that names no type, zone or market concerns everything that was requested.
    """
    requested = tuple(offerings)
    refusals: dict[tuple[OfferingKey, str], Refusal] = {}
    for meaning in meanings:
        keys = [
            key for key in requested if meaning.instance_type in ("", key.instance_type) and meaning.zone in ("", key.zone)
        ] or requested
        for key in [key for key in keys if not meaning.market or (meaning.market == "spot") == (key.market == "spot")] or keys:
            refusals.setdefault((key, meaning.cause), _refusal(meaning, key, requested, retry_after))
    return tuple(refusals.values())


def _refusal(meaning: ErrorMeaning, key: OfferingKey, requested: Iterable[OfferingKey], retry_after: float) -> Refusal:
    instance_types: tuple[str, ...] = ()
    if meaning.scope == ZONE_SCOPE:
        instance_types = tuple(dict.fromkeys(other.instance_type for other in requested if other.zone == key.zone))
    elif meaning.scope == BUCKET_SCOPE:
        instance_types = tuple(
            dict.fromkeys(
                other.instance_type for other in requested if quota_bucket(other.instance_type) == quota_bucket(key.instance_type)
            )
        )
    return Refusal(
        meaning.cause, key, meaning.detail, bucket=instance_types, every_zone=meaning.scope == BUCKET_SCOPE, retry_after=retry_after
    )


def widen_quota_refusals(refusals: Iterable[Refusal], offerings: Iterable[OfferingKey]) -> tuple[Refusal, ...]:
    """``refusals``; a refusal for a quota covers all types of the quota's bucket among ``offerings``, not only the requested ones."""
    kinds = sorted({key.instance_type for key in offerings})

    def wide(refusal: Refusal) -> Refusal:
        if refusal.cause != QUOTA:
            return refusal
        return replace(
            refusal,
            bucket=tuple(kind for kind in kinds if quota_bucket(kind) == quota_bucket(refusal.offering.instance_type)) or refusal.bucket,
        )

    return tuple(map(wide, refusals))


#: Families whose vCPUs EC2 counts together, by the prefix of their types.
_BUCKETS: Final = (
    (re.compile(r"(g|vt)\d"), "G and VT"),
    (re.compile(r"p\d"), "P"),
    (re.compile(r"trn\d"), "Trn"),
    (re.compile(r"inf\d"), "Inf"),
    (re.compile(r"dl\d"), "DL"),
    (re.compile(r"f\d"), "F"),
    (re.compile(r"x\d"), "X"),
    (re.compile(r"hpc\d"), "HPC"),
    (re.compile(r"u-|u\d"), "High Memory"),
)


def quota_bucket(instance_type: str) -> str:
    """The vCPU quota that counts machines of this type, on demand or spot; some families share one."""
    return next((name for begins, name in _BUCKETS if begins.match(instance_type)), "Standard")
