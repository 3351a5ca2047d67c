"""Errors in the form of Kubernetes: ``meta/v1`` Status, identical to the byte.

Sources: ``k8s.io/apimachinery/pkg/api/errors``, ``k8s.io/apiserver/.../responsewriters/errors.go``, and the wording of
``sigs.k8s.io/custom-metrics-apiserver/pkg/provider/errors.go`` and prometheus-adapter's provider, which the HorizontalPodAutoscaler quotes.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpuscaler.kube.users import Attributes
from gpuscaler.metrics.api.documents.encoding import encode

_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Failure(Exception):  # noqa: N818 - the API calls it so: status Failure
    """An answer that is a Status. ``details`` are left out if they are None; they may be empty."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def body(self) -> bytes:
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message}
        status["reason"] = self.reason
        if self.details is not None:
            status["details"] = dict(self.details)
        return encode({**status, "code": self.code})


def not_found(group_resource: str, metric: str, name: str = "", why: str = "") -> Failure:
    """These objects or, with ``name``, this object have no such metric. ``why`` is added if more is known."""
    message = f"the server could not find the metric {metric} for {group_resource}{f' {name}' if name else ''}"
    return Failure(404, "NotFound", f"{message}: {why}" if why else message)


def not_found_external(metric: str, namespace: str, why: str = "") -> Failure:
    """No such external metric. prometheus-adapter names a kind here, but an external metric has none."""
    message = f"the server could not find the external metric {metric} for namespace {namespace}"
    return Failure(404, "NotFound", f"{message}: {why}" if why else message)


def bad_request(message: str) -> Failure:
    return Failure(400, "BadRequest", message)


def internal(message: str) -> Failure:
    return Failure(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def unauthorized() -> Failure:
    return Failure(401, "Unauthorized", "Unauthorized")


def too_many() -> Failure:
    """Too many requests from unknown callers."""
    message = "too many requests from callers without a certificate, please try again later"
    return Failure(429, "TooManyRequests", message, {"retryAfterSeconds": 1})


def method_not_allowed(attributes: Attributes) -> Failure:
    message = "the server does not allow this method on the requested resource"
    return Failure(
        405, "MethodNotAllowed", message, {"group": attributes.group, "kind": attributes.resource} if attributes.resource else {}
    )


def forbidden(user: str, attributes: Attributes, why: str = "") -> Failure:
    """``user`` is not allowed to do this. ``why`` is the authorizer's reason, usually empty."""
    if not attributes.resource:
        message = f"User {_quoted(user)} cannot {attributes.verb} path {_quoted(attributes.path)}"
        return Failure(403, "Forbidden", f"forbidden: {_with_reason(message, why)}", {})
    resource = f"{attributes.resource}/{attributes.subresource}" if attributes.subresource else attributes.resource
    scope = f"in the namespace {_quoted(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    message = f"User {_quoted(user)} cannot {attributes.verb} resource {_quoted(resource)} in API group {_quoted(attributes.group)} {scope}"
    group_resource = f"{attributes.resource}.{attributes.group}"
    named = f"{group_resource} {_quoted(attributes.name)}" if attributes.name else group_resource
    details = {"name": attributes.name, "group": attributes.group, "kind": attributes.resource}
    return Failure(
        403, "Forbidden", f"{named} is forbidden: {_with_reason(message, why)}", {key: value for key, value in details.items() if value}
    )


def _with_reason(message: str, why: str) -> str:
    message = message.translate(_HTML)
    return f"{message}: {why}" if why else message


def _quoted(text: str) -> str:
    """Quote like Go's ``%q``, which differs from JSON only for unprintable characters."""
    return msgspec.json.encode(text).decode()
