"""Nodes that are not Ready: since when, what was reported and decided of each, and machines that are ended for it and may still cost."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.planning.state.events import Key


class Silence(Struct, frozen=True, gc=False):
    """A node of a pool of ours has not been Ready since ``since``; this program has seen it so since ``seen``, by its own clock.

    ``reported`` says that people have been informed. ``held`` is why its machine is not ended although its time has come, in words.
    """

    node: str
    instance: str
    offering: Key
    since: float
    seen: float
    reported: bool = False
    held: str = ""


class Fading(Struct, frozen=True, gc=False):
    """A machine that is ended since its node was not Ready. ``stopping`` says that its cloud has accepted that, and still lists it."""

    node: str
    instance: str
    offering: Key
    stopping: bool = False


class Unready(Struct, frozen=True, gc=False):
    """``nodes`` are those that are not Ready, ``fading`` machines whose removal has begun for that reason.

    ``begun`` is when such a removal last began in each pool, in seconds since the epoch.
    """

    nodes: tuple[Silence, ...] = ()
    fading: tuple[Fading, ...] = ()
    begun: Mapping[str, float] = {}
