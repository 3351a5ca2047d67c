"""The draft of a ledger: the stages of one reconcile pass fold their events into it, one after the other."""

from gpuscaler.planning.state.ledger.events import Event
from gpuscaler.planning.state.ledger.ledger import Ledger, step


class Draft:
    """A ledger and the ``steps`` that led from its original state to ``ledger``."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.steps: list[Event] = []

    def fold(self, event: Event) -> None:
        self.steps.append(event)
        self.ledger = step(self.ledger, event)
