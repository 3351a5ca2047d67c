"""The keys of a run file that apply to AWS only."""

import re
from collections.abc import Mapping
from typing import Annotated

from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.account_kinds import exclusions, tag_mapping, type_prices, url
from gpuscaler.settings.fields.kinds import choice, list_of, text
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext

#: How machines are bought in an Auto Scaling group; ``auto`` uses the best way that the group allows.
LAUNCHES = ("auto", "launch-instances", "desired-capacity", "fleet")

_REGION = "[a-z]{2,4}(-[a-z]+)+-[0-9]"


def _regions(at: Cursor, _: ReadContext) -> tuple[str, ...]:
    names = at.names("region")
    for cursor in names:
        if not re.fullmatch(_REGION, cursor.entry.raw):
            cursor.wrong("a region such as us-east-1")
    return tuple(cursor.entry.raw for cursor in names)


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
        tag_mapping(128),
        Field("a group with all of these tags is adopted as well, unless it belongs to another cluster", default="none"),
    ] = {}
    exclude: Annotated[
        tuple[str, ...],
        exclusions("a group"),
        Field(
            "groups that are ignored regardless of other settings and tags: a name, a pattern such as `system-*`, `tag:KEY` or "
            "`tag:KEY=VALUE`",
            default="none",
        ),
    ] = ()
    queue_url: Annotated[str, url("the URL of an SQS queue"), Field("the SQS queue with interruption notices", default="no queue")] = ""
    endpoint_url: Annotated[
        str,
        url("the URL of an endpoint such as http://127.0.0.1:4566"),
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
        type_prices(),
        Field(
            "US dollars per hour: `TYPE` is the on-demand price, `TYPE/spot` the spot price, `TYPE/reserved` that of reserved capacity. "
            "A market without an entry keeps [its own price](#prices)",
            default="AWS's prices",
        ),
    ] = ()
    overrides: tuple[PoolOverride, ...] = ()
