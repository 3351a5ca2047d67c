"""The kinds of the resources that metrics describe."""

from collections.abc import Mapping

_CORE = "/v1"
#: Kind and API version as custom-metrics-apiserver writes it: group, slash, version, so core objects have ``/v1``.
_KINDS: Mapping[str, tuple[str, str]] = {
    "pods": ("Pod", _CORE),
    "nodes": ("Node", _CORE),
    "namespaces": ("Namespace", _CORE),
    "services": ("Service", _CORE),
    "endpoints": ("Endpoints", _CORE),
    "configmaps": ("ConfigMap", _CORE),
    "secrets": ("Secret", _CORE),
    "serviceaccounts": ("ServiceAccount", _CORE),
    "persistentvolumes": ("PersistentVolume", _CORE),
    "persistentvolumeclaims": ("PersistentVolumeClaim", _CORE),
    "replicationcontrollers": ("ReplicationController", _CORE),
    "deployments.apps": ("Deployment", "apps/v1"),
    "replicasets.apps": ("ReplicaSet", "apps/v1"),
    "statefulsets.apps": ("StatefulSet", "apps/v1"),
    "daemonsets.apps": ("DaemonSet", "apps/v1"),
    "jobs.batch": ("Job", "batch/v1"),
    "cronjobs.batch": ("CronJob", "batch/v1"),
    "ingresses.networking.k8s.io": ("Ingress", "networking.k8s.io/v1"),
    "ingresses.extensions": ("Ingress", "extensions/v1beta1"),
    "horizontalpodautoscalers.autoscaling": ("HorizontalPodAutoscaler", "autoscaling/v2"),
    "poddisruptionbudgets.policy": ("PodDisruptionBudget", "policy/v1"),
}


def kind_of(group_resource: str) -> tuple[str, str]:
    """Kind and API version of the objects of a resource. For an unknown resource, its plural is used as the kind.

    The HorizontalPodAutoscaler reads neither.
    """
    if group_resource in _KINDS:
        return _KINDS[group_resource]
    plural, _, group = group_resource.partition(".")
    return plural, f"{group}/v1"
