"""The keys of a run file that apply to AWS only."""

import re
from collections.abc import Mapping
from typing import Annotated

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.settings.cursor import Cursor
from gpuscaler.settings.fields.kinds import choice, list_of, text
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext

#: How machines are bought in an Auto Scaling group; ``auto`` uses the best way that the group allows.
LAUNCHES = ("auto", "launch-instances", "desired-capacity", "fleet")

_REGION = "[a-z]{2,4}(-[a-z]+)+-[0-9]"
_URL = r"https?://[^\s@/]+(/\S*)?"


def _regions(at: Cursor, _: ReadContext) -> tuple[str, ...]:
    names = at.names("region")
    for cursor in names:
        if not re.fullmatch(_REGION, cursor.entry.raw):
            cursor.wrong("a region such as us-east-1")
    return tuple(cursor.entry.raw for cursor in names)


def _excluded(at: Cursor, _: ReadContext) -> str | None:
    text = at.text("a group's name, a pattern such as system-*, or tag:KEY=VALUE")
    if text is not None and text.startswith("tag:") and not text.removeprefix("tag:").partition("=")[0]:
        at.wrong("a tag's key after tag:, such as tag:team=web")
    return text


def _tags(at: Cursor, _: ReadContext) -> dict[str, str]:
    tags = {}
    for key, value in (at.members() or {}).items():
        text = "" if value.entry.value == "" else value.text("text as a tag's value")
        if not key or len(key) > 128:
            value.add_problem(f"saw a tag's key with {len(key)} characters, expected 1 to 128; correct it")
        tags[key] = text or ""
    return tags


def _prices(at: Cursor, _: ReadContext) -> tuple[OfferingPrice, ...]:
    """``{g5.xlarge: 0.9, g5.xlarge/spot: 0.3}``, the narrower entries last."""
    offering_prices = []
    for key, value in (at.members() or {}).items():
        instance_type, market = key.partition("/")[::2]
        if not instance_type or market not in ("", *MARKETS):
            value.add_problem(f'saw "{key}", expected TYPE or TYPE/MARKET, with one of {", ".join(MARKETS)}')
            continue
        price = value.number(expected="dollars per hour, above 0", positive=market != "reserved")
        if price is not None:
            offering_prices.append(OfferingPrice(instance_type, price, market))
    return tuple(sorted(offering_prices, key=lambda offering_price: offering_price.market != ""))


def _url(expected: str) -> Kind:
    return text(expected, words="URL", pattern=_URL, otherwise=", without user and password")


class AwsSettings(Group, frozen=True, gc=False):
    """How the groups of a cluster are found in AWS: the mapping ``aws``. ``overrides`` are the entries of ``pools``."""

    cluster: Annotated[
        str,
        text("the cluster's name"),
        Field("the cluster's name, as in the tags of its groups", default="no group is adopted"),
    ] = ""
    regions: Annotated[
        tuple[str, ...],
        Kind(
            "list of regions",
            {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"type": "string", "pattern": f"^{_REGION}$"}},
            _regions,
        ),
        Field("regions to search for groups", default="`region` of the file"),
    ] = ()
    groups: Annotated[
        tuple[str, ...],
        list_of(text("the name of an Auto Scaling group"), "list of names", distinct=True),
        Field("groups that are adopted although no tag marks them for discovery, unless they belong to another cluster", default="none"),
    ] = ()
    tags: Annotated[
        Mapping[str, str],
        Kind(
            "mapping of text",
            {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 128}, "additionalProperties": {"type": "string"}},
            _tags,
        ),
        Field("a group with all of these tags is adopted as well, unless it belongs to another cluster", default="none"),
    ] = {}
    exclude: Annotated[
        tuple[str, ...],
        list_of(
            Kind("text", {"type": "string", "pattern": "^([^t]|t$|t[^a]|ta$|ta[^g]|tag$|tag[^:]|tag:[^=])"}, _excluded),
            "list of text",
            distinct=True,
        ),
        Field(
            "groups that are ignored regardless of other settings and tags: a name, a pattern such as `system-*`, `tag:KEY` or "
            "`tag:KEY=VALUE`",
            default="none",
        ),
    ] = ()
    queue_url: Annotated[str, _url("the URL of an SQS queue"), Field("the SQS queue with interruption notices", default="no queue")] = ""
    endpoint_url: Annotated[
        str,
        _url("the URL of an endpoint such as http://127.0.0.1:4566"),
        Field(
            "another endpoint for all services, for tests. The address of a Service over http (`http://NAME.NAMESPACE.svc:4566`) is "
            "resolved through the API server, not by DNS",
            default="AWS's endpoint for each service",
        ),
    ] = ""
    launch: Annotated[
        str,
        choice(LAUNCHES),
        Field(
            "[how machines are bought](#while-the-controller-runs). `fleet` is accepted and reported, but works like `desired-capacity`, "
            "because gpuscaler creates no fleets"
        ),
    ] = "auto"
    prices: Annotated[
        tuple[OfferingPrice, ...],
        Kind(
            "mapping",
            {
                "type": "object",
                "propertyNames": {"pattern": f"^[^/]+(/({'|'.join(MARKETS)}))?$"},
                "additionalProperties": {"type": "number", "minimum": 0},
            },
            _prices,
        ),
        Field("US dollars per hour, by `TYPE` or `TYPE/MARKET`", default="AWS's prices"),
    ] = ()
    overrides: tuple[PoolOverride, ...] = ()
