"""Holds: purchases or removals that a user has paused."""

from datetime import UTC, datetime

from msgspec import Struct

BUYING, REMOVING = "buying", "removing"
#: Maximum length of a displayed name or reason: it is shown with every pending pod.
MOST_CHARACTERS = 200
#: All activities that can be held.
ACTIVITIES = (BUYING, REMOVING)


class Hold(Struct, frozen=True, gc=False, omit_defaults=True):
    """A hold on an activity from ``since`` to ``until``, in seconds since the epoch; without ``until``, until a user ends it.

    ``by`` is the user who requested it and ``reason`` why, both free text.
    """

    since: float = 0.0
    until: float | None = None
    by: str = ""
    reason: str = ""


class Holds(Struct, frozen=True, gc=False, omit_defaults=True):
    """The requested holds; expired ones no longer count."""

    buying: Hold | None = None
    removing: Hold | None = None

    def of(self, activity: str, now: float) -> Hold | None:
        """Return the hold on one of :data:`ACTIVITIES` that is in force at ``now``."""
        hold = self.buying if activity == BUYING else self.removing
        return hold if hold is not None and (hold.until is None or now < hold.until) else None

    def in_force(self, now: float) -> "Holds":
        """Return these holds without expired ones."""
        return Holds(self.of(BUYING, now), self.of(REMOVING, now))

    def sentence(self, activity: str, now: float, *, namespace: str = "") -> str:
        """Describe the hold on ``activity`` that is in force at ``now``; empty if there is none. ``namespace``, if given, is named."""
        hold = self.of(activity, now)
        if hold is None:
            return ""
        end = "until it is resumed" if hold.until is None else f"until {format_time(hold.until)}"
        requester = f" (requested by {_cut(hold.by)})" if hold.by else ""
        why = f": {_cut(hold.reason)}" if hold.reason else ""
        where, option = (f" in namespace {namespace}", f" --namespace {namespace}") if namespace else ("", "")
        return f"{activity} is on hold{where} {end}{requester}{why}; `gpuscaler resume --{activity}{option}` ends the hold"

    def sentences(self, now: float, *, namespace: str = "") -> tuple[str, ...]:
        """Return a sentence for each activity that is held at ``now``."""
        return tuple(sentence for activity in ACTIVITIES if (sentence := self.sentence(activity, now, namespace=namespace)))


def format_time(at: float) -> str:
    """Format a time in UTC. Times after the year 9999 are shown as that year."""
    return f"{datetime.fromtimestamp(max(0.0, min(at, 253_402_300_799.0)), UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
