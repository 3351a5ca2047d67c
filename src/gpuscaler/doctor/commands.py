"""Commands of kubectl that mend an object, complete and quoted for a shell."""

import json
import shlex
from typing import Any, NamedTuple, Protocol


class Target(Protocol):
    """What a command changes: a document, or only its name."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


class ObjectName(NamedTuple):
    """The name of an object whose document is not at hand; ``namespace`` is empty for kinds without one."""

    kind: str
    namespace: str
    name: str

    @property
    def title(self) -> str:
        """``Kind namespace/name``, as findings name objects."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def kubectl_patch(target: Target, patch: Any, *, strategy: str = "merge") -> str:
    """Patch the object. ``strategy`` is ``merge``, ``strategic`` (lists by name) or ``json`` (a list of operations)."""
    return f"{_kubectl(target, 'patch')} --type {strategy} --patch {shlex.quote(json.dumps(patch, separators=(',', ':')))}"


def kubectl_delete(target: Target) -> str:
    return _kubectl(target, "delete")


def kubectl_label(target: Target, key: str, value: str | None) -> str:
    """Set a label, or remove it if ``value`` is None."""
    return f"{_kubectl(target, 'label')} {shlex.quote(f'{key}-' if value is None else f'{key}={value}')} --overwrite"


def kubectl_annotate(target: Target, key: str, value: str | None) -> str:
    """Set an annotation, or remove it if ``value`` is None."""
    return f"{_kubectl(target, 'annotate')} {shlex.quote(f'{key}-' if value is None else f'{key}={value}')} --overwrite"


def kubectl_taint(node: str, taint: str) -> str:
    """Put ``taint``, ``key=value:Effect``, on the node."""
    return f"kubectl taint node {shlex.quote(node)} {shlex.quote(taint)} --overwrite"


def kubectl_apply(document: str) -> str:
    """Create or replace the object that ``document``, YAML, describes."""
    return f"kubectl apply --filename - <<'EOF'\n{document.rstrip()}\nEOF"


def _kubectl(target: Target, verb: str) -> str:
    # Kinds that several groups have need the group: PodGroup, Workload.
    namespace = f" --namespace {shlex.quote(target.namespace)}" if target.namespace else ""
    return f"kubectl {verb} {target.kind.lower()} {shlex.quote(target.name)}{namespace}"
