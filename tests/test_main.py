"""``python -m gpuscaler``."""

import subprocess
import sys

from gpuscaler import __version__


def test_the_package_can_be_run_without_the_console_script() -> None:
    done = subprocess.run([sys.executable, "-m", "gpuscaler", "--version"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, f"gpuscaler, version {__version__}")
