"""A fake Go release whose behaviour tests define."""

import stat
import sys
from pathlib import Path

VERSION = "if sys.argv[1] == 'version': print('go version go{} linux/amd64'); sys.exit()"
COMPILE = "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('binary')"


def fake_go(folder: Path, script: str) -> Path:
    """Write a program ``go`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "go"
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def working_go(folder: Path, *lines: str, version: str = "1.26.8") -> Path:
    """Write one that knows its version, and compiles unless ``lines`` end it before."""
    return fake_go(folder, "\n".join((VERSION.format(version), *lines, COMPILE)))
