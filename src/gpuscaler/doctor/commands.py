"""Commands of kubectl that mend an object, complete and quoted for a shell."""

import json
import shlex
from typing import Any

from gpuscaler.doctor.documents import Document


def kubectl_patch(document: Document, patch: Any, *, strategy: str = "merge") -> str:
    """Patch the object. ``strategy`` is ``merge``, ``strategic`` (lists by name) or ``json`` (a list of operations)."""
    return f"{_kubectl(document, 'patch')} --type {strategy} --patch {shlex.quote(json.dumps(patch, separators=(',', ':')))}"


def kubectl_delete(document: Document) -> str:
    return _kubectl(document, "delete")


def kubectl_label(document: Document, key: str, value: str | None) -> str:
    """Set a label, or remove it if ``value`` is None."""
    return f"{_kubectl(document, 'label')} {shlex.quote(f'{key}-' if value is None else f'{key}={value}')} --overwrite"


def kubectl_annotate(document: Document, key: str, value: str | None) -> str:
    """Set an annotation, or remove it if ``value`` is None."""
    return f"{_kubectl(document, 'annotate')} {shlex.quote(f'{key}-' if value is None else f'{key}={value}')} --overwrite"


def _kubectl(document: Document, verb: str) -> str:
    # Kinds that several groups have need the group: PodGroup, Workload.
    namespace = f" --namespace {shlex.quote(document.namespace)}" if document.namespace else ""
    return f"kubectl {verb} {document.kind.lower()} {shlex.quote(document.name)}{namespace}"
