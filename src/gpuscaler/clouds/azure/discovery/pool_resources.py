"""What a pool is made of: an agent pool of AKS and its scale set, or one of both."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.clouds.azure.documents.resources import ON_DEMAND, SPOT, AgentPool, Cluster, ScaleSet
from gpuscaler.model.azure_names import fold_id


class PoolResources(Struct, frozen=True):
    """The resources of a pool: an agent pool with its scale set if it has one, or a scale set that AKS does not manage."""

    scale_set: ScaleSet | None = None
    agent_pool: AgentPool | None = None
    cluster: Cluster | None = None

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes of new machines."""
        if self.agent_pool is not None and self.agent_pool.profiles:
            return tuple(profile.size for profile in self.agent_pool.profiles)
        if self.scale_set is not None:
            return self.scale_set.sizes or ((self.scale_set.size,) if self.scale_set.size else ())
        return (self.agent_pool.size,) if self.agent_pool is not None and self.agent_pool.size else ()

    @property
    def all_sizes(self) -> tuple[str, ...]:
        """Sizes of new machines, and of those that an agent pool still has although it gets no more."""
        present = self.agent_pool.present if self.agent_pool is not None else ()
        sizes = {fold_id(size): size for size in (*(profile.size for profile in present), *self.sizes)}
        return tuple(sizes.values())

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones of its machines, numbers as text; empty without zones."""
        return self.scale_set.zones if self.scale_set is not None else self.agent_pool.zones if self.agent_pool is not None else ()

    @property
    def location(self) -> str:
        return self.scale_set.location if self.scale_set is not None else self.agent_pool.location if self.agent_pool is not None else ""

    @property
    def reservation_group(self) -> str:
        """The id of the capacity reservation group of its machines: AKS can make a pool without the group that the pool names."""
        if self.scale_set is not None:
            return self.scale_set.reservation_group
        return self.agent_pool.reservation_group if self.agent_pool is not None else ""

    @property
    def markets(self) -> tuple[str, ...]:
        """The markets that machines are bought in."""
        scale_set = self.scale_set
        if scale_set is not None and scale_set.mix is not None:
            return (ON_DEMAND, SPOT)
        own = self.agent_pool or scale_set
        return (own.market,) if own is not None else ()

    @property
    def locked(self) -> bool:
        """Whether only AKS may change its scale set."""
        return self.cluster is not None and self.cluster.locked

    @property
    def is_upgrading(self) -> bool:
        """Whether AKS replaces its machines, with surge machines beside them, so that its count is not its own for a while."""
        return self.agent_pool is not None and self.agent_pool.state.lower().startswith("upgrading")

    @property
    def id(self) -> str:
        """The folded resource id of its agent pool, else of its scale set."""
        own = self.agent_pool or self.scale_set
        return fold_id(own.id) if own is not None else ""

    @property
    def own_name(self) -> str:
        """The name of its agent pool, else of its scale set."""
        return self.agent_pool.name if self.agent_pool is not None else self.scale_set.name if self.scale_set is not None else ""

    @property
    def subscription(self) -> str:
        own = self.agent_pool or self.scale_set
        return own.subscription if own is not None else ""

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of its scale set, else of its agent pool, which AKS copies to its scale set."""
        return self.scale_set.tags if self.scale_set is not None else self.agent_pool.tags if self.agent_pool is not None else {}

    @property
    def capacity(self) -> int:
        """The number of machines that it is set to."""
        return self.scale_set.capacity if self.scale_set is not None else self.agent_pool.count if self.agent_pool is not None else 0
