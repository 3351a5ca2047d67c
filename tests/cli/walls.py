"""The wall between the product and the laboratory, for processes that must do their work without simulation and embedded cluster."""

from pathlib import Path

#: The environment of a process that cannot import the laboratory.
WALLED = {"PYTHONPATH": str(Path(__file__).parent / "walled")}
