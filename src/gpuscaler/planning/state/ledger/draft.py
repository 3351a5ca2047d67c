"""A ledger that runs ahead: one part of a look after the other folds into it what it finds."""

from gpuscaler.planning.state.ledger.events import Event
from gpuscaler.planning.state.ledger.ledger import Ledger, step


class Draft:
    """``steps`` lead from the ledger as it was to ``book``."""

    def __init__(self, book: Ledger) -> None:
        self.book = book
        self.steps: list[Event] = []

    def fold(self, event: Event) -> None:
        self.steps.append(event)
        self.book = step(self.book, event)
