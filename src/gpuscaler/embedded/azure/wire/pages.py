"""Lists in pages that are linked by ``nextLink``."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from gpuscaler.embedded.azure.wire.errors import bad_request
from gpuscaler.embedded.azure.wire.requests import Call, Reply


def page(call: Call, items: Sequence[Any], size: int) -> Reply:
    """The page of ``items`` that ``call`` asks for, of ``size`` items; ``nextLink`` is absolute and repeats the query."""
    start = _start(call.query.get("$skiptoken", ""))
    content: dict[str, Any] = {"value": list(items[start : start + size])}
    if start + size < len(items):
        token = urlsafe_b64encode(f"from {start + size}".encode()).decode()
        query = urlencode({**call.query, "$skiptoken": token})
        content["nextLink"] = f"{call.request.origin}{call.request.path}?{query}"
    return Reply(content)


def _start(token: str) -> int:
    if not token:
        return 0
    try:
        return int(urlsafe_b64decode(token).decode().removeprefix("from "))
    except ValueError as error:
        raise bad_request(f"The provided $skiptoken '{token}' is invalid.", code="InvalidSkipToken") from error
