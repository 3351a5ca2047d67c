"""Label sets that can be dictionary keys, and the syntax of labels."""

import re
from typing import Any

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class LabelSet(dict[str, str]):
    """An immutable, hashable label set. The hash is computed once: a label set is looked up for thousands of pods."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override]  # dict declares __hash__ as None
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a LabelSet is immutable; build a new one")

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (LabelSet, (dict(self),))


NO_LABELS = LabelSet()


def is_label_value(text: str) -> bool:
    return text == "" or _LABEL_NAME.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether ``text`` is valid as the key of a label or taint, or as the name of a resource: ``name`` or ``example.com/name``."""
    prefix, slash, name = text.rpartition("/")
    if slash and not (len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return _LABEL_NAME.fullmatch(name) is not None


def label_value_of(name: str, default: str) -> str:
    """``name``, made a valid label value; ``default`` if nothing of it is left."""
    if name and is_label_value(name):
        return name
    cleaned = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)[:63]
    return cleaned.strip("-_.") or default
