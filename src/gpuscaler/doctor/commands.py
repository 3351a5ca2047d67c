"""Commands of kubectl that mend an object, complete and quoted for a shell.

Names come from objects and files that anyone may have written. A command about a name that kubectl could take for something else, such as
an option, is not made: the functions return an empty text instead, which :class:`gpuscaler.doctor.findings.Fix` drops.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from gpuscaler.doctor.documents import TEMPLATES, Document

#: Kinds that kubectl takes as one kind: not ``pod,secret``.
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9.]*")


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


def is_sound(*names: str) -> bool:
    """Whether kubectl and a reader take each of ``names`` for the name that it is: no option, no other kind (``/``), and no second line."""
    return all(not name.startswith("-") and "/" not in name and name.isprintable() for name in names)


def kubectl_patch(target: Target, patch: Any, *, strategy: str = "merge") -> str:
    """Patch the object. ``strategy`` is ``merge``, ``strategic`` (lists by name) or ``json`` (a list of operations)."""
    return _kubectl(target, "patch", "--type", strategy, "--patch", json.dumps(patch, separators=(",", ":")))


def kubectl_delete(target: Target) -> str:
    return _kubectl(target, "delete")


def kubectl_label(target: Target, key: str, value: str | None) -> str:
    """Set a label, or remove it if ``value`` is None."""
    return _with_key(target, "label", key, value)


def kubectl_annotate(target: Target, key: str, value: str | None) -> str:
    """Set an annotation, or remove it if ``value`` is None."""
    return _with_key(target, "annotate", key, value)


def _with_key(target: Target, verb: str, key: str, value: str | None) -> str:
    return "" if key.startswith("-") else _kubectl(target, verb, f"{key}-" if value is None else f"{key}={value}", "--overwrite")


def restart(target: Target) -> str:
    """Make the pods of a Deployment, StatefulSet or DaemonSet again, one after the other."""
    return _kubectl(target, "rollout restart")


def kubectl_taint(node: str, taint: str) -> str:
    """Put ``taint``, ``key=value:Effect``, on the node."""
    return "" if taint.startswith("-") else _kubectl(ObjectName("Node", "", node), "taint", taint, "--overwrite")


def kubectl_apply(document: str) -> str:
    """Create or replace the object that ``document``, YAML, describes."""
    # The line EOF would end the text early, and leave the rest to the shell.
    return "" if "EOF" in document.splitlines() else f"kubectl apply --filename - <<'EOF'\n{document.rstrip()}\nEOF"


def rewrite_secret(target: Target, key: str, *filters: str, decoded: bool = True) -> str:
    """Pass the value of ``key`` of a Secret, or its base64 if it is not ``decoded``, through ``filters``; no value is shown on the way."""
    index = f'index .data "{key}"'
    value = f"{{{{base64decode ({index})}}}}" if decoded else f"{{{{{index}}}}}"
    wrapped = "sed " + shlex.quote(f's/.*/{{"data":{{"{key}":"&"}}}}/')
    return _piped(target, value, (*filters, "base64", "tr -d '\\n'", wrapped), (key,))


def swap_in_secret(target: Target, first: str, second: str) -> str:
    """Exchange the values of two keys of a Secret; no value is shown on the way."""
    swapped = ",".join(f'"{key}":"{{{{index .data "{other}"}}}}"' for key, other in ((first, second), (second, first)))
    return _piped(target, f'{{"data":{{{swapped}}}}}', (), (first, second))


def _piped(target: Target, template: str, filters: tuple[str, ...], keys: tuple[str, ...]) -> str:
    """Read the Secret with ``template``, pass that through ``filters``, and patch the Secret with it."""
    read = _kubectl(target, "get", "--output", f"go-template={template}")
    written = _kubectl(target, "patch", "--type", "merge", "--patch-file", "/dev/stdin")
    return " | ".join((read, *filters, written)) if read and all(map(_SECRET_KEY.fullmatch, keys)) else ""


#: The keys that the API allows in Secrets: they are put into templates and programs of sed.
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")


def patch_template(target: Document, patch: Mapping[str, Any]) -> str:
    """Patch the pod template of a workload; lists are merged by the name of their items."""
    whole: Any = patch
    for name in reversed(TEMPLATES.get(target.kind, ())):
        whole = {name: whole}
    return kubectl_patch(target, whole, strategy="strategic")


def _kubectl(target: Target, verb: str, *words: str) -> str:
    """The command with ``words`` quoted; empty if the object has a name or a kind that no object has."""
    # Kinds that several groups have need the group: PodGroup, Workload.
    if not is_sound(target.name, target.namespace) or not _KIND.fullmatch(target.kind):
        return ""
    named = (target.kind.lower(), target.name)
    space = ("--namespace", target.namespace) if target.namespace else ()
    options = (*words, *space) if verb == "taint" else (*space, *words)
    return f"kubectl {verb} {shlex.join((*named, *options))}"
