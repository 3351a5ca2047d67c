"""The interface through which the controller reports what it does."""

from collections.abc import Mapping
from typing import Protocol

from gpuscaler.control.loop.cloud import OrderAnswer
from gpuscaler.control.loop.cluster_writes import Outcome
from gpuscaler.control.loop.ending import EndResult
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State
from gpuscaler.planning.state.ledger import ledger


class Recorder(Protocol):
    """Receives everything that the controller does, in order, and records it. Its methods must neither raise nor wait.

    ``decisions`` is the number of decisions so far. ``decided`` are the ids of the decisions that are being carried out, by the token of
    an order or the name of a node: those of this process, and those in the memory that it was shown.
    """

    @property
    def decisions(self) -> int: ...

    @property
    def decision_ids(self) -> Mapping[str, str]: ...

    def observed(self, seen: Reconciliation, cluster: Cluster, now: float, /) -> None: ...

    def planned(self, plan: Plan, cluster: Cluster, state: State, policy: Policy, now: float, /) -> None: ...

    def sent(self, order: ledger.Order, machines: tuple[ledger.OrderedMachine, ...], memory: Memory, now: float, /) -> None: ...

    def answered(self, answer: OrderAnswer, now: float, /) -> None: ...

    def acted(self, outcome: Outcome, now: float, /) -> None: ...

    def ended(self, ended: EndResult, now: float, /) -> None: ...

    def failed(self, what: str, error: BaseException, now: float, /) -> None: ...
