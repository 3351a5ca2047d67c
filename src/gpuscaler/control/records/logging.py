"""One line of the log for each decision and for each thing that came of one; never one for each pod."""

from dataclasses import dataclass
from typing import Any

import structlog

from gpuscaler.control.records.happening import EVICTED, TROUBLE, Happening
from gpuscaler.control.records.records import Sink

_LOG = structlog.get_logger("gpuscaler.control")
#: So many pods are named; of the others there is the number.
NAMED = 3


@dataclass(frozen=True, slots=True)
class LogLines(Sink):
    """A sink that logs happenings with their fields."""

    def happened(self, what: Happening, /) -> None:
        fields: dict[str, Any] = {
            "node": what.node,
            "machine": what.machine,
            "order": what.order,
            "decision": what.decision,
            "pods": list(what.pods[:NAMED]),
            "pod_count": len(what.pods),
            **(dict(zip(("pool", "market", "instance_type", "zone"), what.offering, strict=True)) if what.offering else {}),
        }
        if what.late is not None:
            fields["late_seconds"] = round(what.late, 1)
        told = {name: value for name, value in fields.items() if value or name == "late_seconds"}
        # Evictions are pod by pod, and the line of the removal that they belong to has said why.
        log = _LOG.warning if what.kind in TROUBLE else _LOG.debug if what.kind == EVICTED else _LOG.info
        log(what.text, kind=what.kind, at=what.at, **told)
