"""Errors of Azure Resource Manager, in answers and in operations."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Failure(Struct, frozen=True, gc=False):
    """An error as ARM writes it: ``details`` are inner errors."""

    code: str
    message: str
    target: str = ""
    details: tuple["Failure", ...] = ()
    inner: str = ""

    def as_json(self) -> dict[str, Any]:
        """The value of ``error`` in bodies. ``inner`` is ``innererror.internalErrorCode``."""
        shown: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.target:
            shown["target"] = self.target
        if self.details:
            shown["details"] = [detail.as_json() for detail in self.details]
        if self.inner:
            shown["innererror"] = {"internalErrorCode": self.inner}
        return shown


class AzureError(Exception):
    """A refusal with its HTTP ``status``; ``headers`` are sent with it."""

    def __init__(self, failure: Failure, *, status: int = 400, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{failure.code}: {failure.message}")
        self.failure, self.status, self.headers = failure, status, dict(headers or {})


class BrokenError(Exception):
    """The connection breaks instead of an answer."""


def refusal(code: str, message: str, *, status: int = 400, target: str = "", headers: Mapping[str, str] | None = None) -> AzureError:
    """An error without inner errors."""
    return AzureError(Failure(code, message, target), status=status, headers=headers)


def bad_request(message: str, *, code: str = "InvalidParameter", target: str = "") -> AzureError:
    return refusal(code, message, target=target)


def no_resource(kind: str, name: str, group: str) -> AzureError:
    """A resource is missing in an existing resource group."""
    text = (
        f"The Resource '{kind}/{name}' under resource group '{group}' was not found. "
        "For more details please go to https://aka.ms/ARMResourceNotFoundFix"
    )
    return refusal("ResourceNotFound", text, status=404)
