"""Imported by Python if its folder is on PYTHONPATH: the simulation and the embedded cluster cannot be imported then."""

import sys
from collections.abc import Sequence
from types import ModuleType


class Wall:
    """A finder that finds nothing, and rejects packages for simulation and testing."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        if name in ("gpuscaler.simulation", "gpuscaler.embedded"):
            raise ModuleNotFoundError(f"saw an import of {name}, which belongs to the laboratory; expected none")


sys.meta_path.insert(0, Wall)
