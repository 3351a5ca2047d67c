"""The kinds of the embedded API server, as in its discovery."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final


@dataclass(frozen=True)
class Kind:
    """One resource: its paths, its names in kubectl, and its supported operations.

    ``fields`` are the dotted paths a field selector may name besides ``metadata.name`` and ``metadata.namespace``. ``custom`` kinds are
    CustomResourceDefinitions in a real cluster: those take no strategic merge patch.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    status: bool = False
    scale: bool = False
    fields: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    custom: bool = False

    @cached_property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def qualified(self) -> str:
        """Its name in errors: ``pods``, ``deployments.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @cached_property
    def prefix(self) -> bytes:
        """The first bytes of every stored object of this kind; items of lists go without them, as in Kubernetes."""
        return f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'.encode()

    @cached_property
    def root(self) -> str:
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"


_INVOLVED = tuple(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"))
_POD_FIELDS = (
    "spec.nodeName",
    "status.phase",
    "spec.schedulerName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "status.nominatedNodeName",
    "status.podIP",
)
_ALL = ("all",)

PODS: Final = Kind("", "v1", "pods", "Pod", short=("po",), status=True, fields=_POD_FIELDS, categories=_ALL)
NODES: Final = Kind("", "v1", "nodes", "Node", namespaced=False, short=("no",), status=True, fields=("spec.unschedulable",))
NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", namespaced=False, short=("ns",), status=True, fields=("status.phase",))
EVENTS: Final = Kind("", "v1", "events", "Event", short=("ev",), fields=(*_INVOLVED, "reason", "reportingComponent", "source", "type"))
#: Another view of the same objects; see ``events.py``.
NEW_EVENTS: Final = Kind("events.k8s.io", "v1", "events", "Event", short=("ev",), fields=EVENTS.fields)
BUDGETS: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", short=("pdb",), status=True)
PRIORITY_CLASSES: Final = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short=("pc",))
RUNTIME_CLASSES: Final = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
STORAGE_CLASSES: Final = Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short=("sc",))
CLAIMS: Final = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), status=True)
JOBS: Final = Kind("batch", "v1", "jobs", "Job", status=True, categories=_ALL)
SERVICE_ACCOUNTS: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount", short=("sa",))
SERVICES: Final = Kind("", "v1", "services", "Service", short=("svc",), status=True, categories=_ALL)
#: Written only by users: pods have no addresses here that a Service could lead to.
ENDPOINTS: Final = Kind("", "v1", "endpoints", "Endpoints", short=("ep",))
API_SERVICES: Final = Kind(
    "apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False, status=True, categories=("api-extensions",)
)

KINDS: Final[tuple[Kind, ...]] = (
    PODS,
    NODES,
    NAMESPACES,
    EVENTS,
    Kind("", "v1", "configmaps", "ConfigMap", short=("cm",)),
    Kind("", "v1", "secrets", "Secret", fields=("type",)),
    SERVICE_ACCOUNTS,
    SERVICES,
    ENDPOINTS,
    Kind("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False, short=("pv",), status=True),
    CLAIMS,
    Kind("", "v1", "replicationcontrollers", "ReplicationController", short=("rc",), status=True, scale=True, categories=_ALL),
    NEW_EVENTS,
    Kind("apps", "v1", "deployments", "Deployment", short=("deploy",), status=True, scale=True, categories=_ALL),
    Kind("apps", "v1", "replicasets", "ReplicaSet", short=("rs",), status=True, scale=True, categories=_ALL),
    Kind("apps", "v1", "statefulsets", "StatefulSet", short=("sts",), status=True, scale=True, categories=_ALL),
    Kind("apps", "v1", "daemonsets", "DaemonSet", short=("ds",), status=True, categories=_ALL),
    Kind("apps", "v1", "controllerrevisions", "ControllerRevision"),
    JOBS,
    Kind("batch", "v1", "cronjobs", "CronJob", short=("cj",), status=True, categories=_ALL),
    Kind("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", short=("hpa",), status=True, categories=_ALL),
    BUDGETS,
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    STORAGE_CLASSES,
    Kind("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    Kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False),
    Kind("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
    Kind("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False, status=True),
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False, fields=("spec.nodeName", "spec.driver")),
    Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", status=True),
    Kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False),
    Kind("scheduling.k8s.io", "v1alpha1", "workloads", "Workload"),
    Kind("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", short=("pg",), status=True, custom=True),
    Kind("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", status=True, custom=True),
    Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", status=True, custom=True),
    API_SERVICES,
    # Stored so that an installation can be applied; every client with the token may do everything here.
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    # Stored for the same reason: nothing here has a network, no quota is counted, and no policy validates writes.
    Kind("", "v1", "resourcequotas", "ResourceQuota", short=("quota",), status=True),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short=("netpol",)),
    Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False, status=True),
    Kind("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False),
)
BY_PLURAL: Final[Mapping[tuple[str, str, str], Kind]] = {(kind.group, kind.version, kind.plural): kind for kind in KINDS}
BY_NAME: Final[Mapping[tuple[str, str], Kind]] = {(kind.api_version, kind.kind): kind for kind in KINDS}
