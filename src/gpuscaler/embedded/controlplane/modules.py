"""The Go module of a control plane: one for each Kubernetes release, made from that release's go.mod."""

import json
import re
from pathlib import Path

from gpuscaler.embedded.controlplane.golang import BuildError, Go

#: The module of Kubernetes. It finds its staging modules in its own source tree; on a module proxy they have releases of their own.
KUBERNETES = "k8s.io/kubernetes"
STAGED = re.compile(r"^\t?(?:replace )?(\S+) => \./staging/src/\S+$", re.MULTILINE)
#: Other modules that our program imports, in the releases that Kubernetes itself uses.
BESIDE = ("github.com/spf13/cobra", "go.etcd.io/etcd/server/v3")
#: A release number without a suffix.
RELEASE = re.compile(r"v?1\.(\d+)\.(\d+)")


def release_of(text: str) -> str:
    """``1.35.4`` of ``1.35.4`` or ``v1.35.4``. Raises :exc:`BuildError` for anything else."""
    match = RELEASE.fullmatch(text)
    if match is None:
        raise BuildError(f"Kubernetes {text}: saw no release, expected three numbers such as 1.35.4")
    return f"1.{match[1]}.{match[2]}"


def go_mod_of(go: Go, release: str) -> str:
    """The go.mod of ``release``, without indirect requirements: Go adds those. Raises :exc:`BuildError`."""
    try:
        download = json.loads(go.run("mod", "download", "-json", f"{KUBERNETES}@v{release}"))
    except BuildError as error:
        raise BuildError(
            f"Kubernetes {release}: cannot be fetched; expected a release that exists, and a module proxy that answers.\n{error}"
        ) from error
    return go_mod(Path(download["GoMod"]).read_text(encoding="utf-8"), release)


def go_mod(upstream: str, release: str) -> str:
    """Our go.mod for ``release``, given ``upstream``."""
    staging = f"v0.{release.removeprefix('1.')}"
    match = re.search(r"^go (\S+)$", upstream, re.MULTILINE)
    staged = STAGED.findall(upstream)
    if match is None or not staged:
        raise BuildError(
            f"Kubernetes {release}: saw a go.mod without a go line or without staging modules, expected both; use another release"
        )
    requires = [*((name, _required(upstream, name, release)) for name in BESIDE)]
    requires += [("k8s.io/component-base", staging), (KUBERNETES, f"v{release}")]
    lines = ["module gpuscaler.io/embedded/controlplane", "", f"go {match[1]}", "", "require ("]
    lines += [f"\t{name} {version}" for name, version in requires]
    lines += [")", "", "replace ("]
    lines += [f"\t{name} => {name} {staging}" for name in sorted(staged)]
    return "\n".join([*lines, ")", ""])


def _required(upstream: str, name: str, release: str) -> str:
    match = re.search(rf"^\t(?:require )?{re.escape(name)} (v\S+)", upstream, re.MULTILINE)
    if match is None:
        raise BuildError(f"Kubernetes {release}: saw a go.mod without {name}, expected its release there; use another release")
    return match[1]
