"""Whether a text is a cron schedule as Karpenter's disruption budgets take it: five fields, or @daily and its like.

Source: the standard parser of robfig/cron, which Karpenter uses; on top, 7 is Sunday too, as in most crons.
"""

import re

_SHORTHANDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: (name, least, greatest, names of values in order from the least)
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)


def cron_problem(text: str) -> str | None:
    """What is expected instead, or None where ``text`` is a schedule."""
    if text.startswith("@"):
        return None if text.lower() in _SHORTHANDS else f"five fields or one of {', '.join(_SHORTHANDS)}"
    fields = text.split()
    if len(fields) != 5:
        return f'five fields (minute, hour, day of month, month, day of week) such as "0 9 * * mon-fri", not {len(fields)}'
    for field, (name, least, greatest, names) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            if not _is_part(part, least, greatest, names):
                words = f" or {names[0]}-{names[-1]}" if names else ""
                return f"a {name} of {least}-{greatest}{words}, *, ranges a-b and steps */n (here: {part or 'empty'})"
    return None


def _is_part(part: str, least: int, greatest: int, names: tuple[str, ...]) -> bool:
    span, slash, step = part.partition("/")
    if slash and not (re.fullmatch(r"[0-9]{1,4}", step) and int(step) > 0):
        return False
    if span in ("*", "?"):
        return True
    ends = [_value(end, least, names) for end in span.split("-")]
    if len(ends) > 2 or any(end is None or not least <= end <= greatest for end in ends):
        return False
    return len(ends) == 1 or (ends[0] or 0) <= (ends[1] or 0)


def _value(text: str, least: int, names: tuple[str, ...]) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + least
    return int(text) if re.fullmatch(r"[0-9]{1,4}", text) else None
