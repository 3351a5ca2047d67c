"""Builds the real kubectl, once for each state of its sources and each Go release, as the other programs of the conformance tests."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.conformance.building import CACHE, FLAGS, digest, go_version, run, toolchain

SOURCES = Path(__file__).parent / "kubectl"


def kubectl(say: Callable[[str], None] = print) -> Path:
    """The path of kubectl, built first where it is missing: some four minutes on two cores from nothing.

    Raises :exc:`tests.conformance.building.BuildError`.
    """
    go = toolchain(say)
    version = go_version(go)
    binary = CACHE / f"kubectl-{digest(SOURCES, version)}"
    if not binary.exists():
        say(f"building kubectl with {version} (minutes, once) …")
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = binary.with_name(f"unfinished-kubectl-{os.getpid()}")
        run((str(go), "build", *FLAGS, "-o", str(unfinished), "."), cwd=SOURCES, go=True)
        unfinished.replace(binary)
        for other in CACHE.glob("kubectl-*"):
            if other != binary:
                other.unlink()
    return binary
