"""The API resources in use, and their paths on a server."""

from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API; ``older`` are earlier versions with the same meaning, newest first, for servers without ``version``.

    An ``optional`` resource is missing from many healthy clusters: a custom resource, or one that only newer servers have.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    older: tuple[str, ...] = ()
    optional: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def label(self) -> str:
        """``pods``, ``leases.coordination.k8s.io``: short and unique, for metrics and messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or without a name of the collection; without a namespace, the collection across all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(map(_quoted, parts))

    def at(self, version: str) -> "Resource":
        """The same resource in another version."""
        return replace(self, version=version)


@lru_cache(maxsize=4096)
def _quoted(part: str) -> str:
    return quote(part, safe="")


_DRA = "v1beta2", "v1beta1"

PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CORE_EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)
CSI_STORAGE_CAPACITIES = Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
JOBS = Resource("batch", "v1", "jobs", "Job")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", older=_DRA, optional=True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False, older=_DRA, optional=True)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False, older=_DRA, optional=True)
#: Kubernetes 1.35 declares gangs inside Workloads, 1.36 (v1alpha2) and 1.37 (the later two) as separate objects.
WORKLOADS = Resource("scheduling.k8s.io", "v1alpha1", "workloads", "Workload", optional=True)
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", older=("v1alpha3", "v1alpha2"), optional=True)
COSCHEDULING_POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", optional=True)
OLD_COSCHEDULING_POD_GROUPS = Resource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups", "PodGroup", optional=True)
VOLCANO_POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", optional=True)
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", optional=True)

#: Every kind that ``model.decoding`` reads, in listing order: referenced objects come first, pods last.
WATCHED: tuple[Resource, ...] = (
    NAMESPACES,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    PERSISTENT_VOLUMES,
    PERSISTENT_VOLUME_CLAIMS,
    VOLUME_ATTACHMENTS,
    DEVICE_CLASSES,
    RESOURCE_SLICES,
    RESOURCE_CLAIMS,
    COSCHEDULING_POD_GROUPS,
    OLD_COSCHEDULING_POD_GROUPS,
    VOLCANO_POD_GROUPS,
    JOB_SETS,
    WORKLOADS,
    POD_GROUPS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    DAEMON_SETS,
    JOBS,
    POD_DISRUPTION_BUDGETS,
    NODES,
    PODS,
)
