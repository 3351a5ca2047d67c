"""The pages that the leader serves over HTTP, as JSON: the status, explanations of pods and nodes, and decisions."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.history.history import DecisionSummary, History, owner_subject
from gpuscaler.control.records.history.keeping import HistoryWriter
from gpuscaler.control.records.status.reporting import Reporter
from gpuscaler.control.records.status.why import Explanation, why_node, why_pod
from gpuscaler.model.owners import top_owner
from gpuscaler.model.pods import NO_OWNER, Owner
from gpuscaler.planning.plans import Plan

T = TypeVar("T")
#: How many events are shown for one subject, decisions in the list, and evictions of other pods of an owner.
MAX_EVENTS, MAX_DECISIONS, MAX_EVICTIONS = 30, 100, 5


class DecisionDetail(msgspec.Struct, frozen=True):
    """A decision and its events. ``inputs`` is the path of its inputs, or says why there are none."""

    id: str
    at: float
    text: str
    plan: Plan
    happened: tuple[str, ...]
    inputs: str


class Pages:
    """Handlers that read the latest state and the history. A process that does not lead, by ``leading``, has no latest state."""

    def __init__(
        self, latest: Latest, keeper: HistoryWriter, reporter: Reporter, *, leading: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        self._latest, self._keeper, self._reporter, self._leading, self._now = latest, keeper, reporter, leading, now

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/status", self._status),
            web.get("/why/pod/{namespace}/{name}", self._why_pod),
            web.get("/why/node/{name:.+}", self._why_node),
            web.get("/decisions", self._decisions),
            web.get("/decisions/{id}", self._decision),
            web.get("/decisions/{id}/inputs", self._inputs),
        ]

    def _must_lead(self) -> None:
        if not self._leading():
            raise web.HTTPServiceUnavailable(text="this process does not lead; gpuscaler status shows the leader\n")

    async def _query(self, question: Callable[[History], T]) -> T:
        """Query the history, including the newest events. If it cannot be read, the answer is an HTTP error."""
        history = self._keeper.history
        try:
            await self._keeper.flush()
            return await asyncio.to_thread(question, history) if history.on_disk else question(history)
        except sqlite3.Error as error:
            raise web.HTTPServiceUnavailable(text=f"the history of decisions cannot be read: {error}\n") from error

    async def _status(self, _request: web.Request) -> web.Response:
        self._must_lead()
        return _json_response(await self._reporter.refresh())

    async def _why_pod(self, request: web.Request) -> web.Response:
        self._must_lead()
        key = f"{request.match_info['namespace']}/{request.match_info['name']}"
        pod = self._latest.cluster.pods.get(key)
        top = NO_OWNER if pod is None else top_owner(self._latest.cluster.workloads, pod.namespace, pod.owner)
        history = await self._query(lambda history: pod_events(history, key, top))
        return _explanation_response(why_pod(self._latest, key, history, self._now()))

    async def _why_node(self, request: web.Request) -> web.Response:
        self._must_lead()
        name = request.match_info["name"]
        history = await self._query(lambda history: history.events_about(f"node/{name}", most=MAX_EVENTS))
        return _explanation_response(why_node(self._latest, name, history, self._now()))

    async def _decisions(self, _request: web.Request) -> web.Response:
        briefs: list[DecisionSummary] = await self._query(lambda history: history.decisions(most=MAX_DECISIONS))
        return _json_response(briefs)

    async def _decision(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        stored_decision, events = await self._query(
            lambda history: (history.decision(name), history.events_about(f"decision/{name}", most=MAX_EVENTS))
        )
        if stored_decision is None:
            raise web.HTTPNotFound(text=missing_decision(name))
        inputs = stored_decision.missing or f"/decisions/{name}/inputs"
        return _json_response(
            DecisionDetail(
                stored_decision.id,
                stored_decision.at,
                stored_decision.text,
                stored_decision.plan,
                tuple(event.text for event in events),
                inputs,
            )
        )

    async def _inputs(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        stored_decision = await self._query(lambda history: history.decision(name, inputs=True))
        if stored_decision is None:
            raise web.HTTPNotFound(text=missing_decision(name))
        if stored_decision.inputs is None:
            raise web.HTTPGone(text=f"decision {name}: {stored_decision.missing}\n")
        return web.Response(body=stored_decision.inputs, content_type="application/octet-stream")


def pod_events(history: History, key: str, top: Owner) -> list[HistoryEvent]:
    """The events of a pod, and those of other pods of its owner ``top`` that it may have replaced; the oldest first."""
    own = history.events_about(f"pod/{key}", most=MAX_EVENTS)
    others = history.events_about(owner_subject(key, top), most=MAX_EVICTIONS) if top.kind else []
    return sorted((*own, *(event for event in others if event not in own)), key=lambda event: event.at)


def missing_decision(name: str) -> str:
    return f"decision {name}: saw no decision with that id, expected one that is kept; gpuscaler replay without an id lists them\n"


def _json_response(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _explanation_response(answer: Explanation) -> web.Response:
    return web.Response(status=200 if answer.known else 404, body=msgspec.json.encode(answer), content_type="application/json")
