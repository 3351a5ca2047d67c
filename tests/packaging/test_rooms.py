"""Allowed imports between top-level packages: the contracts are kept, reject other imports, and agree with the documentation."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "explanation" / "rooms.md"


def packages() -> set[str]:
    return {path.parent.name for path in (ROOT / "src" / "gpuscaler").glob("*/__init__.py")}


def documented() -> dict[str, set[str]]:
    """Return the allowed imports of each top-level package, from the table of the documentation."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]*) \|$", TABLE.read_text(), re.MULTILINE)
    everything = {package for package, _ in rows}
    return {
        package: everything - {package} if allowed == "everything" else set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows
    }


def contracted() -> dict[str, set[str]]:
    """Return the allowed importers of each protected package, from the contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        contract["protected_modules"][0].removeprefix("gpuscaler."): {
            name.removeprefix("gpuscaler.") for name in contract["allowed_importers"]
        }
        for contract in contracts
        if contract["type"] == "protected"
    }


def test_every_top_level_package_is_in_the_table_of_the_documentation() -> None:
    assert set(documented()) == packages()


def test_the_import_contracts_agree_with_the_documented_table() -> None:
    table = documented()
    importers = {package: {other for other, allowed in table.items() if package in allowed} for package in table}

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
def test_an_import_that_the_documented_table_does_not_list_is_rejected(tmp_path: Path, module: str, line: str, broken: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "src" / "gpuscaler" / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    lint = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"

    done = subprocess.run([sys.executable, "-c", lint], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert broken in re.sub(r"\s+", " ", done.stdout)
