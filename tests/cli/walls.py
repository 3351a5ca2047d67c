"""The wall between product and simulation, for processes that must work without simulation and embedded cluster."""

from pathlib import Path

#: The environment of a process that cannot import the simulation and the embedded cluster.
WALLED = {"PYTHONPATH": str(Path(__file__).parent / "walled")}
