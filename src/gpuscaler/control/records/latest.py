"""What the controller has last seen and decided: the one place that status, metrics, pages and answers read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscaler.control.pools import FoundPools
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.letting_go import LetGo
from gpuscaler.planning.memory import Memory
from gpuscaler.planning.plans import BlockedNode, Plan
from gpuscaler.planning.roll import Unpooled
from gpuscaler.planning.state.boots import Forecast


@dataclass(slots=True)
class Latest:
    """Times are seconds since the epoch, 0 before the first. ``forecasts`` are those that were made when machines were granted.

    ``found`` knows the pools of the account, where there is one. ``unpooled`` are machines of pools that nobody here knows, ``unlisted``
    nodes that belong to no pool, since the cloud's list does not have their machines. ``let_go`` are pools that are ours no longer.
    ``weighed`` is why nodes stay, as the last plan has found that asked whether their pods fit elsewhere, at ``weighed_at``.
    """

    cluster: Cluster = field(default_factory=Cluster)
    memory: Memory = field(default_factory=Memory)
    plan: Plan = field(default_factory=Plan)
    policy: Policy | None = None
    looked_at: float = 0.0
    planned_at: float = 0.0
    decision: str = ""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    found: FoundPools | None = None
    unpooled: tuple[Unpooled, ...] = ()
    unlisted: frozenset[str] = frozenset()
    let_go: tuple[LetGo, ...] = ()
    weighed: Mapping[str, BlockedNode] = field(default_factory=dict)
    weighed_at: float = 0.0
