"""What the scripts that compare a user's account with our endpoint share: differences between two answers, and the report."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Report:
    """Differences by step, resources ``left`` in the account, and the number of steps."""

    differences: dict[str, list[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    steps: int = 0

    def add(self, name: str, theirs: Any, ours: Any, tell: Callable[[str], None]) -> None:
        """Compare both answers to the step ``name``, and ``tell`` what differs."""
        self.steps += 1
        differing = list(differences(theirs, ours))
        tell(f"{'same     ' if not differing else 'DIFFERENT'} {name}")
        for difference in differing:
            tell(f"    {difference}")
        if differing:
            self.differences[name] = differing

    def add_left(self, left: list[str], tell: Callable[[str], None]) -> None:
        """Report resources that the script could not remove."""
        self.left = left
        for what in left:
            tell(f"STILL THERE: {what}")

    def summary(self) -> str:
        count = sum(map(len, self.differences.values()))
        return f"{self.steps} steps, {count} differences in {len(self.differences)} of them, {len(self.left)} things left"


def differences(account: Any, emulated: Any, path: str = "") -> Iterator[str]:
    """A sentence for each place in which ``emulated`` differs from ``account``."""
    if isinstance(account, Mapping) and isinstance(emulated, Mapping):
        for key in sorted({*account, *emulated}):
            place = f"{path}.{key}" if path else str(key)
            if key not in emulated:
                yield f"{place}: only the account has it: {account[key]!r}"
            elif key not in account:
                yield f"{place}: only ours has it: {emulated[key]!r}"
            else:
                yield from differences(account[key], emulated[key], place)
    elif isinstance(account, list) and isinstance(emulated, list) and len(account) == len(emulated):
        for number, (left, right) in enumerate(zip(account, emulated, strict=True)):
            yield from differences(left, right, f"{path}[{number}]")
    elif account != emulated:
        yield f"{path}: the account says {account!r}, ours says {emulated!r}"
