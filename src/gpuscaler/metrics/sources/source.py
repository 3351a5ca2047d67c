"""Values from Prometheus according to rules, for objects that are known from watches."""

import asyncio
from collections.abc import Callable, Sequence

from gpuscaler.kube import resources as kube
from gpuscaler.kube.resources import Resource
from gpuscaler.metrics.rules import resources as named
from gpuscaler.metrics.rules.discovery import Discovery, Origin
from gpuscaler.metrics.sources.answers import AnswerCache
from gpuscaler.metrics.sources.discovering import Discoverer
from gpuscaler.metrics.sources.evaluating import Evaluator, Question, State, Table
from gpuscaler.metrics.sources.objects import Objects
from gpuscaler.metrics.sources.outages import evaluations, find_outages, listings
from gpuscaler.metrics.sources.prometheus import PrometheusError
from gpuscaler.metrics.sources.questions import object_question, series_question
from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, Unavailable, UnknownMetric, Value
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.serving.logs import Finding

_KNOWN = {var.label: var for var in vars(kube).values() if isinstance(var, Resource)}
#: Versions that are tried after v1 for a resource of which only the name and the group are known.
_VERSIONS = ("v1beta2", "v1beta1", "v2", "v1alpha2", "v1alpha1")


class PrometheusSource:
    """A :class:`~gpuscaler.metrics.sources.values.Source`. :meth:`run` lists series, watches objects and keeps numbers current.

    It is ready once :attr:`trouble` is empty. ``clock`` is monotonic, in seconds.
    """

    def __init__(self, discoverer: Discoverer, evaluator: Evaluator, objects: Objects, *, clock: Callable[[], float]) -> None:
        self.discoverer, self.evaluator, self.objects = discoverer, evaluator, objects
        self.answers = AnswerCache(evaluator.timing, clock)
        self._discovery: Discovery | None = None
        self._custom: tuple[MetricInfo, ...] = ()
        self._external: tuple[str, ...] = ()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.discoverer.run(), name="discover series")
            tasks.create_task(self.evaluator.run(), name="evaluate")
            tasks.create_task(self.objects.run(), name="watch objects")

    @property
    def trouble(self) -> str:
        """Why not everything can be answered yet; empty once all answers are possible."""
        if not self.objects.synced:
            return "; ".join(self.objects.troubles) or "pods have not been listed yet"
        if not self.discoverer.has_listed:
            return "; ".join(self.discoverer.troubles.values()) or "series have not been listed from Prometheus yet"
        return ""

    def outages(self) -> Finding:
        """What fails now, and what works."""
        return find_outages(evaluations(self.evaluator), listings(self.discoverer))

    async def for_object(
        self, *, group_resource: str, namespace: str, name: str, metric: str, metric_selector: LabelSelector = EVERYTHING
    ) -> Value:
        origin = self._origin(group_resource, metric)
        request = ("object", group_resource, namespace, name, metric, metric_selector)
        values = self.answers.cached(request)
        if values is None:
            selection = ((namespace, name),)
            question = object_question(metric, origin, namespace=namespace, selection=selection, selector=metric_selector)
            state, table, is_held = await self._table(question)
            values = self.answers.make(request, state, table, is_held=is_held, group_resource=group_resource, selection=selection)
            if not values:
                raise UnknownMetric(self.answers.missing(table, (namespace, name)))
        elif not values:
            raise UnknownMetric("it has no fresh sample")
        return values[0]

    async def for_selector(
        self,
        *,
        group_resource: str,
        namespace: str,
        label_selector: LabelSelector = EVERYTHING,
        metric: str,
        metric_selector: LabelSelector = EVERYTHING,
    ) -> Sequence[Value]:
        origin = self._origin(group_resource, metric)
        request = (group_resource, namespace, label_selector, metric, metric_selector)
        values = self.answers.cached(request, namespace, label_selector)
        if values is None:
            index = await self.objects.index(_resource(origin.resource))
            selection = index.select(namespace, label_selector)
            if not selection:
                raise UnknownMetric("no object matches the selector")
            question = object_question(metric, origin, namespace=namespace, selection=selection, selector=metric_selector)
            state, table, is_held = await self._table(question)
            values = self.answers.make(
                request, state, table, is_held=is_held, group_resource=group_resource, selection=selection, index=index
            )
        return values

    async def external(self, *, namespace: str, metric: str, metric_selector: LabelSelector = EVERYTHING) -> Sequence[Value]:
        origin = self._current_discovery().external.get(metric)
        if origin is None:
            raise UnknownMetric(self._unknown())
        request = ("external", namespace, metric, metric_selector)
        values = self.answers.cached(request)
        if values is None:
            state, table, is_held = await self._table(series_question(metric, origin, namespace=namespace, selector=metric_selector))
            values = self.answers.make(request, state, table, is_held=is_held, group_resource="")
        return values

    def custom_metrics(self) -> Sequence[MetricInfo]:
        self._current_discovery()
        return self._custom

    def external_metrics(self) -> Sequence[str]:
        self._current_discovery()
        return self._external

    def _current_discovery(self) -> Discovery:
        """The current metrics of the rules; clears cached answers if they changed."""
        discovery = self.discoverer.discovery
        if discovery is not self._discovery:
            self._discovery = discovery
            self.answers.forget()
            listed = (
                MetricInfo(text, origin.resource is None or origin.resource.namespaced, metric)
                for (text, metric), origin in discovery.custom.items()
            )
            self._custom, self._external = tuple(sorted(listed)), tuple(sorted(discovery.external))
        return discovery

    def _origin(self, group_resource: str, metric: str) -> Origin:
        origin = self._current_discovery().custom.get((group_resource, metric))
        if origin is None:
            raise UnknownMetric(self._unknown())
        return origin

    def _unknown(self) -> str:
        """Reasons why a metric is unknown, empty if Prometheus has no such series; also requests another list of series soon."""
        self.discoverer.relist_soon()
        return "; ".join(self.discoverer.troubles.values())

    async def _table(self, question: Question) -> tuple[State, Table, bool]:
        try:
            state = self.evaluator.state(question)
            table, is_held = await self.evaluator.table(state)
        except PrometheusError as error:
            raise Unavailable(str(error)) from error
        return state, table, is_held


def _resource(resource: named.Resource | None) -> Resource:
    """The resource in the API server. For an unknown resource, versions are tried one after the other."""
    assert resource is not None
    standard = _KNOWN.get(resource.text)
    return standard or Resource(resource.group, "v1", resource.plural, resource.singular, resource.namespaced, older=_VERSIONS)
