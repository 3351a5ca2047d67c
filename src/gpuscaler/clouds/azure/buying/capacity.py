"""What to write as the capacity of a scale set or agent pool that others write, too. Pure.

Azure's capacity is an absolute number with compare-and-swap: every write carries the ETag of the read that its number was derived from, so
an outdated number is refused instead of undoing what others wrote. Azure tries once and not again: when an operation ended without all of
its machines, the rest is only a number, and stays one until something writes a capacity again.
"""

from msgspec import Struct


class Count(Struct, frozen=True, gc=False):
    """A scale set or profile at one moment: its ``capacity`` with the ``etag`` of the read, and the number of ``listed`` machines.

    Machines of any state but deleting ones are ``listed``: the capacity goes down when a deletion starts. ``busy`` means that an operation
    is running, so that machines up to the capacity are still coming. ``limit`` is the largest capacity that may be written. ``agreed`` is
    False while AKS has not noticed yet what others did to the scale set of its agent pool: the capacity is then the larger of the two.
    """

    capacity: int
    etag: str
    listed: int
    busy: bool = False
    limit: int = 1000
    agreed: bool = True

    @property
    def unfilled(self) -> int:
        """The part of the capacity without machines."""
        return max(0, self.capacity - self.listed)


def raised_capacity(count: Count, machines: int) -> int:
    """The capacity to write for ``machines`` more, at most the limit; equal to the present one if a number is left that no machine filled.

    Writing any number makes Azure try for all of it, so a number that was left over counts towards the machines wanted.
    """
    left_over = 0 if count.busy else count.unfilled
    return max(count.capacity, min(count.capacity + max(0, machines - left_over), count.limit))


def lowered_capacity(count: Count, ours: int, others: int = 0) -> int:
    """The capacity to write when ``ours`` of the machines that were asked for do not come; ``others`` more are still expected.

    It is never below the machines that are listed, nor does it take from the number what others wait for.
    """
    return count.capacity - max(0, min(ours, count.unfilled - others))
