"""Reproductions of published tables: the paper's values beside ours for the same inputs."""

from collections.abc import Mapping

from msgspec import Struct


class TableRow(Struct, frozen=True, gc=False):
    """One policy. ``published`` is the printed value, None if there is none; ``ours`` is this run's value, in the table's ``unit``.

    ``figures`` are more columns of this run, by their headings.
    """

    policy: str
    ours: float
    published: float | None = None
    figures: Mapping[str, float] = {}

    @property
    def difference(self) -> float | None:
        return None if self.published is None else self.ours - self.published


class Published(Struct, frozen=True, gc=False):
    """A table. ``source`` names the publication, ``inputs`` the data of the run, ``unmatched`` what could not be matched and why."""

    name: str
    title: str
    unit: str
    source: str
    rows: tuple[TableRow, ...]
    inputs: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
