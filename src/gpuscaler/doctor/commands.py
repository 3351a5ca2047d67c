"""Commands of kubectl that mend an object, complete and quoted for a shell."""

import json
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gpuscaler.doctor.documents import TEMPLATES, Document


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


def restart(target: Target) -> str:
    """Make the pods of a Deployment, StatefulSet or DaemonSet again, one after the other."""
    namespace = f" --namespace {shlex.quote(target.namespace)}" if target.namespace else ""
    return f"kubectl rollout restart {target.kind.lower()} {shlex.quote(target.name)}{namespace}"


def kubectl_taint(node: str, taint: str) -> str:
    """Put ``taint``, ``key=value:Effect``, on the node."""
    return f"kubectl taint node {shlex.quote(node)} {shlex.quote(taint)} --overwrite"


def kubectl_apply(document: str) -> str:
    """Create or replace the object that ``document``, YAML, describes."""
    return f"kubectl apply --filename - <<'EOF'\n{document.rstrip()}\nEOF"


def rewrite_secret(target: Target, key: str, *filters: str, decoded: bool = True) -> str:
    """Pass the value of ``key`` of a Secret, or its base64 if it is not ``decoded``, through ``filters``; no value is shown on the way."""
    index = f'index .data "{key}"'
    value = f"{{{{base64decode ({index})}}}}" if decoded else f"{{{{{index}}}}}"
    read = f"{_kubectl(target, 'get')} --output {shlex.quote(f'go-template={value}')}"
    wrapped = "sed " + shlex.quote(f's/.*/{{"data":{{"{key}":"&"}}}}/')
    return " | ".join((read, *filters, "base64", "tr -d '\\n'", wrapped, _PATCH_FROM_INPUT.format(_kubectl(target, "patch"))))


def swap_in_secret(target: Target, first: str, second: str) -> str:
    """Exchange the values of two keys of a Secret; no value is shown on the way."""
    swapped = ",".join(f'"{key}":"{{{{index .data "{other}"}}}}"' for key, other in ((first, second), (second, first)))
    template = shlex.quote(f'go-template={{"data":{{{swapped}}}}}')
    return f"{_kubectl(target, 'get')} --output {template} | {_PATCH_FROM_INPUT.format(_kubectl(target, 'patch'))}"


_PATCH_FROM_INPUT = "{} --type merge --patch-file /dev/stdin"


def patch_template(target: Document, patch: Mapping[str, Any]) -> str:
    """Patch the pod template of a workload; lists are merged by the name of their items."""
    whole: Any = patch
    for name in reversed(TEMPLATES.get(target.kind, ())):
        whole = {name: whole}
    return kubectl_patch(target, whole, strategy="strategic")


def _kubectl(target: Target, verb: str) -> str:
    # Kinds that several groups have need the group: PodGroup, Workload.
    namespace = f" --namespace {shlex.quote(target.namespace)}" if target.namespace else ""
    return f"kubectl {verb} {target.kind.lower()} {shlex.quote(target.name)}{namespace}"
