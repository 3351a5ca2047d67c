"""Builds the real helm, once for each state of its go.sum and each Go release."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpuscaler.embedded.controlplane.golang import FLAGS, STRIPPED, digest, find_go, needed_version

SOURCES = Path(__file__).parent / "helm"
CACHE = Path(__file__).parents[2] / "build" / "charts"
PROGRAM = "helm.sh/helm/v3/cmd/helm"
#: The version of Kubernetes that templates see without a cluster, as in helm's releases; without this flag it would be 1.20.
SEEN = "-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=35"


def helm(say: Callable[[str], None] = print) -> Path:
    """Return the path of helm, which is built first if it is missing: about two minutes on two cores from scratch.

    Raises :exc:`~gpuscaler.embedded.controlplane.golang.BuildError`.
    """
    go = find_go(os.environ, needed=needed_version((SOURCES / "go.mod").read_text()), into=CACHE / "go", say=say)
    version = go.version()
    binary = CACHE / f"helm-{digest(SOURCES, version, SEEN)}"
    if not binary.exists():
        say(f"building helm with {version} (minutes, once) …")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            unfinished = Path(folder) / "helm"
            go.run("build", *FLAGS, "-ldflags", f"{STRIPPED} {SEEN}", "-o", str(unfinished), PROGRAM, cwd=SOURCES)
            unfinished.replace(binary)
        for other in CACHE.glob("helm-*"):
            if other != binary:
                other.unlink()
    return binary
