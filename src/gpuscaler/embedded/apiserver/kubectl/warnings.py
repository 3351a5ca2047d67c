"""What a client is told beside its answer: that nothing here acts on what it wrote. kubectl prints it as ``Warning:``.

Source of the form: RFC 9111 before it dropped warnings, section 5.5 of RFC 7234, as ``k8s.io/apimachinery/pkg/util/net`` writes it.
"""

from collections.abc import Mapping
from typing import Final

from gpuscaler.embedded.apiserver.kinds import Kind
from gpuscaler.embedded.apiserver.store import Stored

_IDLE: Final[Mapping[str, str]] = {
    "cronjobs": "no controller of this cluster makes Jobs of a CronJob; kubectl create job NAME --from=cronjob/NAME makes one",
    "replicationcontrollers": "no controller of this cluster makes pods of a ReplicationController; use a Deployment",
}


def warning(kind: Kind, created: Stored) -> dict[str, str]:
    """The header for an object that was created; none where everything that it asks for happens."""
    text = _IDLE.get(kind.plural, "")
    if kind.plural == "statefulsets":
        told = (created.read().get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
        if "Delete" in told.values():
            text = "no controller of this cluster deletes the claims of a StatefulSet: those of its volumeClaimTemplates stay"
    return {"warning": f'299 - "{text}"'} if text else {}
