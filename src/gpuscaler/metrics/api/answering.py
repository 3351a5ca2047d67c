"""Answers to authorized requests: metrics, discovery, health."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gpuscaler.metrics.api.documents import bodies, discovery, openapi, statuses
from gpuscaler.metrics.api.identity import Headers
from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL, VERSIONS, Metric, ParsedRequest, Query
from gpuscaler.metrics.rules.resources import RESOURCES_BY_TEXT, full_resource_name
from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, Rejected, Source, Unavailable, UnknownMetric, Value
from gpuscaler.model.selector_text import SelectorError, Term, parse_terms
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.serving.health import Check, find_problem

_TEXT: Mapping[str, str] = {"Content-Type": "text/plain; charset=utf-8"}
#: Limits of the cache of encoded answers: entries, bytes, and the length of a selector.
_MOST, _MOST_BYTES, _SHORT = 2048, 64 * 2**20, 2048


class Reply(NamedTuple):
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}


class _Selectors(NamedTuple):
    """The selectors of a query, parsed."""

    objects: LabelSelector
    series: LabelSelector
    terms: tuple[Term, ...]


@dataclass(slots=True)
class Responder:
    """Answers requests from ``source``. ``alive`` and ``ready`` are checks by name; ``pages`` are further pages by path.

    Of the two API groups only those in ``groups`` are served.
    """

    source: Source
    alive: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)
    pages: Mapping[str, Callable[[Headers], Reply]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset(VERSIONS)
    _selectors: dict[Query, _Selectors] = field(default_factory=dict, init=False)
    _encoded: dict[tuple[Metric, Query], tuple[Sequence[Value], bytes]] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)
    #: The metrics that the source serves, and their resources.
    _resources: tuple[Sequence[MetricInfo], frozenset[str]] = field(default=((), frozenset()), init=False)

    async def answer(self, request: ParsedRequest, headers: Headers, *, authenticated: bool = True) -> Reply:
        """The answer to ``request``. Callers that are not ``authenticated`` get no reasons for failed probes.

        Raises :class:`~.statuses.Failure`.
        """
        metric = request.metric
        if metric is not None and metric.group in self.groups:
            # An external metric has no object, so authorization sees reading it as a list.
            if request.attributes.verb not in ("get", "list"):
                raise statuses.method_not_allowed(request.attributes)
            return await self._metric_reply(metric, request.query)
        if request.attributes.verb not in ("get", "list", "head"):
            raise statuses.method_not_allowed(request.attributes)
        if request.invalid and request.parts[1] in self.groups:
            raise statuses.bad_request(request.invalid)
        return self._page_reply(request, headers, authenticated=authenticated)

    async def _metric_reply(self, metric: Metric, query: Query) -> Reply:
        question = self._parse_selectors(query, metric)
        requested, metric = metric, self._with_full_resource(metric)
        values = await self._values(metric, question, requested)
        key = metric, query
        cached = self._encoded.get(key)
        if cached is not None and cached[0] is values:
            return Reply(cached[1])
        body = bodies.encode_external(metric, values) if metric.group == EXTERNAL else bodies.encode_custom(metric, values, question.terms)
        if query.pretty:
            body = msgspec.json.format(body, indent=2)
        # If a source returns the same tuple twice, nothing changed; the same list could have changed.
        if isinstance(values, tuple) and len(query.labels) + len(query.metric_labels) <= _SHORT:
            self._bytes += len(body) - (len(self._encoded.pop(key)[1]) if cached is not None else 0)
            if len(self._encoded) >= _MOST or self._bytes > _MOST_BYTES:
                self._encoded.clear()
                self._bytes = len(body)
            self._encoded[key] = values, body
        return Reply(body)

    def _parse_selectors(self, query: Query, metric: Metric) -> _Selectors:
        question = self._selectors.get(query)
        if question is None:
            try:
                terms = parse_terms(query.metric_labels)
                objects = LabelSelector(tuple(term.requirement for term in parse_terms(query.labels)))
            except SelectorError as error:
                raise statuses.bad_request(str(error)) from error
            series = LabelSelector(tuple(term.requirement for term in terms)) if terms else EVERYTHING
            question = _Selectors(objects, series, terms)
            if len(self._selectors) >= _MOST:
                self._selectors.clear()
            if len(query.labels) + len(query.metric_labels) <= _SHORT:
                self._selectors[query] = question
        if query.fields and metric.group == CUSTOM and not _selects_name(query.fields, metric.name):
            raise statuses.bad_request("fieldSelector metadata.name doesn't match requested name")
        return question

    def _with_full_resource(self, metric: Metric) -> Metric:
        """``metric`` with its full resource name: clients may omit or shorten the group, and use the singular for the plural."""
        text = metric.group_resource
        if metric.group == EXTERNAL or text in RESOURCES_BY_TEXT:
            return metric
        infos = self.source.custom_metrics()
        if infos is not self._resources[0]:
            self._resources = infos, frozenset(metric_info.group_resource for metric_info in infos)
        group_resource = full_resource_name(text, self._resources[1])
        return metric if group_resource == text else replace(metric, group_resource=group_resource)

    async def _values(self, metric: Metric, question: _Selectors, requested: Metric) -> Sequence[Value]:
        """The values of ``metric``. Errors name the resource as the client did in ``requested``."""
        source = self.source
        try:
            if metric.group == EXTERNAL:
                return await source.external(namespace=metric.namespace, metric=metric.metric, metric_selector=question.objects)
            if metric.name == "*":
                return await source.for_selector(
                    group_resource=metric.group_resource,
                    namespace=metric.namespace,
                    label_selector=question.objects,
                    metric=metric.metric,
                    metric_selector=question.series,
                )
            value = await source.for_object(
                group_resource=metric.group_resource,
                namespace=metric.namespace,
                name=metric.name,
                metric=metric.metric,
                metric_selector=question.series,
            )
        except UnknownMetric as error:
            raise self._not_found(metric, str(error), requested.group_resource) from error
        except Unavailable as error:
            raise statuses.internal(": ".join(filter(None, ("unable to fetch metrics", str(error))))) from error
        except Rejected as error:
            raise statuses.bad_request(str(error)) from error
        return (value,)

    def _not_found(self, metric: Metric, why: str, resource: str) -> statuses.Failure:
        if metric.group == EXTERNAL:
            return statuses.not_found_external(metric.metric, metric.namespace, why)
        served = any(
            metric_info.metric == metric.metric and metric_info.group_resource == metric.group_resource
            for metric_info in self.source.custom_metrics()
        )
        return statuses.not_found(resource, metric.metric, metric.name if served and metric.name != "*" else "", why)

    def _page_reply(self, request: ParsedRequest, headers: Headers, *, authenticated: bool) -> Reply:
        match request.parts:
            case ():
                return Reply(msgspec.json.encode({"paths": sorted(self._paths())}))
            case ("apis",):
                return self._groups(headers)
            case ("apis", group) if group in self.groups:
                return Reply(discovery.api_group(group))
            case ("apis", group, version) if group in self.groups and version in VERSIONS[group]:
                source = self.source
                custom, external = (source.custom_metrics(), ()) if group == CUSTOM else ((), source.external_metrics())
                return Reply(discovery.resource_list(group, version, custom=custom, external=external))
            case ("openapi", "v2"):
                return _reply_with_etag(openapi.version_2(sorted(self.groups)), headers)
            case ("openapi", "v3"):
                return Reply(openapi.index(sorted(self.groups)))
            case ("openapi", "v3", "apis", group, version) if group in self.groups and version in VERSIONS[group]:
                return _reply_with_etag(openapi.version_3(group, version), headers)
            case ("healthz" | "livez" as probe, *check):
                return health(probe, self.alive, check, verbose=request.verbose, reasons=authenticated)
            case ("readyz", *check):
                return health("readyz", {**self.alive, **self.ready}, check, verbose=request.verbose, reasons=authenticated)
        page = self.pages.get(request.attributes.path)
        return page(headers) if page is not None else Reply(b"404 page not found\n", 404, _TEXT)

    def _paths(self) -> list[str]:
        served = [f"/apis/{group}/{version}" for group in self.groups for version in VERSIONS[group]]
        return [
            "/apis",
            *(f"/apis/{group}" for group in self.groups),
            *served,
            "/healthz",
            "/livez",
            "/openapi/v2",
            "/openapi/v3",
            "/readyz",
            *self.pages,
        ]

    def _groups(self, headers: Headers) -> Reply:
        version = discovery.aggregated_version(headers.get("Accept") or "")
        if not version:
            return Reply(discovery.group_list(group for group in VERSIONS if group in self.groups), headers={"Vary": "Accept"})
        custom = self.source.custom_metrics() if CUSTOM in self.groups else None
        external = self.source.external_metrics() if EXTERNAL in self.groups else None
        body = discovery.aggregated_discovery(version, custom, external)
        return _reply_with_etag(body, headers, {"Content-Type": discovery.content_type(version), "Vary": "Accept"})


def _reply_with_etag(body: bytes, headers: Headers, more: Mapping[str, str] = {}) -> Reply:
    """A reply with ``body``, or 304 if the client already has it."""
    reply_headers = {**more, "ETag": discovery.etag(body)}
    if headers.get("If-None-Match") == reply_headers["ETag"]:
        return Reply(b"", 304, reply_headers)
    return Reply(body, headers=reply_headers)


def health(probe: str, checks: Mapping[str, Check], chosen: Sequence[str], *, verbose: bool, reasons: bool) -> Reply:
    """Answer a probe as API servers do: ``ok`` alone, or a line for each check if the client asks for it or a check fails.

    ``reasons``: whether failures are explained. Explanations contain addresses and errors of other servers, so not every caller may see
    them.
    """
    if chosen and (len(chosen) > 1 or chosen[0] not in {*checks, "ping"}):
        return Reply(b"404 page not found\n", 404, _TEXT)
    problems = {name: find_problem(check) for name, check in checks.items() if not chosen or name in chosen}
    if not any(problems.values()) and not verbose:
        return Reply(b"ok", headers=_TEXT)
    lines = [
        "[+]ping ok",
        *(f"[-]{name} failed: {why if reasons else 'reason withheld'}" if why else f"[+]{name} ok" for name, why in problems.items()),
    ]
    failed = any(problems.values())
    lines.append(f"{probe} check {'failed' if failed else 'passed'}")
    return Reply("\n".join([*lines, ""]).encode(), 500 if failed else 200, _TEXT)


def _selects_name(fields: str, name: str) -> bool:
    """Whether a field selector names the same object as the path."""
    terms = [term.replace("==", "=").partition("=") for term in fields.split(",")]
    return any(field == "metadata.name" and value == name for field, _, value in terms)
