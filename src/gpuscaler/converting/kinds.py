"""What a document is: an object of Kubernetes, one of a kind that Kubernetes itself does not have, or something else."""

from typing import Any, Final

from gpuscaler.converting.objects import Json, text

#: Kinds of Kubernetes by API group, current and former. Source: its API reference, release 1.36, and its guide on deprecated versions.
_KINDS: Final = {
    "": "Endpoints Binding ComponentStatus ConfigMap Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
    "PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount",
    "admissionregistration.k8s.io": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration "
    "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "apiregistration.k8s.io": "APIService",
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authentication.k8s.io": "SelfSubjectReview TokenRequest TokenReview",
    "authorization.k8s.io": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    "autoscaling": "HorizontalPodAutoscaler Scale",
    "batch": "CronJob Job",
    "certificates.k8s.io": "CertificateSigningRequest ClusterTrustBundle PodCertificateRequest",
    "coordination.k8s.io": "Lease LeaseCandidate",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event",
    "extensions": "DaemonSet Deployment Ingress NetworkPolicy PodSecurityPolicy ReplicaSet",
    "flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
    "internal.apiserver.k8s.io": "StorageVersion",
    "networking.k8s.io": "IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR",
    "node.k8s.io": "RuntimeClass",
    "policy": "Eviction PodDisruptionBudget PodSecurityPolicy",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "resource.k8s.io": "DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate ResourceSlice",
    "scheduling.k8s.io": "PriorityClass Workload",
    "storage.k8s.io": "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass",
    # Kinds of other programs that are known here.
    "cert-manager.io": "Certificate ClusterIssuer Issuer",
    "monitoring.coreos.com": "PodMonitor PrometheusRule ServiceMonitor",
}
_KNOWN: Final = {group: frozenset(kinds.split()) for group, kinds in _KINDS.items()}
#: Groups of objects that a program reads from a file, and no cluster takes, with what the objects are.
_FILES: Final = {
    "eksctl.io": "a file of eksctl",
    "kops.k8s.io": "an object of kOps",
    "kubeadm.k8s.io": "a configuration of kubeadm",
    "kubelet.config.k8s.io": "a configuration of the kubelet",
    "kubescheduler.config.k8s.io": "a configuration of kube-scheduler",
    "kubeproxy.config.k8s.io": "a configuration of kube-proxy",
    "apiserver.config.k8s.io": "a configuration of kube-apiserver",
    "kustomize.config.k8s.io": "a file of kustomize",
    "kind.x-k8s.io": "a configuration of kind",
    "node.eks.aws": "a configuration of nodeadm",
}
_KARPENTER: Final = ("karpenter.sh", "karpenter.k8s.aws", "karpenter.azure.com")
#: Keys of pools files and run files; a file with two of them is one.
_OURS: Final = frozenset({"pools", "cloud", "region", "limits", "aws", "azure", "simulated", "pace"})
#: What such a file is called.
RUN_FILE: Final = "a pools file or run file of gpuscaler"


def group_of(manifest: Json) -> str:
    """The API group of an object; empty for the core group."""
    group, slash, _ = text(manifest.get("apiVersion")).rpartition("/")
    return group if slash else ""


def not_an_object(data: Any, file: str = "") -> str:
    """What ``data`` is instead of an object that a cluster takes; empty if it is one."""
    if not isinstance(data, dict):
        return f"no apiVersion and kind, but {'a list' if isinstance(data, list) else 'text'}"
    name = file.rpartition("/")[2]
    if not data.get("kind") or not data.get("apiVersion"):
        if name.startswith(("kustomization.", "Kustomization")):
            return _FILES["kustomize.config.k8s.io"]
        if name.startswith("Chart.") and "version" in data:
            return "the Chart.yaml of a Helm chart"
        if _is_ours(data) or (isinstance(data.get("config"), dict) and _is_ours(data["config"])):
            return RUN_FILE
        if "kind" in data or "apiVersion" in data:
            return f"no {'apiVersion' if 'kind' in data else 'kind'}"
        return "no apiVersion and kind"
    kind = _FILES.get(group_of(data))
    return f"{kind} ({text(data['kind'])})" if kind else ""


def _is_ours(data: Json) -> bool:
    return len(_OURS & data.keys()) > 1 or isinstance(data.get("pools"), list)


def is_kustomize(other: str) -> bool:
    """Whether :func:`not_an_object` describes a file of kustomize, whose folder is of no use without it."""
    return other.startswith(_FILES["kustomize.config.k8s.io"])


def unknown_kind(manifest: Json) -> str:
    """What to know about an object of a kind that nothing here converts; empty if its kind is known."""
    group, kind = group_of(manifest), text(manifest.get("kind"))
    if kind in _KNOWN.get(group, ()):
        return ""
    shown = f"passed through unchanged: saw {text(manifest.get('apiVersion'))} {kind}"
    if group in _KARPENTER:
        return f"{shown}, an object of Karpenter; how to move from Karpenter: docs/how-to/move-from-karpenter.md"
    if group in _KNOWN:
        return f"{shown}, expected a kind of the API group {group or 'v1'}; correct the kind or the apiVersion"
    return f"{shown}, a kind that Kubernetes itself does not have; check that its API version is still served"
