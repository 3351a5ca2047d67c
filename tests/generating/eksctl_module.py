"""eksctl's own JSON schema of its files, from its Go module. It is fetched once, into Go's module cache."""

import json
import os
from pathlib import Path
from typing import Any, Final

from gpuscaler.embedded.controlplane.golang import find_go

#: The newest version that the Go module proxy serves, under the module's own name (2026-11-26), and its hash.
MODULE: Final = "github.com/weaveworks/eksctl@v0.215.0"
SUM: Final = "h1:oCPoubT3UsW4Y2J43Y4dNRvXHEIsgg03Y3e6wv6bKG4="
SCHEMA: Final = "pkg/apis/eksctl.io/v1alpha5/assets/schema.json"
_CACHE: Final = Path(__file__).parents[2] / "build" / "conformance"


def schema() -> dict[str, Any]:
    """Return the schema. Raises :exc:`~gpuscaler.embedded.controlplane.golang.BuildError` if the module cannot be fetched."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    go = find_go(os.environ, needed=(1, 21), into=_CACHE / "go", say=print)
    module = json.loads(go.run("mod", "download", "-json", MODULE, cwd=_CACHE))
    assert module["Sum"] == SUM
    loaded: dict[str, Any] = json.loads((Path(module["Dir"]) / SCHEMA).read_text())
    return loaded
