"""Spellings of words in replies that AWS may use: many fields are free strings of its API, and its pages do not agree with each other.

``reference`` is the spelling of the API reference. ``guide`` is that of the user guide where it differs: "Launching instances with
synchronous provisioning" shows ``"MarketType": "OnDemand"``. ``random`` spells each word in any case.
"""

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from gpuscaler.embedded.aws.wire.writing import RespelledText

#: Fields whose values are words that callers may compare.
FREE: Final = frozenset(
    {
        "HealthStatus",
        "InstanceLifecycle",
        "Lifecycle",
        "LifecycleState",
        "LifecycleTransition",
        "MarketType",
        "OnDemandAllocationStrategy",
        "PoolState",
        "ProcessName",
        "SpotAllocationStrategy",
        "StatusCode",
    }
)
#: Fields that hold a state as a word, or as a structure with its name.
_STATES: Final = frozenset({"State", "CurrentState", "PreviousState"})
_GUIDE: Final[Mapping[tuple[str, str], str]] = {("MarketType", "on-demand"): "OnDemand", ("MarketType", "spot"): "Spot"}


def respell(reply: Mapping[str, Any], spelling: str, dice: Random) -> Mapping[str, Any]:
    """``reply`` with its free words in that spelling."""
    if spelling == "reference":
        return reply
    return {key: _field(key, value, spelling, dice) for key, value in reply.items()}


def _field(key: str, value: Any, spelling: str, dice: Random) -> Any:
    if isinstance(value, Mapping):
        inside = {"Name": _word("State", value["Name"], spelling, dice)} if key in _STATES and "Name" in value else {}
        return {**respell(value, spelling, dice), **inside}
    if isinstance(value, list):
        return [respell(item, spelling, dice) if isinstance(item, Mapping) else item for item in value]
    return _word(key, value, spelling, dice) if key in FREE | _STATES and isinstance(value, str) else value


def _word(key: str, value: str, spelling: str, dice: Random) -> RespelledText:
    if spelling == "guide":
        return RespelledText(_GUIDE.get((key, value.lower()), value))
    return RespelledText("".join(dice.choice((letter.lower(), letter.upper())) for letter in value))
