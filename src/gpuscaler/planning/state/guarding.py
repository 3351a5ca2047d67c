"""Machines that gpuscaler has protected from scale-in, so that their group does not end them to balance its zones."""

from collections.abc import Mapping

from msgspec import Struct


class Guarding(Struct, frozen=True, gc=False):
    """``machines`` are those that gpuscaler has protected, by id, with their pools; ``asked`` is when the cloud was last asked, by id.

    ``refused`` says of pools why their machines cannot be protected, and ``since`` when that was answered. ``crowded`` are, for each pool
    that balances its zones, the zones that have at least two machines more than another, ``fuller`` those that have at least one more.
    ``beaten`` are machines that their group ended in a crowded zone before they were protected, by id: their pools, and when that was.
    ``levels`` are, for each pool whose machines cannot be protected, how many its zones have.
    """

    machines: Mapping[str, str] = {}
    asked: Mapping[str, float] = {}
    refused: Mapping[str, str] = {}
    since: Mapping[str, float] = {}
    crowded: Mapping[str, tuple[str, ...]] = {}
    fuller: Mapping[str, tuple[str, ...]] = {}
    beaten: Mapping[str, tuple[str, float]] = {}
    levels: Mapping[str, Mapping[str, int]] = {}
