"""Holds: purchases or removals that a person has stopped for a while."""

from datetime import UTC, datetime

from msgspec import Struct

BUYING, REMOVING = "buying", "removing"
#: What people read of a name or a reason: it is shown with every pod that waits.
MOST_CHARACTERS = 200
#: Everything that can be held.
ACTIVITIES = (BUYING, REMOVING)


class Hold(Struct, frozen=True, gc=False, omit_defaults=True):
    """One activity is held from ``since`` to ``until``, in seconds since the epoch; without ``until``, until a person ends the hold.

    ``by`` is who asked for it and ``reason`` why, both free text.
    """

    since: float = 0.0
    until: float | None = None
    by: str = ""
    reason: str = ""


class Holds(Struct, frozen=True, gc=False, omit_defaults=True):
    """The holds that were asked for; a hold whose time is over no longer counts."""

    buying: Hold | None = None
    removing: Hold | None = None

    def of(self, activity: str, now: float) -> Hold | None:
        """The hold of one of :data:`ACTIVITIES` that is in force at ``now``."""
        hold = self.buying if activity == BUYING else self.removing
        return hold if hold is not None and (hold.until is None or now < hold.until) else None

    def in_force(self, now: float) -> "Holds":
        """These holds without those that are over."""
        return Holds(self.of(BUYING, now), self.of(REMOVING, now))

    def sentence(self, activity: str, now: float) -> str:
        """What people read about the hold of ``activity`` that is in force at ``now``; empty where there is none."""
        hold = self.of(activity, now)
        if hold is None:
            return ""
        end = "until it is resumed" if hold.until is None else f"until {moment(hold.until)}"
        asked = f" (asked for by {_cut(hold.by)})" if hold.by else ""
        why = f": {_cut(hold.reason)}" if hold.reason else ""
        return f"{activity} is on hold {end}{asked}{why}; `gpuscaler resume --{activity}` ends the hold"

    def sentences(self, now: float) -> tuple[str, ...]:
        """One sentence for each activity that is held at ``now``."""
        return tuple(sentence for activity in ACTIVITIES if (sentence := self.sentence(activity, now)))


def moment(at: float) -> str:
    """A time of day as people read it, in UTC. Times beyond the year 9999 are shown as that year."""
    return f"{datetime.fromtimestamp(max(0.0, min(at, 253_402_300_799.0)), UTC):%Y-%m-%d %H:%M:%S} UTC"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
