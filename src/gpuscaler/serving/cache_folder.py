"""The folder in which what is expensive to get and hardly changes is kept between runs."""

import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_of(environ: Mapping[str, str]) -> Path:
    """The folder ``gpuscaler`` of the user's cache. Source: XDG Base Directory Specification, ``XDG_CACHE_HOME``."""
    told = environ.get("XDG_CACHE_HOME", "")
    return (Path(told) if told else Path(environ.get("HOME") or tempfile.gettempdir()) / ".cache") / "gpuscaler"
