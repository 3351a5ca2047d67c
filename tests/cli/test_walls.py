import os
import subprocess
import sys

import pytest
from tests.cli.walls import WALLED

#: Modules for real clusters: they load no simulation and no embedded cluster, which would make them larger and slower to start.
PRODUCT = (
    "cli.run", "cli.metrics", "cli.exporter", "cli.status", "cli.why", "cli.plan", "cli.pools", "cli.hold", "cli.opening", "cli.validate",
    "control.process.running", "control.process.aws", "control.records.service", "metrics.command.service", "exporter.service",
)  # fmt: skip


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **WALLED}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["simulation.replay", "embedded.serving.cluster"])
def test_modules_that_run_in_production_cannot_import_the_simulation(module: str) -> None:
    done = python(f"import gpuscaler.{module}")

    assert done.returncode == 1
    assert "which belongs to the laboratory" in done.stderr


def test_modules_that_run_in_production_can_be_imported_without_the_simulation() -> None:
    done = python("; ".join(f"import gpuscaler.{module}" for module in PRODUCT))

    assert done.returncode == 0, done.stderr
