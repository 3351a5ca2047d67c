"""Logs a line for each decision and each of its results, but not for each pod or each machine of an order."""

from dataclasses import dataclass
from typing import Any

import structlog

from gpuscaler.control.records.events.happening import ANSWERED, EVICTED, GRANTED, INSTEAD, REFUSED, TROUBLE, HistoryEvent
from gpuscaler.control.records.events.records import Sink

_LOG = structlog.get_logger("gpuscaler.control")
#: How many pods are named; the others are counted.
NAMED = 3
#: Kinds that repeat for each pod or machine what the line of the removal, the order or its answer says for all of them.
PARTS = frozenset({EVICTED, GRANTED, INSTEAD, REFUSED})


@dataclass(frozen=True, slots=True)
class LogLines(Sink):
    """A sink that logs events with their fields."""

    def happened(self, what: HistoryEvent, /) -> None:
        fields: dict[str, Any] = {
            "node": what.node,
            "machine": what.machine,
            "order": what.order,
            "decision": what.decision,
            "cause": what.cause,
            "pods": list(what.pods[:NAMED]),
            "pod_count": len(what.pods),
            **(dict(zip(("pool", "market", "instance_type", "zone"), what.offering, strict=True)) if what.offering else {}),
        }
        if what.late is not None:
            fields["late_seconds"] = round(what.late, 1)
        reported_fields = {name: value for name, value in fields.items() if value or name == "late_seconds"}
        trouble = what.kind in TROUBLE or (what.kind == ANSWERED and what.cause)
        log = _LOG.debug if what.kind in PARTS else _LOG.warning if trouble else _LOG.info
        log(what.text, kind=what.kind, at=what.at, **reported_fields)
