"""Errors in settings files: all problems, each with its place."""

from typing import NamedTuple


class Problem(NamedTuple):
    """A mistake. ``path`` is its place in the file (``pools[2].offerings[0].price``, "" for the whole file); ``line`` counts from 1.

    ``message`` contains what was seen, what was expected and what to do.
    """

    path: str
    line: int | None
    message: str

    def format(self, source: str) -> str:
        """Return the message with its place in the file ``source``."""
        place = source if self.line is None else f"{source}:{self.line}"
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class SettingsError(ValueError):
    """A settings file cannot be used. ``problems`` lists all of its mistakes, in the order of the file."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(problem.format(source) for problem in problems))
