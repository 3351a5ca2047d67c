"""The state of a simulated cloud between two moments, as data for saving and loading."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.model.offerings import NO_OFFERING, OfferingKey
from gpuscaler.model.pools import Offering
from gpuscaler.simulation.cloud.machines import CloudMachine, Refusal

#: Version of the form below. A state of another version is rejected.
FORM = 1
#: Stands for infinity, which JSON does not have.
NEVER = -1.0


class StandingOrder(Struct, gc=False):
    """An order that is not filled or not answered yet."""

    token: str
    offerings: tuple[OfferingKey, ...]
    missing: int
    spread: bool
    standing: bool
    answered: bool = False

    def shares(self) -> Iterator[tuple[OfferingKey, int]]:
        """Return what to try, in order: offerings with a number of machines. Read it while ``missing`` is counted down."""
        if self.spread and len(self.offerings) > 1:
            # An equal share for each offering first, then the rest from any that has more.
            share, more = divmod(self.missing, len(self.offerings))
            for number, key in enumerate(self.offerings):
                if share + (number < more):
                    yield key, share + (number < more)
        for key in self.offerings:
            if not self.missing:
                return
            yield key, self.missing


class DueEvent(Struct, frozen=True, gc=False, order=True):
    """A due event; events of one moment keep the order in which they were added. ``what`` is a machine's id, a token, or an offering."""

    at: float
    order: int
    kind: str
    what: str
    key: OfferingKey = NO_OFFERING
    why: str = ""


class MachineRow(Struct, frozen=True, gc=False, array_like=True):
    """A machine; ``offering`` is an index into the state's list."""

    id: str
    offering: int
    purchase: str
    state: str
    bought_at: float
    registered_at: float
    visible_at: float
    ended_at: float | None
    image_at: float | None
    fault: str


class CloudState(Struct, frozen=True, gc=False):
    """A whole simulated cloud except its constructor's settings: pools, markets, delays, faults and seed.

    ``granted`` and ``asked`` count all machines and purchases ever made; ``answers`` are the remembered tokens with their refusals.
    ``in_use`` are offerings with machines, ``doomed`` machines that will be reclaimed.
    """

    form: int = FORM
    granted: int = 0
    asked: int = 0
    put: int = 0
    offerings: tuple[Offering, ...] = ()
    machines: tuple[MachineRow, ...] = ()
    answers: tuple[tuple[str, tuple[Refusal, ...]], ...] = ()
    orders: tuple[StandingOrder, ...] = ()
    in_use: tuple[OfferingKey, ...] = ()
    doomed: tuple[str, ...] = ()
    due: tuple[DueEvent, ...] = ()


def machine_rows(machines: Iterable[CloudMachine], images: dict[str, float]) -> tuple[tuple[Offering, ...], tuple[MachineRow, ...]]:
    """Return machines as rows, and the offerings that the rows refer to."""
    places: dict[int, int] = {}
    offerings: list[Offering] = []
    rows = []
    for machine in machines:
        # Machines of one offering share it; two equal offerings are written twice, which is harmless.
        place = places.setdefault(id(machine.offering), len(offerings))
        if place == len(offerings):
            offerings.append(machine.offering)
        times = (_encode_time(machine.registered_at), _encode_time(machine.visible_at), machine.ended_at, images.get(machine.id))
        rows.append(MachineRow(machine.id, place, machine.purchase, machine.state, machine.bought_at, *times, machine.fault))
    return tuple(offerings), tuple(rows)


def machine_from_row(row: MachineRow, offerings: tuple[Offering, ...]) -> CloudMachine:
    """Return the machine of a row."""
    times = (row.bought_at, _decode_time(row.registered_at), _decode_time(row.visible_at), row.ended_at)
    return CloudMachine(row.id, offerings[row.offering], row.purchase, row.state, *times, row.fault)


def _encode_time(at: float) -> float:
    return NEVER if at == float("inf") else at


def _decode_time(at: float) -> float:
    return float("inf") if at == NEVER else at
