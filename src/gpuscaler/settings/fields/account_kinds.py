"""Kinds of values that the mappings of several clouds share: URLs, tags, exclusions, prices."""

from collections.abc import Callable

from gpuscaler.model.offerings import MARKETS, ON_DEMAND, RESERVED
from gpuscaler.model.overrides import OfferingPrice
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.kinds import list_of, text
from gpuscaler.settings.fields.table import Kind, ReadContext

_URL = r"https?://[^\s@/]+(/\S*)?"
#: Texts other than ``tag:`` without a key.
_EXCLUDED = "^([^t]|t$|t[^a]|ta$|ta[^g]|tag$|tag[^:]|tag:[^=])"


def type_prices(fold: Callable[[str], str] = str) -> Kind:
    """The user's prices: ``{g5.xlarge: 0.9, g5.xlarge/spot: 0.3}``. A type without a market means its on-demand price.

    ``fold`` makes names equal that the cloud does not distinguish.
    """

    def read(at: Cursor, _: ReadContext) -> tuple[OfferingPrice, ...]:
        offering_prices, places = [], dict[tuple[str, str], str]()
        for key, value in (at.members() or {}).items():
            instance_type, slash, market = key.partition("/")
            market = market if slash else ON_DEMAND
            if not instance_type or market not in MARKETS:
                value.add_problem(f'saw "{key}", expected TYPE or TYPE/MARKET, with one of {", ".join(MARKETS)}')
                continue
            first = places.setdefault((fold(instance_type), market), key)
            if first != key:
                value.add_problem(
                    f'saw a second {market} price of {instance_type} (the first is "{first}"), expected one; remove it, or give it another '
                    "market: a type without a market means on-demand"
                )
            price = value.number(expected="dollars per hour, above 0", positive=market != RESERVED)
            if price is not None:
                offering_prices.append(OfferingPrice(instance_type, price, market))
        return tuple(offering_prices)

    schema = {
        "type": "object",
        "propertyNames": {"pattern": f"^[^/]+(/({'|'.join(MARKETS)}))?$"},
        "additionalProperties": {"type": "number", "minimum": 0},
    }
    return Kind("mapping", schema, read)


def tag_mapping(longest: int) -> Kind:
    """Tags by their keys of at most ``longest`` characters."""

    def read(at: Cursor, _: ReadContext) -> dict[str, str]:
        tags = {}
        for key, value in (at.members() or {}).items():
            text = "" if value.entry.value == "" else value.text("text as a tag's value")
            if not key or len(key) > longest:
                value.add_problem(f"saw a tag's key with {len(key)} characters, expected 1 to {longest}; correct it")
            tags[key] = text or ""
        return tags

    schema = {"type": "object", "propertyNames": {"minLength": 1, "maxLength": longest}, "additionalProperties": {"type": "string"}}
    return Kind("mapping of text", schema, read)


def exclusions(what: str) -> Kind:
    """Names of ``what``, such as "a group", patterns of names, and tags."""

    def read(at: Cursor, _: ReadContext) -> str | None:
        text = at.text(f"{what}'s name, a pattern such as system-*, or tag:KEY=VALUE")
        if text is not None and text.startswith("tag:") and not text.removeprefix("tag:").partition("=")[0]:
            at.wrong("a tag's key after tag:, such as tag:team=web")
        return text

    return list_of(Kind("text", {"type": "string", "pattern": _EXCLUDED}, read), "list of text", distinct=True)


def url(expected: str) -> Kind:
    """A URL without user and password."""
    return text(expected, words="URL", pattern=_URL, otherwise=", without user and password")
