"""Cron schedules that open a window, as in Karpenter's disruption budgets. All times are in UTC.

The dialect is that of github.com/robfig/cron (ParseStandard), which Karpenter uses: five fields, names of months and days, ``@daily`` and
similar words, and a day that matches either the day of the month or the day of the week if both are restricted. In addition, 7 is Sunday.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DESCRIPTORS: Mapping[str, str] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS = {name: number for number, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), start=1)}
WEEKDAYS = {name: number for number, name in enumerate("sun mon tue wed thu fri sat".split())}
#: The longest gap between two hits of a line: 29 February across a century that is not a leap year.
LONGEST_GAP = 8 * 366 + 1


@dataclass(frozen=True)
class _Field:
    """A field of a cron line. ``last`` is the greatest accepted number, ``end`` the end of a star or an open range."""

    name: str
    first: int
    last: int
    end: int
    words: Mapping[str, int]


_FIELDS = (
    _Field("minute", 0, 59, 59, {}),
    _Field("hour", 0, 23, 23, {}),
    _Field("day of month", 1, 31, 31, {}),
    _Field("month", 1, 12, 12, MONTHS),
    _Field("day of week", 0, 7, 6, WEEKDAYS),
)


@dataclass(frozen=True)
class Schedule:
    """A parsed cron line: the values that each field admits. ``any_day`` and ``any_weekday`` distinguish a star from a full list."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def admits(self, day: datetime) -> bool:
        """Whether this schedule has hits on the date of ``day``."""
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day and by_weekday if self.any_day or self.any_weekday else by_day or by_weekday

    def last_hit(self, now: float, *, not_before: float) -> float | None:
        """Return the latest hit at or before ``now`` and after ``not_before`` (seconds since the epoch), or None."""
        moment = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
        midnight = moment.replace(hour=0, minute=0)
        for back in range(LONGEST_GAP + 1):
            day = midnight - timedelta(days=back)
            if day.timestamp() + 86400 <= not_before:
                return None
            if not self.admits(day):
                continue
            latest = (moment.hour, moment.minute) if back == 0 else (23, 59)
            hit = max(((h, m) for h in self.hours for m in self.minutes if (h, m) <= latest), default=None)
            if hit is not None:
                at = day.replace(hour=hit[0], minute=hit[1]).timestamp()
                return at if at > not_before else None
        return None

    def open_at(self, now: float, duration: float) -> bool:
        """Whether a window of ``duration`` seconds after some hit is open at ``now``. Its end is exclusive."""
        return self.last_hit(now, not_before=now - duration) is not None


def parse_schedule(text: str) -> Schedule:
    """Parse ``text``. Raises ValueError with what was expected and what was seen."""
    line = DESCRIPTORS.get(text.strip().lower(), text.strip())
    parts = line.split()
    if len(parts) != len(_FIELDS) or line.startswith("@"):
        descriptors = ", ".join(DESCRIPTORS)
        raise ValueError(f"five fields (minute hour day month weekday) or one of {descriptors}, not {len(parts)}")
    values = [_values(part, field) for part, field in zip(parts, _FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = values
    return Schedule(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(day % 7 for day in weekdays),
        any_day=_is_star(parts[2]),
        any_weekday=_is_star(parts[4]),
    )


def _is_star(part: str) -> bool:
    """Whether a part is a star; a star with a step restricts the field, so it does not count."""
    return any(item in ("*", "?", "*/1", "?/1") for item in part.split(","))


def _values(part: str, field: _Field) -> set[int]:
    values: set[int] = set()
    for item in part.split(","):
        span, slash, step_text = item.partition("/")
        low_text, dash, high_text = span.partition("-")
        if low_text in ("*", "?") and not dash:
            low, high = field.first, field.end
        else:
            low = _number(low_text, field)
            # A single number with a step runs to the end of the field, as in robfig/cron.
            high = _number(high_text, field) if dash else (field.end if slash else low)
        step = int(step_text) if step_text.isascii() and step_text.isdigit() else 0
        if (slash and step < 1) or low > high:
            raise ValueError(f"a {field.name} as a number, a-b, a-b/step or */step, not {item!r}")
        values.update(range(low, high + 1, step if slash else 1))
    return values


def _number(word: str, field: _Field) -> int:
    number = field.words.get(word.lower())
    if number is None and word.isascii() and word.isdigit():
        number = int(word)
    if number is None or not field.first <= number <= field.last:
        words = f" or {next(iter(field.words))}-{list(field.words)[-1]}" if field.words else ""
        raise ValueError(f"a {field.name} of {field.first}-{field.last}{words}, not {word!r}")
    return number
