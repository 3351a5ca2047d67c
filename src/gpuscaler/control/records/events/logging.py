"""One line of the log for each decision and for each thing that came of one; never one for each pod or each machine of an order."""

from dataclasses import dataclass
from typing import Any

import structlog

from gpuscaler.control.records.events.happening import ANSWERED, EVICTED, GRANTED, INSTEAD, REFUSED, TROUBLE, Happening
from gpuscaler.control.records.events.records import Sink

_LOG = structlog.get_logger("gpuscaler.control")
#: So many pods are named; of the others there is the number.
NAMED = 3
#: Pod by pod or machine by machine: the line of the removal, or of the order and its answer, has said all of it at once.
PARTS = frozenset({EVICTED, GRANTED, INSTEAD, REFUSED})


@dataclass(frozen=True, slots=True)
class LogLines(Sink):
    """A sink that logs happenings with their fields."""

    def happened(self, what: Happening, /) -> None:
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
        told = {name: value for name, value in fields.items() if value or name == "late_seconds"}
        trouble = what.kind in TROUBLE or (what.kind == ANSWERED and what.cause)
        log = _LOG.debug if what.kind in PARTS else _LOG.warning if trouble else _LOG.info
        log(what.text, kind=what.kind, at=what.at, **told)
