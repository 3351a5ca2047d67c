"""Annotations of pods that took the place of fields before Kubernetes 1.6, and that nothing reads any more."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE
from gpuscaler.doctor.checks.programs import workloads
from gpuscaler.doctor.commands import patch_template
from gpuscaler.doctor.documents import TEMPLATES, Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix
from gpuscaler.model.quantities import shorten_value

#: The annotations by the field that replaced them, with the type of its value. Source: the change log of Kubernetes 1.6, "Action
#: required": alpha annotations are no longer read.
_FIELDS: Final[Mapping[str, type]] = {"affinity": dict, "tolerations": list}
_PREFIX: Final = "scheduler.alpha.kubernetes.io/"
#: Kinds whose template may be changed in the cluster.
_EDITED: Final = (*CHANGEABLE, "CronJob", "ReplicationController")
_EFFECTS: Final[Mapping[str, str]] = {
    "affinity": "its pods run on any node, also on those that it should keep them from, such as nodes with GPUs or that it removes itself",
    "tolerations": "its pods tolerate none of these taints, and wait for other nodes",
}


def find_alpha_annotations(evidence: Evidence) -> Iterable[Finding]:
    """D40: affinities and tolerations in annotations. A leftover beside the field itself does no harm."""
    for document, template in workloads(evidence):
        for field in _FIELDS:
            if (text := template.annotations.get(f"{_PREFIX}{field}")) and not template.value("spec", field):
                yield _finding(document, field, text)


def _finding(document: Document, field: str, text: str) -> Finding:
    key, path = f"{_PREFIX}{field}", ".".join(TEMPLATES[document.kind])
    value = _parsed(text, _FIELDS[field])
    write = f"write it as {f'{path}.' if path else ''}spec.{field}"
    if value is None:
        fix = Fix(advice=f"{write}, and remove the annotation, whose text is not the JSON of this field")
    elif document.kind in _EDITED:
        patch = {"metadata": {"annotations": {key: None}}, "spec": {field: value}}
        advice = "then delete its pods, which are made again from the template" if document.kind == "ReplicationController" else ""
        fix = Fix((patch_template(document, patch),), advice)
    else:
        fix = Fix(advice=f"{write}, and create it again: its pods cannot be changed")
    return Finding(
        "D40",
        WARNING,
        document.title,
        ".".join(filter(None, (path, f"metadata.annotations[{key}]"))),
        f"{shorten_value(text)}, which nothing reads since Kubernetes 1.6",
        f"spec.{field} with this value",
        _EFFECTS[field],
        fix,
        document.place,
    )


def _parsed(text: str, kind: type) -> Any:
    """The value in the annotation; None if it is no filled ``kind``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, kind) and value else None


CHECKS = (Check("D40", "affinities and tolerations in annotations", (), find_alpha_annotations, reads=WORKLOADS, on_files=True),)
