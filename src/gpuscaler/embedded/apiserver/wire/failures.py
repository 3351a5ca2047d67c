"""Refusals, in the words and shape of Kubernetes' ``metav1.Status``.

Source of the words: ``k8s.io/apimachinery/pkg/api/errors`` and ``k8s.io/apiserver/pkg/registry``, Kubernetes 1.35.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuscaler.embedded.apiserver.kinds import Kind

ACCEPTED: Final = (
    "application/json",
    "application/yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
EXPIRED_PAGE: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue "
    "parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token "
    "results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and "
    "now may show up in the list."
)


class Failure(Exception):  # noqa: N818 - Kubernetes calls such an answer a Failure
    """A refused request: HTTP ``code``, CamelCase ``reason``, readable ``message``."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after: int | None = None,
        resume: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.retry_after, self.resume = dict(details or {}), retry_after, resume

    def status(self) -> dict[str, Any]:
        """The ``Status`` object."""
        details = dict(self.details)
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.resume} if self.resume else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": details} if details else {}),
            "code": self.code,
        }

    def body(self) -> bytes:
        return msgspec.json.encode(self.status()) + b"\n"

    def headers(self) -> dict[str, str]:
        extra = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {"content-type": "application/json", **extra}


class Severed(Exception):  # noqa: N818 - it names an event of the connection, and is no answer
    """The connection breaks here; the transport shows that to its client."""


def _of(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural}


def not_found(kind: Kind, name: str) -> Failure:
    return Failure(404, "NotFound", f'{kind.qualified} "{name}" not found', details=_of(kind, name))


def no_such_path() -> Failure:
    return Failure(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(kind: Kind, name: str) -> Failure:
    return Failure(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', details=_of(kind, name))


def conflict(kind: Kind, name: str, why: str = "") -> Failure:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return Failure(409, "Conflict", f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}', details=_of(kind, name))


def invalid(kind: Kind, name: str, causes: Sequence[tuple[str, str, str]]) -> Failure:
    """``causes`` are (reason, field, message); the message already says what kind of problem it is."""
    messages = ", ".join(f"{field}: {message}" for _, field, message in causes)
    details = {
        "name": name,
        **({"group": kind.group} if kind.group else {}),
        "kind": kind.kind,
        "causes": [{"reason": reason, "message": message, "field": field} for reason, field, message in causes],
    }
    return Failure(
        422,
        "Invalid",
        f'{kind.kind}{f".{kind.group}" if kind.group else ""} "{name}" is invalid: {_join_causes(messages, causes)}',
        details=details,
    )


def _join_causes(messages: str, causes: Sequence[tuple[str, str, str]]) -> str:
    return f"[{messages}]" if len(causes) > 1 else messages


def bad_request(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def forbidden(kind: Kind, name: str, why: str) -> Failure:
    return Failure(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', details=_of(kind, name))


def expired(message: str, resume: str = "") -> Failure:
    return Failure(410, "Expired", message, resume=resume)


def too_old(revision: int, oldest: int) -> Failure:
    return expired(f"too old resource version: {revision} ({oldest})")


def too_new(revision: int, current: int) -> Failure:
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    message = f"Too large resource version: {revision}, current: {current}"
    return Failure(504, "Timeout", message, details=details, retry_after=1)


def method_not_allowed() -> Failure:
    return Failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unsupported_media_type(accepted: Sequence[str] = ACCEPTED) -> Failure:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return Failure(415, "UnsupportedMediaType", message)


def unauthorized() -> Failure:
    return Failure(401, "Unauthorized", "Unauthorized")
