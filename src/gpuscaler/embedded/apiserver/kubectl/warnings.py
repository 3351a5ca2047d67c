"""Warnings in answers that nothing here acts on an object. kubectl prints them as ``Warning:``.

Source of the format: RFC 7234, section 5.5 (RFC 9111 dropped warnings), as ``k8s.io/apimachinery/pkg/util/net`` writes it.
"""

from collections.abc import Mapping
from typing import Final

from gpuscaler.embedded.apiserver.kinds import Kind
from gpuscaler.embedded.apiserver.store import Stored

_IDLE: Final[Mapping[str, str]] = {
    "cronjobs": "no controller of this cluster creates Jobs for a CronJob; kubectl create job NAME --from=cronjob/NAME creates one",
    "replicationcontrollers": "no controller of this cluster creates pods for a ReplicationController; use a Deployment",
}


def warning(kind: Kind, created: Stored) -> dict[str, str]:
    """The header for an object that was created; none if the cluster acts on all of it."""
    text = _IDLE.get(kind.plural, "")
    if kind.plural == "statefulsets":
        policy = (created.read().get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
        if "Delete" in policy.values():
            text = "no controller of this cluster deletes the claims of a StatefulSet: those of its volumeClaimTemplates remain"
    return {"warning": f'299 - "{text}"'} if text else {}
