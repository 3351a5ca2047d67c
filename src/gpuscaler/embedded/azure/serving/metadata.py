"""Scheduled events of the Instance Metadata Service.

A real machine asks its own service, at a link-local address, and gets the events of its whole placement group. Here the service at
``/metadata`` has the events of all machines; below ``/_machines/NAME`` it has those that the machine NAME gets.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import ScheduledEvent
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route

_PATH: Final = "/metadata/scheduledevents"


def _events(account: Contents, call: Call) -> Reply:
    refused = _refusal(call)
    if refused is not None:
        return refused
    visible = _visible(account, call.names.get("machine", ""))
    return Reply({"DocumentIncarnation": account.incarnation, "Events": [_event_json(event) for event in visible]})


def _refusal(call: Call) -> Reply | None:
    if call.request.headers.get("metadata", "").lower() != "true":
        return Reply({"error": "Bad request: . Required metadata header not specified"}, status=400)
    if not call.query.get("api-version"):
        return Reply({"error": "Bad request. api-version was not specified in the request"}, status=400)
    return None


def _visible(account: Contents, machine: str) -> Iterable[ScheduledEvent]:
    """The events that a machine gets: those of all machines of its scale set."""
    if not machine:
        return account.events.values()
    for scale_set in account.all_scale_sets():
        names = {member.name for member in scale_set.machines.values()}
        computers = {member.computer for member in scale_set.machines.values()}
        if machine in names | computers:
            return [event for event in account.events.values() if names & set(event.resources)]
    return []


def _event_json(event: ScheduledEvent) -> dict[str, Any]:
    scheduled = event.status == "Scheduled"
    return {
        "EventId": event.id,
        "EventStatus": event.status,
        "EventType": event.kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(event.resources),
        "NotBefore": format_datetime(datetime.fromtimestamp(event.at, UTC), usegmt=True) if scheduled else "",
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.seconds,
    }


def _start(account: Contents, call: Call) -> Reply:
    refused = _refusal(call)
    if refused is not None:
        return refused
    requests = call.json().get("StartRequests")
    if not isinstance(requests, list):
        return Reply({"error": "Bad request. StartRequests are missing"}, status=400)
    idents = [str(request.get("EventId")) for request in requests if isinstance(request, dict)]
    visible = {event.id for event in _visible(account, call.names.get("machine", ""))}
    if unknown := [ident for ident in idents if ident not in visible]:
        return Reply({"error": f"Bad request. Event {unknown[0]} is unknown"}, status=400)
    for ident in idents:
        account.start_event(ident)
    return Reply()


ROUTES: Final = (
    Route("GET", _PATH, _events, versioned=False),
    Route("POST", _PATH, _start, versioned=False),
    Route("GET", f"/_machines/{{machine}}{_PATH}", _events, versioned=False),
    Route("POST", f"/_machines/{{machine}}{_PATH}", _start, versioned=False),
)
