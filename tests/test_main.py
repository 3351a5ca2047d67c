"""``python -m gpuscaler``."""

import subprocess
import sys

from click.testing import CliRunner

from gpuscaler import __version__
from gpuscaler.cli import main


def test_the_package_can_be_run_without_the_console_script() -> None:
    done = subprocess.run([sys.executable, "-m", "gpuscaler", "--version"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, f"gpuscaler, version {__version__}")


def test_a_misspelt_command_gets_the_closest_one_as_suggestion() -> None:
    done = CliRunner().invoke(main, ["plna", "--help"])

    assert done.exit_code == 2
    assert "No such command 'plna'. Did you mean 'plan'?" in done.output


def test_a_command_that_resembles_none_is_rejected_without_a_suggestion() -> None:
    done = CliRunner().invoke(main, ["xyzzy"])

    assert done.exit_code == 2
    assert done.output.endswith("No such command 'xyzzy'.\n")
