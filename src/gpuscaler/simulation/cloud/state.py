"""What a simulated cloud is between two moments, as data that can be written down and read again."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.model.offerings import NO_OFFERING, OfferingKey
from gpuscaler.model.pools import Offering
from gpuscaler.simulation.cloud.machines import CloudMachine, Refusal

#: The version of the form below. A state of another version is not read.
FORM = 1
#: In place of infinity, which JSON does not have.
NEVER = -1.0


class Standing(Struct, gc=False):
    """An order of which something is still missing, or whose answer is still out."""

    token: str
    offerings: tuple[OfferingKey, ...]
    missing: int
    spread: bool
    standing: bool
    answered: bool = False

    def shares(self) -> Iterator[tuple[OfferingKey, int]]:
        """What to try, in order: an offering and how many of it. Consumed while ``missing`` is counted down."""
        if self.spread and len(self.offerings) > 1:
            # Everybody's fair share, then the rest from whoever has more.
            share, more = divmod(self.missing, len(self.offerings))
            for number, key in enumerate(self.offerings):
                if share + (number < more):
                    yield key, share + (number < more)
        for key in self.offerings:
            if not self.missing:
                return
            yield key, self.missing


class Due(Struct, frozen=True, gc=False, order=True):
    """Something to happen: of one moment what was put here first comes first. ``what`` is a machine's id, a token, or an offering."""

    at: float
    order: int
    kind: str
    what: str
    key: OfferingKey = NO_OFFERING
    why: str = ""


class Row(Struct, frozen=True, gc=False, array_like=True):
    """A machine; ``offering`` is a place in the state's list."""

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
    """A whole simulated cloud but for what it is told when it is made: pools, markets, delays, faults and seed.

    ``granted`` and ``asked`` count all machines and purchases there ever were; ``answers`` are the tokens that are remembered, with what
    was refused. ``in_use`` are offerings with machines, ``doomed`` machines that will be reclaimed.
    """

    form: int = FORM
    granted: int = 0
    asked: int = 0
    put: int = 0
    offerings: tuple[Offering, ...] = ()
    machines: tuple[Row, ...] = ()
    answers: tuple[tuple[str, tuple[Refusal, ...]], ...] = ()
    orders: tuple[Standing, ...] = ()
    in_use: tuple[OfferingKey, ...] = ()
    doomed: tuple[str, ...] = ()
    due: tuple[Due, ...] = ()


def rows_of(machines: Iterable[CloudMachine], images: dict[str, float]) -> tuple[tuple[Offering, ...], tuple[Row, ...]]:
    """Machines as rows, and the offerings that these refer to."""
    places: dict[int, int] = {}
    offerings: list[Offering] = []
    rows = []
    for one in machines:
        # Machines of one offering share it; two that are equal are written twice, which does no harm.
        place = places.setdefault(id(one.offering), len(offerings))
        if place == len(offerings):
            offerings.append(one.offering)
        times = (_written(one.registered_at), _written(one.visible_at), one.ended_at, images.get(one.id))
        rows.append(Row(one.id, place, one.purchase, one.state, one.bought_at, *times, one.fault))
    return tuple(offerings), tuple(rows)


def machine_of(row: Row, offerings: tuple[Offering, ...]) -> CloudMachine:
    """The machine of a row."""
    times = (row.bought_at, _read(row.registered_at), _read(row.visible_at), row.ended_at)
    return CloudMachine(row.id, offerings[row.offering], row.purchase, row.state, *times, row.fault)


def _written(at: float) -> float:
    return NEVER if at == float("inf") else at


def _read(at: float) -> float:
    return float("inf") if at == NEVER else at
