"""``python -m tests.e2e VERSION``: compile the control plane that the tests run on, unless it is already compiled."""

import sys

from gpuscaler.cli.control_plane import compile_programs

print(compile_programs(sys.argv[1]))
