"""Versions of the Kubernetes API that are not served any more, and what to write instead.

Source: https://kubernetes.io/docs/reference/using-api/deprecation-guide/, read on 2026-11-26; for the alpha
version of flow control kubernetes/kubernetes pull request 120259; Karpenter's upgrade guide for its own.
"""

from typing import Final

from msgspec import Struct


class Removal(Struct, frozen=True, gc=False):
    """``version`` of ``kinds`` was removed with release ``gone``. ``instead`` is the version to write, if the kind still exists.

    ``same`` says that the fields have not changed. ``kinds`` is empty for all kinds of the version.
    """

    version: str
    kinds: tuple[str, ...]
    gone: str
    instead: str
    same: bool = True


_RBAC = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
_WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet")
REMOVALS: Final[tuple[Removal, ...]] = (
    *(Removal(version, _WORKLOADS, "1.16", "apps/v1") for version in ("extensions/v1beta1", "apps/v1beta1", "apps/v1beta2")),
    *(
        Removal(version, ("Ingress",), "1.22", "networking.k8s.io/v1", same=False)
        for version in ("extensions/v1beta1", "networking.k8s.io/v1beta1")
    ),
    Removal("networking.k8s.io/v1beta1", ("IngressClass",), "1.22", "networking.k8s.io/v1"),
    Removal("extensions/v1beta1", ("NetworkPolicy",), "1.16", "networking.k8s.io/v1"),
    Removal("extensions/v1beta1", ("PodSecurityPolicy",), "1.16", ""),
    Removal("policy/v1beta1", ("PodSecurityPolicy",), "1.25", ""),
    Removal("policy/v1beta1", ("PodDisruptionBudget",), "1.25", "policy/v1"),
    *(
        Removal(f"rbac.authorization.k8s.io/{version}", _RBAC, "1.22", "rbac.authorization.k8s.io/v1")
        for version in ("v1alpha1", "v1beta1")
    ),
    Removal("apiregistration.k8s.io/v1beta1", ("APIService",), "1.22", "apiregistration.k8s.io/v1"),
    Removal("apiextensions.k8s.io/v1beta1", ("CustomResourceDefinition",), "1.22", "apiextensions.k8s.io/v1", same=False),
    Removal(
        "admissionregistration.k8s.io/v1beta1",
        ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
        "1.22",
        "admissionregistration.k8s.io/v1",
        same=False,
    ),
    Removal("batch/v1beta1", ("CronJob",), "1.25", "batch/v1"),
    Removal("batch/v2alpha1", ("CronJob",), "1.21", "batch/v1"),
    Removal("autoscaling/v2beta1", ("HorizontalPodAutoscaler",), "1.25", "autoscaling/v2", same=False),
    Removal("autoscaling/v2beta2", ("HorizontalPodAutoscaler",), "1.26", "autoscaling/v2"),
    *(Removal(f"scheduling.k8s.io/{version}", ("PriorityClass",), "1.22", "scheduling.k8s.io/v1") for version in ("v1alpha1", "v1beta1")),
    Removal("coordination.k8s.io/v1beta1", ("Lease",), "1.22", "coordination.k8s.io/v1"),
    Removal("storage.k8s.io/v1beta1", ("StorageClass", "VolumeAttachment", "CSIDriver", "CSINode"), "1.22", "storage.k8s.io/v1"),
    Removal("storage.k8s.io/v1beta1", ("CSIStorageCapacity",), "1.27", "storage.k8s.io/v1"),
    Removal("node.k8s.io/v1beta1", ("RuntimeClass",), "1.25", "node.k8s.io/v1"),
    Removal("certificates.k8s.io/v1beta1", ("CertificateSigningRequest",), "1.22", "certificates.k8s.io/v1", same=False),
    *(
        Removal(f"flowcontrol.apiserver.k8s.io/{version}", (), gone, "flowcontrol.apiserver.k8s.io/v1", same=False)
        for version, gone in (("v1alpha1", "1.29"), ("v1beta1", "1.26"), ("v1beta2", "1.29"), ("v1beta3", "1.32"))
    ),
)


def removal_of(version: str, kind: str) -> Removal | None:
    """Why ``version`` of ``kind`` is not served; None if it is, or if nothing is known."""
    return next((item for item in REMOVALS if item.version == version and (not item.kinds or kind in item.kinds)), None)
