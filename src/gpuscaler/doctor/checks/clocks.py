"""Clocks that differ: those of this machine, of the servers that it asks, and of nodes.

Times of servers are documents of the kind :data:`PROBED_CLOCK`: ``{metadata: {name}, seconds, uncertainty, at, error}``. The name is that
of the server ("the API server"). ``seconds`` is by how much its clock is ahead of the local one, ``uncertainty`` how exactly that is known,
and ``at`` the local time of the reading; ``error`` is why the time is not known.
"""

from collections.abc import Iterator
from typing import Final

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import CLOCKS, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked
from gpuscaler.model.wire import UnreadableError, parse_timestamp

PROBED_CLOCK: Final = "probe/Clock"
API_SERVER: Final = "the API server"
#: Differences in seconds that are reported, and that make clouds refuse requests: AWS accepts signatures of five minutes.
_NOTABLE, _REFUSED = 30.0, 300.0
#: A kubelet renews its Lease every 10 s; the node is not ready any more when it did not for this many seconds.
_LEASE = 50.0


def find_skew(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D48: the clock of a server, or of a node, differs from the others by more than 30 seconds."""
    clocks = evidence.of(PROBED_CLOCK)
    for clock in clocks:
        ahead, uncertainty = clock.number("seconds"), clock.number("uncertainty") or 0.0
        if ahead is None:
            yield Unchecked("D48", f"the clock of {clock.name}", clock.text("error") or "its answer has no date")
        elif abs(ahead) - uncertainty > _NOTABLE:
            yield _skewed(clock, ahead)
    yield from _nodes(evidence, next((clock for clock in clocks if clock.name == API_SERVER), None))


def _skewed(clock: Document, ahead: float) -> Finding:
    way = "behind" if ahead > 0 else "ahead of"
    return Finding(
        "D48",
        CRITICAL if abs(ahead) >= _REFUSED else WARNING,
        f"the clock of {clock.name}",
        "Date",
        f"the clock of this machine is {_rounded(abs(ahead))} {way} it",
        f"at most {_NOTABLE:g} s",
        "clouds refuse requests that are signed five minutes off, tokens and certificates count as expired, and leaders overlap",
        Fix(advice="find out which of the two clocks is wrong, and start NTP there"),
    )


def _nodes(evidence: Evidence, clock: Document | None) -> Iterator[Finding]:
    """Nodes whose kubelets write other times into their Leases than the API server has."""
    offset, at = (clock.number("seconds"), clock.number("at")) if clock is not None else (None, None)
    if offset is None or at is None:
        return
    ready = {
        node.name
        for node in evidence.of("Node")
        if any(condition.text("type") == "Ready" and condition.text("status") == "True" for condition in node.parts("status", "conditions"))
    }
    # Leases were read at some time between the start of the reading and the answer that has the server's time.
    earliest, latest = min(evidence.now, at) + offset, at + offset
    for lease in evidence.of("Lease"):
        if lease.namespace != "kube-node-lease" or lease.name not in ready:
            continue
        try:
            renewed = parse_timestamp(lease.text("spec", "renewTime"), "renewTime")
        except UnreadableError:
            continue
        if renewed - latest > _NOTABLE:
            yield _node(lease, f"at least {_rounded(renewed - latest)} ahead of")
        elif renewed and earliest - renewed - _LEASE > _NOTABLE:
            yield _node(lease, f"at least {_rounded(earliest - renewed - _LEASE)} behind")


def _node(lease: Document, text: str) -> Finding:
    return Finding(
        "D48",
        WARNING,
        f"Node {lease.name}",
        "the clock (spec.renewTime of its Lease)",
        f"{text} that of the API server",
        f"at most {_NOTABLE:g} s",
        "its pods sign requests with the wrong time, and logs and metrics of the node are misplaced",
        Fix(advice="start NTP on the node, or replace it"),
    )


def _rounded(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} minutes"


CHECKS = (Check("D48", "clocks that differ", (CLOCKS,), find_skew, reads=("Node", "Lease")),)
