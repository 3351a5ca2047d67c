"""Answers in pages."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any, TypeVar

from gpuscaler.embedded.aws.wire.errors import AwsError

T = TypeVar("T")


def page(items: Sequence[T], params: dict[str, Any], *, size: str, default: int, most: int) -> tuple[list[T], dict[str, str]]:
    """The page that ``params`` request, by ``NextToken`` and the parameter ``size``, and the token of the next page for the reply."""
    wanted = params.get(size) or default
    if wanted > most:
        raise AwsError("ValidationError", f"Value '{wanted}' at '{size}' failed to satisfy constraint: less than or equal to {most}")
    start = _read(params["NextToken"]) if params.get("NextToken") else 0
    end = start + wanted
    return list(items[start:end]), {"NextToken": _token(end)} if end < len(items) else {}


def _token(start: int) -> str:
    return urlsafe_b64encode(f"from {start}".encode()).decode()


def _read(token: str) -> int:
    try:
        return int(urlsafe_b64decode(token).decode().removeprefix("from "))
    except ValueError as error:
        raise AwsError("InvalidNextToken", f"The token '{token}' is invalid.") from error
