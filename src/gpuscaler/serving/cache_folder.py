"""The folder that caches expensive, rarely changing data between runs."""

import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_of(environ: Mapping[str, str]) -> Path:
    """Return the folder ``gpuscaler`` in the user's cache. Source: XDG Base Directory Specification, ``XDG_CACHE_HOME``."""
    folder = environ.get("XDG_CACHE_HOME", "")
    return (Path(folder) if folder else Path(environ.get("HOME") or tempfile.gettempdir()) / ".cache") / "gpuscaler"
