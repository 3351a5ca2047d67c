"""Azure's errors, mapped to the causes that breakers know.

An error nests: that of a deployment, a pool or an operation has the true one in ``details``, in ``innererror`` or as JSON in its text,
and AKS also writes ``Code="…" Message="…"``. :func:`failure_of` finds the innermost error with a known meaning. One code stands for many
things: ``OperationNotAllowed`` is a quota, a conflict with another operation, or throttling. So the HTTP status and the details are judged
first, then the text, then the code.

Codes, texts and waits are those of karpenter-provider-azure (its handlers of offerings), of Azure's documentation on throttling in Compute,
and of AKS's pages on error codes, autumn 2026. Quotas arrive with 409 as often as with 400 or 403.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final
from unicodedata import category

from msgspec import Struct

from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, PRICE, QUOTA, THROTTLED, UNAUTHORISED, UNKNOWN

#: What an error closes: what was requested; the size in the whole region or in the request's zones, in its market or in both; what counts
#: towards a quota of a family, of spot or of the region; the pool; nothing.
OFFERING_SCOPE, SIZE_SCOPE, ZONES_SCOPE, BOTH_MARKETS_SCOPE = "offering", "size", "zones", "both-markets"
FAMILY_SCOPE, SPOT_SCOPE, REGION_SCOPE, POOL_SCOPE, NO_SCOPE = "family", "spot", "region", "pool", "none"
#: For how long an error holds at least, in seconds.
TEN_MINUTES, HOUR, DAY, BUSY_SECONDS = 600.0, 3600.0, 23 * 3600.0, 30.0
#: The longest text that is kept of an error, and in a message, in characters. A quota's numbers are at the end of a long sentence.
LONGEST_TEXT, LONGEST_DETAIL = 1000, 400
#: Bounds for what is read of an error: characters of a text, levels, and errors.
_LONGEST_READ, _DEEPEST, _MOST = 20_000, 12, 200


class ArmFailure(Struct, frozen=True, gc=False):
    """An error of Azure: the HTTP ``status`` (0 or below 400 for an operation that failed), and its innermost known ``code`` and ``text``.

    ``target`` is what the error names as its object; for throttling, the bucket that is empty.
    """

    status: int = 0
    code: str = ""
    text: str = ""
    target: str = ""

    @property
    def action(self) -> str:
        """The action that a denial names, such as ``Microsoft.Compute/virtualMachineScaleSets/write``."""
        match = _ACTION.search(self.text)
        return match[1] if match else ""


#: Cause, scope and seconds by code in lower case.
_CODES: Final[dict[str, tuple[str, str, float]]] = {
    # For an hour on spot, for nearly a day on demand: see SPOT_UNAVAILABLE_SECONDS in refusals.
    "skunotavailable": (CAPACITY, SIZE_SCOPE, DAY),
    "zonalallocationfailed": (CAPACITY, BOTH_MARKETS_SCOPE, HOUR),
    "allocationfailed": (CAPACITY, BOTH_MARKETS_SCOPE, HOUR),
    "overconstrainedzonalallocationrequest": (CAPACITY, OFFERING_SCOPE, HOUR),
    "overconstrainedallocationrequest": (CAPACITY, ZONES_SCOPE, HOUR),
    "vmsizenotsupported": (CAPACITY, SIZE_SCOPE, DAY),
    "quotaexceeded": (QUOTA, FAMILY_SCOPE, TEN_MINUTES),
    "errcode_insufficientvcpuquota": (QUOTA, FAMILY_SCOPE, TEN_MINUTES),
    "insufficientvcpuquota": (QUOTA, FAMILY_SCOPE, TEN_MINUTES),
    "spotpricegreaterthanprovidedmaxprice": (PRICE, POOL_SCOPE, 0.0),
    "subnetisfull": (CONFIGURATION, POOL_SCOPE, TEN_MINUTES),
    "insufficientsubnetsize": (CONFIGURATION, POOL_SCOPE, TEN_MINUTES),
    "requestdisallowedbypolicy": (CONFIGURATION, POOL_SCOPE, 0.0),
    "requestdisallowedbyazure": (CONFIGURATION, POOL_SCOPE, 0.0),
    "scopelocked": (CONFIGURATION, POOL_SCOPE, 0.0),
    "subscriptionnotregistered": (CONFIGURATION, POOL_SCOPE, 0.0),
    "missingsubscriptionregistration": (CONFIGURATION, POOL_SCOPE, 0.0),
    "invalidapiversionparameter": (CONFIGURATION, POOL_SCOPE, 0.0),
    "missingapiversionparameter": (CONFIGURATION, POOL_SCOPE, 0.0),
    "noregisteredproviderfound": (CONFIGURATION, POOL_SCOPE, 0.0),
    "authorizationfailed": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "linkedauthorizationfailed": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "denyassignmentauthorizationfailed": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "readonlydisabledsubscription": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "subscriptionnotfound": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "invalidauthenticationtoken": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "invalidauthenticationtokentenant": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "expiredauthenticationtoken": (UNAUTHORISED, POOL_SCOPE, 0.0),
    "authenticationfailed": (UNAUTHORISED, POOL_SCOPE, 0.0),
    # The machine exists and costs money; it did not come up.
    "vmextensionprovisioningerror": (UNKNOWN, POOL_SCOPE, 0.0),
    "vmextensionprovisioningtimeout": (UNKNOWN, POOL_SCOPE, 0.0),
    "vmextensionhandlernontransienterror": (UNKNOWN, POOL_SCOPE, 0.0),
    "vmstarttimedout": (UNKNOWN, POOL_SCOPE, 0.0),
    "osprovisioningtimedout": (UNKNOWN, POOL_SCOPE, 0.0),
    "osprovisioningclienterror": (UNKNOWN, POOL_SCOPE, 0.0),
    "conflict": (THROTTLED, NO_SCOPE, BUSY_SECONDS),
    "operationpreempted": (THROTTLED, NO_SCOPE, BUSY_SECONDS),
    "anotheroperationinprogress": (THROTTLED, NO_SCOPE, BUSY_SECONDS),
    "preconditionfailed": (THROTTLED, NO_SCOPE, 0.0),
    "conditionnotmet": (THROTTLED, NO_SCOPE, 0.0),
    "etagmismatch": (THROTTLED, NO_SCOPE, 0.0),
    "toomanyrequests": (THROTTLED, NO_SCOPE, 0.0),
    "subscriptionrequeststhrottled": (THROTTLED, NO_SCOPE, 0.0),
    "resourcerequeststhrottled": (THROTTLED, NO_SCOPE, 0.0),
    "tenantrequeststhrottled": (THROTTLED, NO_SCOPE, 0.0),
    "throttled": (THROTTLED, NO_SCOPE, 0.0),
    "serverbusy": (THROTTLED, NO_SCOPE, BUSY_SECONDS),
    "resourcenotfound": (CONFIGURATION, POOL_SCOPE, 0.0),
    "resourcegroupnotfound": (CONFIGURATION, POOL_SCOPE, 0.0),
}
_GENERAL: Final = re.compile(r"invalid\w+|missing\w+|\w+notfound|\w+notsupported|badrequest")
#: Kinds of codes by a pattern: full reservations, prices, addresses of a subnet, extensions, broken settings of a pool.
_KINDS: Final[tuple[tuple[re.Pattern[str], tuple[str, str, float]], ...]] = (
    (re.compile(r"capacityreservation\w*"), (CAPACITY, OFFERING_SCOPE, HOUR)),
    (re.compile(r"\w*pricegreaterthan\w*|maxpricevalue\w*"), (PRICE, POOL_SCOPE, 0.0)),
    (re.compile(r"privateipaddress\w*"), (CONFIGURATION, POOL_SCOPE, TEN_MINUTES)),
    (re.compile(r"azurespot\w+"), (CONFIGURATION, POOL_SCOPE, 0.0)),
    (re.compile(r"vmextension\w+|osprovisioning\w+|\w*vmextensionerror\w*"), (UNKNOWN, POOL_SCOPE, 0.0)),
    (_GENERAL, (CONFIGURATION, POOL_SCOPE, 0.0)),
)
#: Codes that only wrap another one, or whose text decides.
_VAGUE: Final = frozenset({"operationnotallowed", "invalidparameter", "badrequest", "invalidtemplatedeployment", "conflict"})
_ACTION: Final = re.compile(r"perform action '([A-Za-z0-9./*_-]+)'")
EXCEEDED: Final = re.compile(r"exceeding approved (?P<name>[^.]{1,120}?)\s*quota", re.IGNORECASE)
INSUFFICIENT: Final = re.compile(r"insufficient (?P<name>[a-z/ -]{0,40}?)vcpu quota", re.IGNORECASE)
_FAMILY_NAME: Final = re.compile(r"\bfor family (?P<name>[\w ]{1,80}?)(?= for | in |[.,]|$)", re.IGNORECASE)
_LIMIT, _USAGE = re.compile(r"current limit:\s*([\d,]+)", re.IGNORECASE), re.compile(r"current usage:\s*([\d,]+)", re.IGNORECASE)
_LEFT: Final = re.compile(r"(?:remaining|left (?:regional |family |spot )?vcpu quota)\s+([\d,]+)", re.IGNORECASE)
_BUSY: Final = re.compile(
    r"in[- ]progress|another (?:agentpool )?operation|pending operation|preempted by|being (?:updated|deleted)", re.IGNORECASE
)
_SIZE: Final = re.compile(r"\bStandard_[A-Za-z0-9_-]+", re.IGNORECASE)
_ZONE: Final = re.compile(r"\bzone '?(?P<zone>(?:[a-z]+[0-9]*-)?[1-9])\b", re.IGNORECASE)
_WRITTEN: Final = re.compile(
    r"Code\s*[=:]\s*\\?[\"'](?P<code>[A-Za-z_.]+)\\?[\"'],?\s*Message\s*[=:]\s*\\?[\"'](?P<text>.*)", re.IGNORECASE | re.DOTALL
)
_AFTER_TEXT: Final = re.compile(r"\\?[\"'],?\s*Target\s*[=:]\s*\\?[\"'](?P<target>[^\"'\\]*)\\?[\"'].*\Z", re.DOTALL)
#: States of machines, which are errors only if they failed.
_STATES: Final = ("provisioningstate", "powerstate")
#: Where errors are in others, in operations, in agent pools and in what machines report.
_NESTED: Final = (
    "error", "innererror", "innerError", "innerexception", "statusMessage", "details",
    "properties", "status", "provisioningError", "instanceView", "statuses",
)  # fmt: skip


def failure_of(status: int, body: Any) -> ArmFailure:
    """The error in ``body`` (decoded JSON or text, of any form) of an answer with this status: the innermost one with a known meaning."""
    errors = sorted(_errors_in(body), key=lambda found: -found[0])
    failures = [ArmFailure(status, code, text, target) for _, code, text, target in errors if code or text]
    for says_enough in (_is_specific, _is_known):
        failure = next(filter(says_enough, failures), None)
        if failure is not None:
            return failure
    return failures[0] if failures else ArmFailure(status)


def clean(text: str, longest: int = LONGEST_DETAIL) -> str:
    """``text`` in one line of at most ``longest`` characters, without control and formatting characters."""
    printable = text[: 4 * longest]
    if not printable.isprintable():
        printable = "".join(" " if category(character)[0] in "CZ" else character for character in printable)
    line = " ".join(printable.split())
    return line if len(line) <= longest and len(text) <= 4 * longest else f"{line[: longest - 1]}…"


def judge(failure: ArmFailure) -> tuple[str, str, float]:
    """Cause, scope and seconds: by the status and by codes that leave no doubt first, then by the text, then by the code."""
    code, status = failure.code.lower(), failure.status
    known = _CODES.get(code)
    if status in (412, 429) or (known is not None and known[0] == THROTTLED and code not in _VAGUE):
        return known if known is not None and known[0] == THROTTLED else (THROTTLED, NO_SCOPE, 0.0)
    if _is_quota(failure.text):
        return QUOTA, FAMILY_SCOPE, TEN_MINUTES
    if code in _VAGUE:
        if status == 409 or code == "conflict" or _BUSY.search(failure.text):
            return THROTTLED, NO_SCOPE, BUSY_SECONDS
        return (UNKNOWN, OFFERING_SCOPE, 0.0) if code == "operationnotallowed" else (CONFIGURATION, POOL_SCOPE, 0.0)
    return _by_code(code) or _by_status(status)


def _by_code(code: str) -> tuple[str, str, float] | None:
    return _CODES.get(code) or next((meaning for pattern, meaning in _KINDS if pattern.fullmatch(code)), None)


def _by_status(status: int) -> tuple[str, str, float]:
    if status in (401, 403):
        return UNAUTHORISED, POOL_SCOPE, 0.0
    if status == 409:
        return THROTTLED, NO_SCOPE, BUSY_SECONDS
    return (CONFIGURATION, POOL_SCOPE, 0.0) if status in (400, 404) else (UNKNOWN, OFFERING_SCOPE, 0.0)


def _is_quota(text: str) -> bool:
    return EXCEEDED.search(text) is not None or INSUFFICIENT.search(text) is not None


def _is_specific(failure: ArmFailure) -> bool:
    """Whether this error says by itself what is wrong."""
    code = failure.code.lower()
    if code in _VAGUE:
        return judge(failure)[0] not in (UNKNOWN, CONFIGURATION)
    meaning = _by_code(code)
    return _is_quota(failure.text) or (meaning is not None and not _GENERAL.fullmatch(code))


def _is_known(failure: ArmFailure) -> bool:
    """Whether this error at least has a known code, but one of many meanings."""
    return _by_code(failure.code.lower()) is not None


def _errors_in(body: Any) -> Iterator[tuple[int, str, str, str]]:
    """Every error in ``body``: its level, code, text and target. A text that is missing or JSON is that of the error around it."""
    waiting: list[tuple[Any, int, str]] = [(body, 0, "")]
    seen = 0
    while waiting and seen < _MOST:
        node, level, outer = waiting.pop()
        seen += 1
        if level > _DEEPEST:
            continue
        if isinstance(node, str):
            waiting += [(inner, level + 1, outer) for inner in _in_text(node)]
            if level == 0 and node.strip():
                yield level, "", clean(node, LONGEST_TEXT), ""
        elif isinstance(node, list):
            waiting += [(item, level + 1, outer) for item in reversed(node[:_MOST])]
        elif isinstance(node, Mapping):
            code, message, target = (value if isinstance(value, str) else "" for value in map(node.get, ("code", "message", "target")))
            text = clean(message, LONGEST_TEXT) if message.strip() and not message.lstrip().startswith(("{", "[")) else outer
            # A machine's status has the code at the end: ProvisioningState/failed/AllocationFailed.
            kind, _, code = code.rpartition("/")
            if (code or message) and not (kind.lower().startswith(_STATES) and not kind.lower().endswith("/failed")):
                yield level, clean(code, 80), text, clean(target, 80)
            waiting += [(inner, level + 2, text) for inner in _in_text(message)]
            waiting += [(node[key], level + 1, text) for key in _NESTED if node.get(key)]


def _in_text(text: str) -> list[Any]:
    """Errors that are written in a text: as JSON, or as ``Code="…" Message="…"``."""
    text = text[:_LONGEST_READ]
    found: list[Any] = []
    start = text.find("{")
    if start >= 0:
        with suppress(JSONDecodeError, RecursionError, ValueError):
            found.append(JSONDecoder().raw_decode(text, start)[0])
    written = _WRITTEN.search(text)
    if written is not None:
        after = _AFTER_TEXT.search(written["text"])
        inner = written["text"][: after.start()] if after else written["text"].rstrip("\\\"' ")
        found.append({"code": written["code"], "message": inner, "target": after["target"] if after else ""})
    return found
