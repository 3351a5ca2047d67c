"""Operations: the headers of accepted writes, and the URLs at which operations are read."""

from typing import Any

from gpuscaler.embedded.azure.compute.views import iso
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import AKS, FAILED, SUCCEEDED, Operation
from gpuscaler.embedded.azure.wire.errors import Failure, refusal
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route


def accepted(account: Contents, call: Call, operation: Operation, *, location: bool) -> dict[str, str]:
    """Headers with which ``operation`` is followed; ``location`` says that this kind of write also has ``Location``."""
    base = f"{call.request.origin}/subscriptions/{operation.subscription}/providers/{operation.provider}/locations/{operation.location}"
    version = call.query.get("api-version", "2024-11-01")
    results = "operationresults" if operation.provider == AKS else "operations"
    headers = {}
    if account.conditions.follow != "location" or not location:
        headers["azure-asyncoperation"] = f"{base}/operations/{operation.id}?api-version={version}"
    if location and account.conditions.follow != "operation":
        headers["location"] = f"{base}/{results}/{operation.id}?monitor=true&api-version={version}"
    return headers | _retry_after(account)


def _retry_after(account: Contents) -> dict[str, str]:
    seconds = account.conditions.retry_after
    return {} if seconds is None else {"retry-after": str(seconds)}


def _read(account: Contents, call: Call) -> Reply:
    operation = _find(account, call)
    if call.query.get("monitor") == "true":
        return _result(account, operation)
    shown: dict[str, Any] = {"startTime": iso(operation.started_at), "status": operation.status, "name": operation.id}
    if operation.ended_at is not None:
        shown["endTime"] = iso(operation.ended_at)
    if operation.error is not None:
        shown["error"] = operation.error.as_json()
    return Reply(shown, headers=_retry_after(account) if operation.running else {})


def _read_result(account: Contents, call: Call) -> Reply:
    return _result(account, _find(account, call))


def _result(account: Contents, operation: Operation) -> Reply:
    """What the URL in ``Location`` answers: 202 while the operation runs, then its result."""
    if operation.running:
        return Reply(status=202, headers=_retry_after(account))
    if operation.status == SUCCEEDED:
        return Reply(status=operation.location_status)
    error = operation.error or Failure("OperationCanceled", "The operation was canceled.")
    return Reply({"error": error.as_json()}, status=409 if operation.status == FAILED else 400)


def _find(account: Contents, call: Call) -> Operation:
    operation = account.operations.get(call.names["operation"].lower())
    if operation is None or operation.subscription.lower() != call.names["subscription"].lower():
        text = f"The entity was not found: operation '{call.names['operation']}'."
        raise refusal("NotFound", text, status=404)
    return operation


_PATH = "/subscriptions/{subscription}/providers/%s/locations/{location}/%s/{operation}"
ROUTES = (
    Route("GET", _PATH % ("Microsoft.Compute", "operations"), _read, "operation"),
    Route("GET", _PATH % ("Microsoft.ContainerService", "operations"), _read, "aks-operation"),
    Route("GET", _PATH % ("Microsoft.ContainerService", "operationresults"), _read_result, "aks-operation"),
)
