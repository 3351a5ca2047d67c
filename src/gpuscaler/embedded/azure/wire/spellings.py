"""Spellings of resource ids: Azure compares them without case, and does not spell them alike everywhere."""

import re
from random import Random
from typing import Any, Final

from gpuscaler.model.azure_names import fold_id

#: Keys whose values are resource ids.
_IDS: Final = frozenset({"id", "nodeResourceGroup", "resourceId"})
_GROUP: Final = re.compile(r"(/resourceGroups/)([^/]+)")


def respell(value: Any, manner: str, dice: Random) -> Any:
    """A JSON value with ids in another spelling.

    It is ``kept``, ``group`` (resource groups in capitals, as in lists of machines), ``lower``, or ``random`` (any of these for each id).
    """
    if manner == "kept":
        return value
    if isinstance(value, list):
        return [respell(item, manner, dice) for item in value]
    if isinstance(value, dict):
        return {
            key: _spell(item, manner, dice) if key in _IDS and isinstance(item, str) else respell(item, manner, dice)
            for key, item in value.items()
        }
    return value


def _spell(text: str, manner: str, dice: Random) -> str:
    if manner == "random":
        manner = dice.choice(("kept", "group", "lower"))
    if manner == "lower":
        return fold_id(text)
    if manner == "group":
        return _GROUP.sub(lambda match: match[1] + match[2].upper(), text)
    return text
