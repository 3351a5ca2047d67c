"""The file of rules as it is on disk: read again when it changes, and the rules of before where the new ones cannot be read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gpuscaler.metrics.rules.builtin import builtin
from gpuscaler.metrics.rules.reading import RuleSet, read
from gpuscaler.settings.errors import Problem, SettingsError

_LOG = structlog.get_logger(__name__)
#: Seconds between looks. Kubernetes takes a minute to bring a new ConfigMap into a pod.
LOOK_SECONDS = 5.0


@dataclass(slots=True)
class RulesFile:
    """``rules`` are those of ``path``, without one those that are built in. ``trouble`` says what is wrong with the newest file.

    Raises :class:`SettingsError` where there is no file at first, or none that is YAML. One broken rule is left out, and named in the log.
    """

    path: Path | None
    rules: RuleSet = field(init=False)
    trouble: str = field(default="", init=False)
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        self._text = self._read()
        self.rules = builtin() if self.path is None else self._parsed(self._text)

    async def run(self, use: Callable[[RuleSet], None]) -> None:
        """Look at the file every few seconds, and hand new rules over, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.look():
                use(self.rules)

    def look(self) -> bool:
        """Read the file if it changed; returns whether there are other rules now."""
        try:
            text = self._read()
            if text == self._text:
                self.trouble = ""
                return False
            self.rules = self._parsed(text)
        except SettingsError as error:
            trouble = f"{error}; the rules of before stay"
            if trouble != self.trouble:
                _LOG.warning("rules cannot be read", problem=trouble)
            self.trouble = trouble
            return False
        self._text, self.trouble = text, ""
        return True

    def _read(self) -> str:
        if self.path is None:
            return ""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            saw = getattr(error, "strerror", None) or "bytes that are no UTF-8"
            raise SettingsError(str(self.path), (Problem("", None, f"saw {saw}, expected a readable YAML file of rules"),)) from error

    def _parsed(self, text: str) -> RuleSet:
        rules = read(text, source=str(self.path))
        for problem in rules.problems:
            _LOG.warning("a rule is left out", problem=problem.told(str(self.path)))
        for note in rules.notes:
            _LOG.info("a rule is odd", note=note.told(str(self.path)))
        return rules
