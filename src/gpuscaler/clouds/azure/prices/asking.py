"""Asks the Retail Prices API, which needs no login. All is limited: sizes in a query, pages, bytes, time.

Source: Azure Retail Prices overview: ``$filter`` with ``eq``, ``and``, ``or``; up to 1,000 items a page; ``NextPageLink``.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

from yarl import URL

from gpuscaler.clouds.azure.api.http import BrokenError, Http, HttpReply, UnsentError
from gpuscaler.clouds.protocol import THROTTLED, UNKNOWN, CloudError

PUBLIC_URL: Final = "https://prices.azure.com"
_PATH: Final = "/api/retail/prices"
#: The Azure Resource Manager of clouds that share the public prices, and of those without any.
_SHARED_PRICES, _NO_PRICES = (".azure.com", ".usgovcloudapi.net"), (".chinacloudapi.cn",)
#: Sizes in a query: a size has about 10 items, and the query has to fit into a URL.
_SIZES_AT_ONCE: Final = 15
_MAX_PAGES, _MAX_PAGE_BYTES = 20, 8 * 2**20
_PAGE_SECONDS: Final = 10.0
#: The longest wait that the API may ask for, in seconds.
_LONGEST_WAIT: Final = 3600.0


def prices_url(endpoint_url: str) -> str:
    """The address of the API for the endpoint of Azure Resource Manager; empty if its cloud has none.

    An endpoint that is none of Azure's, as in tests, has prices, too.
    """
    host = URL(endpoint_url).host or "" if endpoint_url else ""
    if host.endswith(_NO_PRICES):
        return ""
    return PUBLIC_URL if not endpoint_url or host.endswith(_SHARED_PRICES) else endpoint_url.rstrip("/")


def size_groups(sizes: Collection[str]) -> Iterator[list[str]]:
    """The sizes in groups that fit into a query. Names that would change the query's meaning are left out."""
    names = sorted(name for name in sizes if name.replace("_", "").replace("-", "").isalnum() and name.isascii())
    for start in range(0, len(names), _SIZES_AT_ONCE):
        yield names[start : start + _SIZES_AT_ONCE]


async def read_items(http: Http, url: str, location: str, sizes: Sequence[str]) -> list[Any]:
    """All items of the sizes in the location. Raises CloudError, as for an answer with too many pages or with pages elsewhere."""
    names = " or ".join(f"armSkuName eq '{name}'" for name in sizes)
    query = f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{location}' and ({names})"
    page = f"{url}{_PATH}?$filter={quote(query, safe='')}"
    items: list[Any] = []
    for _ in range(_MAX_PAGES):
        document = await _page(http, url, page)
        found = document.get("Items") if isinstance(document, dict) else None
        if not isinstance(found, list):
            raise CloudError(UNKNOWN, f"{url}: saw an answer without Items, expected retail prices")
        items += found
        link = document.get("NextPageLink")
        if not link:
            return items
        page = next_page(url, link)
    raise CloudError(UNKNOWN, f"{url}: saw more than {_MAX_PAGES} pages of prices of {len(sizes)} sizes, expected fewer")


def next_page(url: str, link: Any) -> str:
    """The link to the next page, which the API writes with its port. Raises CloudError if it leads anywhere else than to ``url``."""
    try:
        here, target = URL(url), URL(link)
        same = (target.scheme, target.host, target.port, target.user) == (here.scheme, here.host, here.port, None)
        same = same and target.path == here.path.rstrip("/") + _PATH
    except (TypeError, ValueError):
        same = False
    if not same:
        raise CloudError(UNKNOWN, f"{url}: saw a next page at {str(link)[:100]!r}, expected one at the same address")
    return str(target)


async def _page(http: Http, url: str, page: str) -> Any:
    try:
        reply = await http.request("GET", page, headers={}, seconds=_PAGE_SECONDS, longest=_MAX_PAGE_BYTES)
    except (UnsentError, BrokenError) as error:
        raise CloudError(UNKNOWN, f"{url}: {error}") from error
    if reply.status != 200:
        cause = THROTTLED if reply.status == 429 else UNKNOWN
        raise CloudError(cause, f"{url}: saw status {reply.status}, expected retail prices", retry_after=_wait(reply))
    if not reply.complete:
        raise CloudError(UNKNOWN, f"{url}: saw an answer that breaks off or has more than {_MAX_PAGE_BYTES} bytes, expected retail prices")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise CloudError(UNKNOWN, f"{url}: saw an answer that is not JSON, expected retail prices") from error


def _wait(reply: HttpReply) -> float:
    """The wait in seconds that the API asks for, 0 if none."""
    text = reply.headers.get("retry-after", "")
    return min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdecimal() else 0.0
