"""Machines as their cloud lists them, whether or not they are nodes yet."""

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: A machine's life as a cloud tells it. ``pending`` ones start, ``stopping`` ones will not run again, ``terminated`` ones are history that
#: some clouds list for a while.
PENDING, RUNNING, STOPPING, TERMINATED = "pending", "running", "stopping", "terminated"
#: The states in which a machine exists or will.
ALIVE = frozenset({PENDING, RUNNING})


class Instance(Struct, frozen=True, gc=False):
    """One machine. ``id`` is what ``spec.providerID`` of its Node says; ``launched`` is in seconds since the epoch, 0 when unknown.

    ``token`` is the idempotency token of the purchase that it came from, where the cloud keeps it; ``fault`` is what the cloud says is
    wrong with it, or why it has ended, in its words; ``ends`` is when the cloud takes it away, known since it was bought, in seconds since
    the epoch; 0 where it does not. ``cause`` is why its cloud ends one that is ``stopping``, in words, where nobody here asked for that; it
    may be held for ``held`` seconds at a time until ``until``, both 0 where it is not. Its group ends one that is ``protected`` for no
    reason of its own; this program has protected one that is ``guarded`` while its group was lowered. ``doubt`` is why its group may still
    give up one that starts, or has given up one that is ``stopping``, in words: what runs on it would end with it.
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
        """Key of its offering: (pool, market, instance type, zone)."""
        return OfferingKey(self.pool, self.market, self.instance_type, self.zone)


class Delivery(Struct, frozen=True, gc=False):
    """What the group behind ``pool`` delivers by itself, without an order: it replaces what ends, and launches up to its desired capacity.

    ``missing`` machines of that are still to be launched; those that are launched are listed. ``failing`` is what the group says of its
    last launch where that came to nothing. ``early`` says that it replaces a machine from the moment that the cloud announces its end.
    """

    pool: str
    missing: int = 0
    failing: str = ""
    early: bool = False
    surplus: int = 0


class Inventory(Struct, frozen=True, gc=False):
    """The machines of this cluster that a cloud listed. ``deliveries`` has each pool whose group launches machines by itself.

    ``let_go`` are pools that are no longer ours by what their groups have: what is under way there is finished, and nothing new begins.

    The list is true of some moment between ``at`` less the provider's ``read_lag`` and ``at``, both in seconds since the epoch.
    """

    at: float
    instances: tuple[Instance, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    let_go: tuple[str, ...] = ()
