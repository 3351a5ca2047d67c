"""Allowed imports between rooms: the contracts hold, reject what they should, and agree with the documentation."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "explanation" / "rooms.md"


def rooms() -> set[str]:
    return {path.parent.name for path in (ROOT / "src" / "gpuscaler").glob("*/__init__.py")}


def documented() -> dict[str, set[str]]:
    """Return the allowed imports of each room, from the table of the documentation."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", TABLE.read_text(), re.MULTILINE)
    everything = {room for room, _ in rows}
    return {room: everything - {room} if allowed == "everything" else set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


def contracted() -> dict[str, set[str]]:
    """Return the allowed importers of each protected room, from the contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        contract["protected_modules"][0].removeprefix("gpuscaler."): {
            name.removeprefix("gpuscaler.") for name in contract["allowed_importers"]
        }
        for contract in contracts
        if contract["type"] == "protected"
    }


def test_every_room_is_in_the_table_of_the_documentation() -> None:
    assert set(documented()) == rooms()


def test_the_import_contracts_agree_with_the_table() -> None:
    table = documented()
    importers = {room: {other for other, allowed in table.items() if room in allowed} for room in table}

    assert contracted() == importers


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("model/pools.py", "import gpuscaler.planning.plans", "gpuscaler.model.pools -> gpuscaler.planning.plans"),
        ("planning/plans.py", "import gpuscaler.cli", "gpuscaler.planning.plans -> gpuscaler.cli"),
        ("planning/plans.py", "import time", "gpuscaler.planning is not allowed to import time"),
        ("model/pools.py", "import random", "gpuscaler.model is not allowed to import random"),
    ],
)
def test_an_import_that_the_design_does_not_list_is_rejected(tmp_path: Path, module: str, line: str, broken: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "src" / "gpuscaler" / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    lint = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"

    done = subprocess.run([sys.executable, "-c", lint], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert broken in re.sub(r"\s+", " ", done.stdout)
