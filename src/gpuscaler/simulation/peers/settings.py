"""The settings of the peers' models, with the defaults of the programs themselves."""

from typing import Literal

from msgspec import Struct

ConsolidationPolicy = Literal["WhenEmptyOrUnderutilized", "WhenEmpty", "Balanced"]


class KarpenterSettings(Struct, frozen=True, gc=False):
    """Karpenter's own settings, in seconds, with its defaults.

    ``batch_idle`` and ``batch_max`` are BATCH_IDLE_DURATION and BATCH_MAX_DURATION; pending pods trigger again every ``retry``.
    A node that a round promised to pods counts as in use for ``nomination`` after it, and as long as pods wait.
    ``consolidate_after``, ``consolidation_policy`` and ``budget`` (a share of the pool's nodes, rounded up) are a NodePool's;
    ``spot_to_spot`` is the feature gate SpotToSpotConsolidation. Nodes are looked at every ``poll`` where anything has changed, else
    every ``recheck``, and removed ``validation`` later. An offering without capacity is left out for ``unavailable``; a NodeClaim has
    ``registration`` to register.
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
