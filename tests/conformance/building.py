"""Builds programs that answer as Kubernetes does, once for each version of their sources and each Go release.

A binary is stored under ``build/conformance/`` with a hash of its sources in its name.
"""

import os
from collections.abc import Callable
from pathlib import Path

from gpuscaler.embedded.controlplane.golang import BuildError, digest, find_go, needed_version

SOURCES = Path(__file__).parent / "oracle"
CACHE = Path(__file__).parents[2] / "build" / "conformance"

__all__ = ["BuildError", "built", "oracle"]


def oracle(say: Callable[[str], None] = print) -> Path:
    """The path of the oracle, which is built if it is missing: about four minutes on two cores. Raises :exc:`BuildError`."""
    return built("oracle", SOURCES, say)


def built(name: str, sources: Path, say: Callable[[str], None]) -> Path:
    """The path of the program ``name``. If it is missing, it is built, and builds of other sources are removed.

    Raises :exc:`BuildError`.
    """
    needed = needed_version((sources / "go.mod").read_text(encoding="utf-8"))
    go = find_go(os.environ, needed=needed, into=CACHE / "go", say=say)
    version = go.version()
    binary = CACHE / f"{name}-{digest(sources, version)}"
    if not binary.exists():
        say(f"building {name} with {version} (minutes, once) …")
        go.build(sources, binary)
        for other in CACHE.glob(f"{name}-*"):
            if other != binary:
                other.unlink()
    return binary
