"""The description with all defaults filled in, and the node groups that follow from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.azure.templates.node_templates import SPOT_TAINT
from gpuscaler.generating.description.settings import KOPS, ClusterSettings, ControllerSettings, GeneralSettings, TeamSettings
from gpuscaler.model.offerings import SPOT
from gpuscaler.model.taints import Taint

#: Key of the taint of machines with GPUs that kOps sets where a group has none (its populate_instancegroup_spec.go, 1.35).
GPU_TAINT = "nvidia.com/gpu"

#: Key of the taint of pools that only some teams may use; its value is the pool. A key of gpuscaler's own would be read as a state.
POOL_TAINT = "gpu-pool"
#: Namespaces beside that of gpuscaler and those of the teams: of its exporter, and of examples that no team can have.
EXPORTER_NAMESPACE, EXAMPLES_NAMESPACE = "gpu-exporter", "gpu-examples"


#: The ServiceAccount of the controller, as the chart names it for a release with the name gpuscaler.
SERVICE_ACCOUNT = "gpuscaler-controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Machines of one shape, market and zone: what gpuscaler sees as a pool, with nothing in it that a cloud could choose or even out.

    ``zone`` is "" where the cloud has no zones. ``labels`` and ``taints`` are those that a kubelet or the cloud must be given; a cloud's
    own labels are not among them. ``disk_gib`` is the root volume in GiB.
    """

    name: str
    pool: str
    instance_type: InstanceType
    market: str
    zone: str
    min: int
    max: int
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    disk_gib: int

    @property
    def gpus(self) -> int:
        """GPUs of one machine."""
        return self.instance_type.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a person wants, complete. ``groups`` are the GPU groups, ``general_types`` the types without GPUs (never empty)."""

    cloud: str
    tool: str
    cluster: ClusterSettings
    managed: bool
    general: GeneralSettings
    general_types: tuple[str, ...]
    groups: tuple[NodeGroup, ...]
    #: By pool, the names of teams that may use it; empty means all.
    pool_teams: Mapping[str, tuple[str, ...]]
    teams: tuple[TeamSettings, ...]
    controller: ControllerSettings
    prometheus: str
    workloads: tuple[str, ...]
    #: Remarks for the person, such as types that were left out, as whole sentences.
    notes: tuple[str, ...] = ()

    @property
    def team_namespaces(self) -> Mapping[str, str]:
        """The namespace of each team."""
        return {team.name: team.namespace or team.name for team in self.teams}

    def node_taints(self, groups: Iterable[NodeGroup]) -> tuple[Taint, ...]:
        """Return all taints that nodes of the groups have in the long run, each once: also those that the cloud or the tool adds."""
        taints = dict[Taint, None]()
        for group in groups:
            taints |= dict.fromkeys(group.taints)
            if self.cloud == "azure" and group.market == SPOT:
                taints[SPOT_TAINT] = None  # AKS sets it on all nodes of spot pools.
            if self.tool == KOPS and not any(taint.key.startswith(GPU_TAINT) for taint in group.taints):
                taints[Taint(GPU_TAINT)] = None
        return tuple(taints)
