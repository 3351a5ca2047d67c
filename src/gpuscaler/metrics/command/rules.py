"""The file of rules: read again when it changes; if the new file cannot be read, the previous rules stay in use."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gpuscaler.metrics.rules.builtin import builtin_rules
from gpuscaler.metrics.rules.reading import RuleSet, read_rules
from gpuscaler.model.reading.errors import Problem, SettingsError

_LOG = structlog.get_logger(__name__)
#: Seconds between checks of the file. Kubernetes takes a minute to update a ConfigMap in a pod.
CHECK_SECONDS = 5.0


@dataclass(slots=True)
class RulesFile:
    """The ``rules`` in ``path``, or the built-in ones without a path. ``trouble`` is the problem of the newest file.

    Raises :class:`SettingsError` if at the start the file is missing, is not YAML or is not a file of rules. A single invalid rule is left
    out and logged.
    """

    path: Path | None
    rules: RuleSet = field(init=False)
    trouble: str = field(default="", init=False)
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        self._text = self._read()
        self.rules = builtin_rules() if self.path is None else self._parse(self._text)

    async def run(self, use: Callable[[RuleSet], None]) -> None:
        """Check the file every few seconds and pass on new rules, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self.reload():
                use(self.rules)

    def reload(self) -> bool:
        """Read the file if it changed; return whether the rules changed."""
        try:
            text = self._read()
            if text == self._text:
                self.trouble = ""
                return False
            self.rules = self._parse(text)
        except SettingsError as error:
            trouble = f"{error}; the previous rules stay in use"
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
            saw = getattr(error, "strerror", None) or "bytes that are not UTF-8"
            raise SettingsError(str(self.path), (Problem("", None, f"saw {saw}, expected a readable YAML file of rules"),)) from error

    def _parse(self, text: str) -> RuleSet:
        rules = read_rules(text, source=str(self.path))
        for problem in rules.problems:
            _LOG.warning("rule left out", problem=problem.format(str(self.path)))
        for note in rules.notes:
            _LOG.info("unusual rule", note=note.format(str(self.path)))
        return rules
