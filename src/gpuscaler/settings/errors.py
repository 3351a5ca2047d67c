"""What is wrong with a settings file: every problem, each with its place."""

from typing import NamedTuple


class Problem(NamedTuple):
    """One mistake. ``path`` leads to it in the file (``pools[2].offerings[0].price``, "" for the whole file); ``line`` counts from 1.

    ``message`` says what was seen, what was expected and what to do.
    """

    path: str
    line: int | None
    message: str


class SettingsError(ValueError):
    """A settings file that cannot be used. ``problems`` holds all of its mistakes, in the order of the file."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> list[str]:
        lines = []
        for path, line, message in self.problems:
            place = self.source if line is None else f"{self.source}:{line}"
            lines.append(f"{place}: {path}: {message}" if path else f"{place}: {message}")
        return lines
