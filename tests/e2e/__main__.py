"""``python -m tests.e2e VERSION``: compile the control plane that the tests run on, unless it is already compiled."""

import os
import sys

from gpuscaler.embedded.controlplane.building import Progress, programs

print(programs(sys.argv[1], environ=os.environ, progress=Progress(print, lambda count: print(f"\r{count} packages", end="", flush=True))))
