"""Loads a module from replaced source."""

import importlib.abc
import importlib.machinery
import importlib.util
from types import ModuleType


class Replacing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from ``source`` instead of its file."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, f"<mutant of {self._name}>", "exec"), module.__dict__)
