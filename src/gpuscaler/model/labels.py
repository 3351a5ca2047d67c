"""A label set that can be a dictionary key."""

from typing import Any


class LabelSet(dict[str, str]):
    """An immutable, hashable label set. The hash is computed once: one label set is looked up for thousands of pods."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override]  # dict declares __hash__ as None
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a LabelSet does not change; build a new one")

    __setitem__ = __delitem__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (LabelSet, (dict(self),))


NO_LABELS = LabelSet()
