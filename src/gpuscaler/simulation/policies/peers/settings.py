"""The settings of the peers' models, with the defaults of the programs themselves."""

from typing import Literal

from msgspec import Struct

from gpuscaler.simulation.policies.peers.books import BackoffSettings
from gpuscaler.simulation.policies.peers.expanders import LEAST_WASTE

ConsolidationPolicy = Literal["WhenEmptyOrUnderutilized", "WhenEmpty", "Balanced"]


class KarpenterSettings(Struct, frozen=True, gc=False):
    """Karpenter's own settings, in seconds, with its defaults.

    ``batch_idle`` and ``batch_max`` are BATCH_IDLE_DURATION and BATCH_MAX_DURATION; pending pods trigger again every ``retry``. A node that
    a round promised to pods counts as in use for ``nomination`` after it, and as long as pods wait. ``consolidate_after``,
    ``consolidation_policy`` and ``budget`` (a share of the pool's nodes, rounded up) are a NodePool's; ``spot_to_spot`` is the feature gate
    SpotToSpotConsolidation. Nodes are checked every ``poll`` if anything has changed, else every ``recheck``, and removed ``validation``
    later. An offering without capacity is left out for ``unavailable``; a NodeClaim has ``registration`` to register.
    """

    batch_idle: float = 1.0
    batch_max: float = 10.0
    retry: float = 10.0
    nomination: float = 20.0
    consolidate_after: float = 0.0
    consolidation_policy: ConsolidationPolicy = "WhenEmptyOrUnderutilized"
    spot_to_spot: bool = False
    budget: float = 0.10
    poll: float = 10.0
    recheck: float = 300.0
    validation: float = 15.0
    unavailable: float = 180.0
    registration: float = 900.0


class ClusterAutoscalerSettings(Struct, frozen=True, gc=False):
    """Cluster Autoscaler's own settings, in seconds, with its defaults.

    ``scan_interval``, ``expander``, ``max_node_provision_time``, ``scale_down_unneeded_time``, ``scale_down_delay_after_add``, the two
    utilization thresholds (shares of a node's resources; only GPUs count if it has any), ``max_empty`` (``--max-scale-down-parallelism``),
    ``max_drain`` (``--max-drain-parallelism``), ``unremovable_recheck`` (``--unremovable-node-recheck-timeout``) and
    ``max_bulk_soft_taint_count`` (0: no soft taints) are flags; ``new_pods`` and ``new_gpu_pods`` are constants of its loop.
    ``error_signal`` is the time until the cloud's refusal reaches it (an Auto Scaling group's failed activity), None if it only notices the
    time-out. ``gpu_label`` says whether nodes have the cloud's label for GPUs; without it a node counts as ready before its device plugin
    is.
    """

    scan_interval: float = 10.0
    expander: str = LEAST_WASTE
    max_node_provision_time: float = 900.0
    scale_down_unneeded_time: float = 600.0
    scale_down_delay_after_add: float = 600.0
    scale_down_utilization_threshold: float = 0.5
    scale_down_gpu_utilization_threshold: float = 0.5
    max_empty: int = 10
    max_drain: int = 1
    unremovable_recheck: float = 300.0
    max_bulk_soft_taint_count: int = 10
    max_nodes_per_scaleup: int = 1000
    new_pods: float = 2.0
    new_gpu_pods: float = 30.0
    error_signal: float | None = None
    gpu_label: bool = True
    backoff: BackoffSettings = BackoffSettings()
