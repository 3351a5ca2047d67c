"""What checks look at: objects, the planner's view of the cluster, the account, and the reasons why some of it could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscaler.doctor.documents import Document
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy

#: Sources other than the kinds of Kubernetes objects, which are named by their kind: "DaemonSet".
CLOCKS = "the time of the API server"
CLUSTER, POLICY, ACCOUNT = "the cluster", "the run file", "the cloud account"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at ``now``, in seconds since the epoch.

    ``documents`` are objects by kind. Of the pods of one controller there may be one only, since they are alike. ``cluster`` is the same
    cluster as planning sees it, with all pods; ``policy`` the pools and settings of the run file, and ``unlisted`` the nodes that are known
    to belong to none of these pools, whatever their labels. ``unread`` has the reason why a source could not be read, by its name; what is
    neither there nor unread does not exist.
    """

    now: float
    documents: Mapping[str, tuple[Document, ...]] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    policy: Policy | None = None
    unlisted: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    #: The namespaces that the run file names, which the person who wrote it trusts.
    named: frozenset[str] = frozenset()
    #: The namespace of the gpuscaler that the user means, with its Lease and its status.
    own_namespace: str = "kube-system"

    def of(self, *kinds: str) -> tuple[Document, ...]:
        """The objects of ``kinds``."""
        return tuple(document for kind in kinds for document in self.documents.get(kind, ()))

    def find(self, kind: str, namespace: str, name: str) -> Document | None:
        """The object with this name; ``namespace`` is empty for kinds without one."""
        return next((item for item in self.documents.get(kind, ()) if (item.namespace, item.name) == (namespace, name)), None)
