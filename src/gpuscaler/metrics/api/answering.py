"""Answers to authorized requests: metrics, discovery, health."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gpuscaler.metrics.api.documents import bodies, discovery, openapi, statuses
from gpuscaler.metrics.api.identity import Headers
from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL, VERSIONS, Asked, Metric, Query
from gpuscaler.metrics.rules.resources import RESOURCES_BY_TEXT, mapped
from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, Rejected, Source, Unavailable, UnknownMetric, Value
from gpuscaler.model.selector_text import SelectorError, Term, parse_terms
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.serving.health import Check, said

_TEXT: Mapping[str, str] = {"Content-Type": "text/plain; charset=utf-8"}
#: Limits of the cache of encoded answers: entries, bytes, and the length of a selector.
_MOST, _MOST_BYTES, _SHORT = 2048, 64 * 2**20, 2048


class Reply(NamedTuple):
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}


class _Question(NamedTuple):
    """The selectors of a query, parsed."""

    objects: LabelSelector
    series: LabelSelector
    terms: tuple[Term, ...]


@dataclass(slots=True)
class Answering:
    """Answers requests from ``source``. ``alive`` and ``ready`` are checks by name; ``pages`` are further pages by path.

    Of the two API groups only those in ``groups`` are served.
    """

    source: Source
    alive: Mapping[str, Check] = field(default_factory=dict)
    ready: Mapping[str, Check] = field(default_factory=dict)
    pages: Mapping[str, Callable[[Headers], Reply]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset(VERSIONS)
    _questions: dict[Query, _Question] = field(default_factory=dict, init=False)
    _encoded: dict[tuple[Metric, Query], tuple[Sequence[Value], bytes]] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)
    #: The metrics that the source serves, and their resources.
    _known: tuple[Sequence[MetricInfo], frozenset[str]] = field(default=((), frozenset()), init=False)

    async def answer(self, asked: Asked, headers: Headers, *, known: bool = True) -> Reply:
        """The answer to ``asked``. Callers that are not ``known`` get no reasons for failed probes. Raises :class:`~.statuses.Failure`."""
        metric = asked.metric
        if metric is not None and metric.group in self.groups:
            # An external metric has no object, so authorization sees reading it as a list.
            if asked.attributes.verb not in ("get", "list"):
                raise statuses.method_not_allowed(asked.attributes)
            return await self._metric(metric, asked.query)
        if asked.attributes.verb not in ("get", "list", "head"):
            raise statuses.method_not_allowed(asked.attributes)
        if asked.invalid and asked.parts[1] in self.groups:
            raise statuses.bad_request(asked.invalid)
        return self._page(asked, headers, known=known)

    async def _metric(self, metric: Metric, query: Query) -> Reply:
        question = self._question(query, metric)
        asked, metric = metric, self._mapped(metric)
        values = await self._values(metric, question, asked)
        key = metric, query
        held = self._encoded.get(key)
        if held is not None and held[0] is values:
            return Reply(held[1])
        body = bodies.external(metric, values) if metric.group == EXTERNAL else bodies.custom(metric, values, question.terms)
        if query.pretty:
            body = msgspec.json.format(body, indent=2)
        # If a source returns the same tuple twice, nothing changed; the same list could have changed.
        if isinstance(values, tuple) and len(query.labels) + len(query.metric_labels) <= _SHORT:
            self._bytes += len(body) - (len(self._encoded.pop(key)[1]) if held is not None else 0)
            if len(self._encoded) >= _MOST or self._bytes > _MOST_BYTES:
                self._encoded.clear()
                self._bytes = len(body)
            self._encoded[key] = values, body
        return Reply(body)

    def _question(self, query: Query, metric: Metric) -> _Question:
        question = self._questions.get(query)
        if question is None:
            try:
                terms = parse_terms(query.metric_labels)
                objects = LabelSelector(tuple(term.requirement for term in parse_terms(query.labels)))
            except SelectorError as error:
                raise statuses.bad_request(str(error)) from error
            series = LabelSelector(tuple(term.requirement for term in terms)) if terms else EVERYTHING
            question = _Question(objects, series, terms)
            if len(self._questions) >= _MOST:
                self._questions.clear()
            if len(query.labels) + len(query.metric_labels) <= _SHORT:
                self._questions[query] = question
        if query.fields and metric.group == CUSTOM and not _selects(query.fields, metric.name):
            raise statuses.bad_request("fieldSelector metadata.name doesn't match requested name")
        return question

    def _mapped(self, metric: Metric) -> Metric:
        """``metric`` with its full resource name: clients may omit or shorten the group, and use the singular for the plural."""
        text = metric.group_resource
        if metric.group == EXTERNAL or text in RESOURCES_BY_TEXT:
            return metric
        infos = self.source.custom_metrics()
        if infos is not self._known[0]:
            self._known = infos, frozenset(metric_info.group_resource for metric_info in infos)
        found = mapped(text, self._known[1])
        return metric if found == text else replace(metric, group_resource=found)

    async def _values(self, metric: Metric, question: _Question, asked: Metric) -> Sequence[Value]:
        """The values of ``metric``. Errors name the resource as the client did in ``asked``."""
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
            raise self._unknown(metric, str(error), asked.group_resource) from error
        except Unavailable as error:
            raise statuses.internal(": ".join(filter(None, ("unable to fetch metrics", str(error))))) from error
        except Rejected as error:
            raise statuses.bad_request(str(error)) from error
        return (value,)

    def _unknown(self, metric: Metric, why: str, resource: str) -> statuses.Failure:
        if metric.group == EXTERNAL:
            return statuses.not_found_external(metric.metric, metric.namespace, why)
        served = any(
            metric_info.metric == metric.metric and metric_info.group_resource == metric.group_resource
            for metric_info in self.source.custom_metrics()
        )
        return statuses.not_found(resource, metric.metric, metric.name if served and metric.name != "*" else "", why)

    def _page(self, asked: Asked, headers: Headers, *, known: bool) -> Reply:
        match asked.parts:
            case ():
                return Reply(msgspec.json.encode({"paths": sorted(self._paths())}))
            case ("apis",):
                return self._groups(headers)
            case ("apis", group) if group in self.groups:
                return Reply(discovery.group(group))
            case ("apis", group, version) if group in self.groups and version in VERSIONS[group]:
                source = self.source
                custom, external = (source.custom_metrics(), ()) if group == CUSTOM else ((), source.external_metrics())
                return Reply(discovery.resource_list(group, version, custom=custom, external=external))
            case ("openapi", "v2"):
                return _tagged(openapi.version_2(sorted(self.groups)), headers)
            case ("openapi", "v3"):
                return Reply(openapi.index(sorted(self.groups)))
            case ("openapi", "v3", "apis", group, version) if group in self.groups and version in VERSIONS[group]:
                return _tagged(openapi.version_3(group, version), headers)
            case ("healthz" | "livez" as probe, *check):
                return health(probe, self.alive, check, verbose=asked.verbose, reasons=known)
            case ("readyz", *check):
                return health("readyz", {**self.alive, **self.ready}, check, verbose=asked.verbose, reasons=known)
        page = self.pages.get(asked.attributes.path)
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
            return Reply(discovery.group_list(one for one in VERSIONS if one in self.groups), headers={"Vary": "Accept"})
        custom = self.source.custom_metrics() if CUSTOM in self.groups else None
        external = self.source.external_metrics() if EXTERNAL in self.groups else None
        body = discovery.aggregated(version, custom, external)
        return _tagged(body, headers, {"Content-Type": discovery.content_type(version), "Vary": "Accept"})


def _tagged(body: bytes, headers: Headers, more: Mapping[str, str] = {}) -> Reply:
    """A reply with ``body``, or 304 if the client already has it."""
    told = {**more, "ETag": discovery.etag(body)}
    if headers.get("If-None-Match") == told["ETag"]:
        return Reply(b"", 304, told)
    return Reply(body, headers=told)


def health(probe: str, checks: Mapping[str, Check], chosen: Sequence[str], *, verbose: bool, reasons: bool) -> Reply:
    """Answer a probe as API servers do: ``ok`` alone, or a line for each check if the client asks for it or a check fails.

    ``reasons``: whether failures are explained. Explanations contain addresses and errors of other servers, so not every caller may see
    them.
    """
    if chosen and (len(chosen) > 1 or chosen[0] not in {*checks, "ping"}):
        return Reply(b"404 page not found\n", 404, _TEXT)
    wrong = {name: said(check) for name, check in checks.items() if not chosen or name in chosen}
    if not any(wrong.values()) and not verbose:
        return Reply(b"ok", headers=_TEXT)
    lines = [
        "[+]ping ok",
        *(f"[-]{name} failed: {why if reasons else 'reason withheld'}" if why else f"[+]{name} ok" for name, why in wrong.items()),
    ]
    failed = any(wrong.values())
    lines.append(f"{probe} check {'failed' if failed else 'passed'}")
    return Reply("\n".join([*lines, ""]).encode(), 500 if failed else 200, _TEXT)


def _selects(fields: str, name: str) -> bool:
    """Whether a field selector names the same object as the path."""
    wanted = [one.replace("==", "=").partition("=") for one in fields.split(",")]
    return any(field == "metadata.name" and value == name for field, _, value in wanted)
