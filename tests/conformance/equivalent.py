"""Mutants that nothing can catch, because they decide the same: (module, function, kind of change, source that is changed), and why."""

from collections.abc import Mapping

EQUIVALENT: Mapping[tuple[str, str, str, str], str] = {}
