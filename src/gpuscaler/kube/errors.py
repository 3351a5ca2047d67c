"""Errors of the communication with an API server.

- AccessError: the configuration cannot be used
- Unreachable: no answer came
  - CredentialsError: nothing was sent, since no credentials were available
  - NotApiServerError: what answered is no API server
- ApiError: the answer is an error
  - Unauthorized 401, Forbidden 403, NotFound 404, Gone 410, Invalid 422, TooManyRequests 429, ServerError 5xx
  - Conflict 409
    - AlreadyExists 409 with the reason AlreadyExists
"""

import html
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from gpuscaler.model.wire import Wire


class AccessError(Exception):
    """Configuration that cannot be used; the text names the object, what was seen, what was expected and what to do."""


class Unreachable(Exception):  # noqa: N818 - it names the state, as the API's own reasons do
    """No answer came: nothing listens, the connection broke, or time ran out. It is unknown whether a write took effect."""


class CredentialsError(Unreachable):
    """No credentials were available, so nothing was sent: for example, a token file is missing or an exec plugin failed."""


class NotApiServerError(Unreachable):
    """The answer is not one of an API server, but of a web server, a login page or a proxy at its address."""


class Cause(NamedTuple):
    """One cause in the details of a Status: its ``reason`` (a CauseType such as ``DisruptionBudget``), text, and field."""

    reason: str
    message: str
    field: str = ""


class ApiError(Exception):
    """A Status other than Success, or an answer above 399 without a Status in its body.

    ``retry_after`` is in seconds, from the header, else from ``details.retryAfterSeconds``; None if the server gives none. ``kind`` and
    ``name`` are the object of the details (``kind`` may be a plural there, as sent by the server).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        kind: str = "",
        name: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.kind = kind
        self.name = name
        self.causes = causes
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} ({self.status} {self.reason})" if self.reason else f"{self.message} ({self.status})"


class Unauthorized(ApiError):  # noqa: N818 - the API's own name of the reason, as all below
    """The server does not accept the caller's identity."""


class Forbidden(ApiError):  # noqa: N818
    """The server knows the caller and does not allow the request."""


class NotFound(ApiError):  # noqa: N818
    """No such object, or the server has no such resource."""


class Conflict(ApiError):  # noqa: N818
    """The object was changed in between, or a precondition does not hold."""


class AlreadyExists(Conflict):
    """An object of that name already exists."""


class Gone(ApiError):  # noqa: N818
    """The resource version or the continue token is too old."""


class Invalid(ApiError):  # noqa: N818
    """The object does not pass validation."""


class TooManyRequests(ApiError):  # noqa: N818
    """The server is overloaded, or a disruption budget refuses."""


class ServerError(ApiError):
    """The server failed; it is unknown whether a write took effect."""


class WireCause(Wire):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class WireDetails(Wire):
    name: str | None = None
    kind: str | None = None
    causes: list[WireCause] | None = None
    retry_after_seconds: int | None = None


class WireStatus(Wire):
    """``meta/v1`` Status, limited to the fields in use."""

    kind: str | None = None
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: WireDetails | None = None


