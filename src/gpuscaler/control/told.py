"""A recorder that tells what was done in the log, a line each, and keeps nothing."""

import asyncio

import structlog

from gpuscaler.control.acting import Outcome
from gpuscaler.control.cloud import Answered, Ended
from gpuscaler.control.controller import Controller
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy
from gpuscaler.planning.memory import Look, Memory
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State, ledger
from gpuscaler.settings.run_settings import RunSettings

_LOG = structlog.get_logger(__name__)


class LogRecords:
    """:class:`~gpuscaler.control.running.Records` that are lines of the log and nothing else."""

    def led_by(self, controller: Controller | None, /) -> None:
        _LOG.info("stopped to lead" if controller is None else "leads")

    def settings_changed(self, settings: RunSettings, /) -> None:
        """Told by who noticed it."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    def looked(self, seen: Look, _cluster: Cluster, _now: float, /) -> None:
        for node, why in seen.kept:
            _LOG.info("kept", node=node, why=why)

    def planned(self, plan: Plan, _cluster: Cluster, _state: State, _policy: Policy, _now: float, /) -> None:
        if plan.machines or plan.removals or plan.unplaced:
            _LOG.info("planned", machines=len(plan.machines), removals=len(plan.removals), unplaced=len(plan.unplaced))

    def sent(self, order: ledger.Order, machines: tuple[ledger.Coming, ...], _memory: Memory, _now: float, /) -> None:
        _LOG.info("ordered", order=order.token, machines=len(machines))

    def answered(self, answer: Answered, _now: float, /) -> None:
        _LOG.info("answered", order=answer.order.token, detail=answer.detail)

    def acted(self, outcome: Outcome, _now: float, /) -> None:
        _LOG.info("acted", act=type(outcome.act).__name__, detail=outcome.detail)

    def ended(self, ended: Ended, _now: float, /) -> None:
        _LOG.info("ended", node=ended.node, instance=ended.instance, detail=ended.detail)

    def failed(self, what: str, error: BaseException, _now: float, /) -> None:
        _LOG.warning("failed", what=what, problem=str(error))
