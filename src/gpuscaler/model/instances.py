"""Machines as listed by their cloud, with or without a Node object."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: States of a machine in its cloud. ``pending`` machines start, ``stopping`` ones will not run again, ``terminated`` ones are gone, but
#: some clouds list them for a while.
PENDING, RUNNING, STOPPING, TERMINATED = "pending", "running", "stopping", "terminated"
#: The states in which a machine exists or will exist.
ALIVE = frozenset({PENDING, RUNNING})


class Instance(Struct, frozen=True, gc=False):
    """A machine. ``id`` equals ``spec.providerID`` of its Node; ``launched`` is in seconds since the epoch, 0 if unknown.

    ``token`` is the idempotency token of its order, if the cloud stores it. ``fault`` is the cloud's message about its problem or its end.
    ``ends`` is when the cloud reclaims it, known from the purchase on, in seconds since the epoch, or 0. ``cause`` is the reason why the
    cloud ends a ``stopping`` machine that this program did not end. The cloud may hold it for ``held`` seconds at a time until ``until``,
    both 0 otherwise. A ``protected`` machine is not ended by its group on the group's own account. A ``guarded`` machine was protected by
    this program while its group was lowered. ``doubt`` is the reason why its group may still give up a starting machine, or has given up
    a ``stopping`` one: pods on it would end with it.
    """

    id: str
    pool: str
    market: str
    instance_type: str
    zone: str
    state: str = RUNNING
    launched: float = 0.0
    token: str = ""
    fault: str = ""
    ends: float = 0.0
    cause: str = ""
    until: float = 0.0
    held: float = 0.0
    protected: bool = False
    guarded: bool = False
    doubt: str = ""

    @property
    def key(self) -> OfferingKey:
        """The key of its offering: (pool, market, instance type, zone)."""
        return OfferingKey(self.pool, self.market, self.instance_type, self.zone)


class Delivery(Struct, frozen=True, gc=False):
    """Machines that the group of ``pool`` launches without an order: replacements, and launches up to its desired capacity.

    ``missing`` of them are still to be launched; launched ones are in the list. ``failing`` is the group's message about its last launch if
    it failed. With ``early``, it replaces a machine as soon as the cloud announces the machine's end.
    """

    pool: str
    missing: int = 0
    failing: str = ""
    early: bool = False
    surplus: int = 0


class Inventory(Struct, frozen=True, gc=False):
    """The machines of this cluster in a cloud's list. ``deliveries`` contains each pool with a group that launches machines by itself.

    ``released_pools`` are pools with groups that no longer belong to this cluster: actions in progress are finished, and no new ones start.

    The list is valid for some time between ``at`` minus the provider's ``read_lag`` and ``at``, both in seconds since the epoch. ``age`` is
    how many seconds before the call it was read, if the cloud could not be asked again yet.
    """

    at: float
    instances: tuple[Instance, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    released_pools: tuple[str, ...] = ()
    age: float = 0.0
