"""The keys of a run file that only AWS has, and pools of a file that only change what an account brings."""

import re

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.model.pools import STEERINGS
from gpuscaler.settings.cursor import Cursor
from gpuscaler.settings.pieces import read_budgets, read_labels, read_sizes, read_spare, read_taints
from gpuscaler.settings.run_settings import LAUNCHES, AwsSettings

AWS_KEYS = ("cluster", "regions", "groups", "tags", "exclude", "queue_url", "endpoint_url", "launch", "prices")
#: What an entry of ``pools`` may say about a pool that was found.
OVERRIDE_KEYS = (
    "name",
    "min",
    "max",
    "spare",
    "idle_after",
    "unready_after",
    "steering",
    "min_gpus_per_pod",
    "labels",
    "taints",
    "startup_taints",
    "priority",
    "offerings",
    "budgets",
)
PRICE_KEYS = ("type", "market", "zone", "price")

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-[0-9]")
_URL = re.compile(r"https?://[^\s@/]+(/\S*)?")
_WHOLE = "a number of GPUs, 0 or more"

Fields = dict[str, Cursor]


def read_aws(at: Cursor | None, region: str) -> AwsSettings:
    """The mapping ``aws``; without regions of its own, ``region`` of the file counts."""
    fields = at.mapping(AWS_KEYS) if at is not None else {}
    regions = tuple(_region(item) for item in fields["regions"].names("region")) if "regions" in fields else ()
    return AwsSettings(
        cluster=(fields["cluster"].text("the cluster's name") or "") if "cluster" in fields else "",
        regions=regions or ((region,) if region else ()),
        groups=tuple(dict.fromkeys(item.text("the name of an Auto Scaling group") or "" for item in fields["groups"].items()))
        if "groups" in fields
        else (),
        tags=_tags(fields["tags"]) if "tags" in fields else {},
        exclude=tuple(dict.fromkeys(map(_excluded, fields["exclude"].items()))) if "exclude" in fields else (),
        queue_url=_url(fields["queue_url"], "the URL of an SQS queue") if "queue_url" in fields else "",
        endpoint_url=_url(fields["endpoint_url"], "the URL of an endpoint such as http://127.0.0.1:4566")
        if "endpoint_url" in fields
        else "",
        launch=(fields["launch"].choice(LAUNCHES) or "auto") if "launch" in fields else "auto",
        prices=_prices(fields["prices"]) if "prices" in fields else (),
    )


def _region(at: Cursor) -> str:
    if not _REGION.fullmatch(at.entry.raw):
        at.wrong("a region such as us-east-1")
    return at.entry.raw


def _excluded(at: Cursor) -> str:
    text = at.text("a group's name, a pattern such as system-*, or tag:KEY=VALUE") or ""
    if text.startswith("tag:") and not text.removeprefix("tag:").partition("=")[0]:
        at.wrong("a tag's key behind tag:, such as tag:team=web")
    return text


def _tags(at: Cursor) -> dict[str, str]:
    found = {}
    for key, value in (at.members() or {}).items():
        text = "" if value.entry.value == "" else value.text("text as a tag's value")
        if not key or len(key) > 128:
            value.say("saw a tag's key of no or more than 128 characters, expected 1 to 128; shorten it")
        found[key] = text or ""
    return found


def _url(at: Cursor, expected: str) -> str:
    text = at.text(expected)
    if text is not None and not _URL.fullmatch(text):
        at.wrong(f"{expected}, without user and password")
    return text or ""


def _prices(at: Cursor) -> tuple[OfferingPrice, ...]:
    """``{g5.xlarge: 0.9, g5.xlarge/spot: 0.3}``, the narrower entries last."""
    found = []
    for key, value in (at.members() or {}).items():
        instance_type, _, market = key.partition("/")
        if not instance_type or market not in ("", *MARKETS):
            value.say(f'saw "{key}", expected TYPE or TYPE/MARKET, with one of {", ".join(MARKETS)}')
            continue
        price = value.number(expected="dollars per hour, above 0", positive=market != "reserved")
        if price is not None:
            found.append(OfferingPrice(instance_type, price, market))
    return tuple(sorted(found, key=lambda one: one.market != ""))


def read_overrides(at: Cursor) -> tuple[PoolOverride, ...]:
    """The entries of ``pools`` where pools come from the account."""
    found: dict[str, PoolOverride] = {}
    for item in at.items():
        one = _override(item)
        if one is None:
            continue
        if one.name in found:
            item.say(f'saw the name "{one.name}" a second time; merge the two entries')
        found[one.name] = one
    return tuple(found.values())


def _override(at: Cursor) -> PoolOverride | None:
    fields = at.mapping(OVERRIDE_KEYS, required=("name",))
    name = fields["name"].label_value("a pool's name") if "name" in fields else None
    if name is None:
        return None
    least, most = read_sizes(fields)
    priority = fields["priority"].integer(minimum=-(2**31), expected="a whole number; higher is first") if "priority" in fields else None
    return PoolOverride(
        name=name,
        min=least,
        max=most,
        spare=read_spare(fields["spare"], ()) if "spare" in fields else None,
        idle_after=fields["idle_after"].duration() if "idle_after" in fields else None,
        unready_after=fields["unready_after"].duration() if "unready_after" in fields else None,
        steering=fields["steering"].choice(STEERINGS) if "steering" in fields else None,
        priority=priority,
        min_gpus_per_pod=fields["min_gpus_per_pod"].integer(minimum=0, expected=_WHOLE) if "min_gpus_per_pod" in fields else None,
        budgets=read_budgets(fields["budgets"]) if "budgets" in fields else None,
        labels=read_labels(fields["labels"], name) if "labels" in fields else {},
        taints=read_taints(fields["taints"]) if "taints" in fields else (),
        startup_taints=read_taints(fields["startup_taints"]) if "startup_taints" in fields else None,
        prices=tuple(price for item in fields["offerings"].items() if (price := _price(item))) if "offerings" in fields else (),
    )


def _price(at: Cursor) -> OfferingPrice | None:
    """An offering that only says what one costs."""
    fields = at.mapping(PRICE_KEYS, required=("type", "price"))
    market = (fields["market"].choice(MARKETS) or "") if "market" in fields else ""
    free = market == "reserved"
    price = (
        fields["price"].number(expected="dollars per hour above 0 (0 only if reserved)", positive=not free) if "price" in fields else None
    )
    name = fields["type"].label_value("an instance type") if "type" in fields else None
    zone = (fields["zone"].label_value("a zone") or "") if "zone" in fields else ""
    return OfferingPrice(name, price, market, zone) if name and price is not None else None
