"""Builds the program that asks kube-controller-manager's controller, once for each state of its sources and each Go release."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import CACHE, FLAGS, BuildError, digest, go_version, run, toolchain

SOURCES = Path(__file__).parent / "oracle"

__all__ = ["BuildError", "horizontal"]


def horizontal(say: Callable[[str], None] = print) -> Path:
    """The path of the binary, built first where it is missing: some two minutes on two cores. Raises :exc:`BuildError`."""
    go = toolchain(say)
    version = go_version(go)
    binary = CACHE / f"horizontal-{digest(SOURCES, version)}"
    if not binary.exists():
        say(f"building the HorizontalPodAutoscaler's oracle with {version} (minutes, once) …")
        CACHE.mkdir(parents=True, exist_ok=True)
        # It appears only when it is complete.
        unfinished = CACHE / f"unfinished-horizontal-{os.getpid()}"
        run((str(go), "build", *FLAGS, "-o", str(unfinished), "."), cwd=SOURCES, go=True)
        unfinished.replace(binary)
        for other in CACHE.glob("horizontal-*"):
            if other != binary:
                other.unlink()
    return binary