_CLASSES: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
#: How many characters of a body without a Status are quoted, and how many of a web page.
_QUOTED, _QUOTED_OF_PAGE = 300, 60
#: How many bytes of a web page are searched for words: styles come first.
_READ_OF_PAGE = 8192
#: What a web page begins with, and its parts that are not shown.
_PAGE = re.compile(r"\s*<(!doctype|!--|html|head|body|title|h1|center|p|pre|script)\b", re.IGNORECASE)
_UNSEEN = re.compile(r"<!--.*?(-->|$)|<(style|script)\b.*?(</\2\s*>|$)|<[^<>]*(>|$)", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title\b.*?</title\s*>", re.IGNORECASE | re.DOTALL)
#: The path of what every API server has, without what it forwards to programs.
_CORE = re.compile(r"/api/v1/(?!.*/proxy(/|$))")


def check_answer(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise :class:`NotApiServerError` if no API server gives this answer to a request.

    A web page with the status 404 must not mean that an object does not exist. A page with the status 429 or above 499 may be from a load
    balancer in front of an API server that is overloaded or starts: that is an error of the server, which has a pause of its own.
    """
    content_type = headers.get("content-type", "")
    is_page = _is_page(content_type, body)
    if is_page and status != 429 and status < 500:
        seen = f"status {status} with {_quote_page(body)}"
    elif 200 <= status < 300:
        seen = f"an answer of {content_type}"
    elif status == 404 and _CORE.match(path) and not _is_status(body):
        seen = f"status 404 with {_shortened(_text_of(body), _QUOTED_OF_PAGE) or 'no text'!r}"
    else:
        return
    raise NotApiServerError(f"{method} {path}: saw {seen}, expected the JSON of a Kubernetes API server")


def _is_page(content_type: str, body: bytes) -> bool:
    return "html" in content_type.lower() or _PAGE.match(body[:200].decode(errors="replace")) is not None


def _is_status(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=WireStatus).kind == "Status"
    except msgspec.DecodeError:
        return False


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an answer above 399; header names in lower case. A body that cannot be decoded is quoted."""
    try:
        reply = msgspec.json.decode(body, type=WireStatus)
    except msgspec.DecodeError:
        reply = WireStatus()
    if reply.kind != "Status":
        reply = WireStatus(message=_quote_body(status, body))
    return _error(status, reply, _parse_retry_after(headers.get("retry-after", "")))


def error_of_status(body: bytes) -> ApiError:
    """The error for a Status object that comes without an HTTP status of its own, as in an ERROR event of a watch."""
    try:
        status = msgspec.json.decode(body, type=WireStatus)
    except msgspec.DecodeError:
        status = WireStatus(message=_quote_body(500, body))
    return _error(status.code or 500, status, None)


def _error(status: int, reply: WireStatus, retry_after: float | None) -> ApiError:
    details = reply.details or WireDetails()
    # The Status of a watch or an eviction may have another code than the answer's head, which is decisive then.
    kind = _CLASSES.get(status, ServerError if status >= 500 else ApiError)
    if kind is Conflict and reply.reason == "AlreadyExists":
        kind = AlreadyExists
    if status == 400 and reply.reason == "Expired":
        kind = Gone
    if retry_after is None and details.retry_after_seconds:
        retry_after = float(details.retry_after_seconds)
    return kind(
        status,
        reply.message or _phrase(status),
        reason=reply.reason or "",
        kind=details.kind or "",
        name=details.name or "",
        causes=tuple(Cause(cause.reason or "", cause.message or "", cause.field or "") for cause in details.causes or ()),
        retry_after=retry_after,
    )


def _quote_body(status: int, body: bytes) -> str:
    if _is_page("", body):
        return f"{_quote_page(body)} instead of the JSON of a Kubernetes API server"
    return _shortened(_text_of(body), _QUOTED) or _phrase(status)


def _quote_page(body: bytes) -> str:
    """``a web page`` with its first words, in one line."""
    text = body[:_READ_OF_PAGE].decode(errors="replace")
    # The title mostly repeats the heading.
    words = _words(_TITLE.sub(" ", text)) or _words(text)
    return f"a web page ({_shortened(words, _QUOTED_OF_PAGE)!r})" if words else "a web page"


def _words(page: str) -> str:
    return " ".join(html.unescape(_UNSEEN.sub(" ", page)).split())


def _text_of(body: bytes) -> str:
    return " ".join(body[: 4 * _QUOTED].decode(errors="replace").split())


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "an answer without a reason"


def _parse_retry_after(text: str) -> float | None:
    """Parse Retry-After, which Kubernetes sends in seconds; a date, as from a proxy, is ignored, since the clocks may differ."""
    try:
        return max(0.0, float(text)) if text and float(text) < 86400 else None
    except ValueError:
        return None
