"""Conditions of a simulated account that can be changed by name, whatever its cloud."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

#: Conditions of the machines themselves, which are fixed when an account is made.
_FIXED: Final = frozenset({"machines", "boot"})

_Conditions = TypeVar("_Conditions", bound=Struct)


def values_of(conditions: Struct) -> dict[str, Any]:
    """The conditions that can be changed, by name."""
    return {name: value for name, value in msgspec.structs.asdict(conditions).items() if name not in _FIXED}


def with_changes(before: _Conditions, changes: Mapping[str, Any]) -> _Conditions:
    """``before`` with the changes in ``changes``, by name. Raises ValueError for an unknown name or value."""
    kept = values_of(before)
    if unknown := sorted(changes.keys() - kept.keys()):
        raise ValueError(f"saw {unknown[0]!r}, expected one of {', '.join(kept)}")
    try:
        checked = msgspec.convert({**kept, **changes}, _changeable(type(before)), strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    return msgspec.structs.replace(before, **msgspec.structs.asdict(checked))


def check_market(market: str, markets: Collection[str]) -> None:
    """Raise ValueError unless a limit or trouble is for one of ``markets``, or with "" for each of them."""
    if market not in ("", *markets):
        raise ValueError(f"saw the market {market!r}, expected one of {', '.join(markets)}; leave market out for each of them")


@cache
def _changeable(conditions: type[Struct]) -> type[Struct]:
    """A type with the fields of ``conditions`` that can be changed."""
    fields = [field for field in msgspec.structs.fields(conditions) if field.name not in _FIXED]
    return msgspec.defstruct("Changeable", [(field.name, field.type, field.default) for field in fields], frozen=True)
