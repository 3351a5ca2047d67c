"""Finds the broken link in the chain of a metric: facts in, texts out."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "broken", "unknown"]


class ExporterState(Struct, frozen=True):
    """One of our exporters. ``shows`` are the pods (``namespace/name``) on its page, None if the page could not be read."""

    pod: str
    ready: bool
    shows: frozenset[str] | None = None
    trouble: str = ""


class Facts(Struct, frozen=True, kw_only=True):
    """What is known about one metric of an autoscaler.

    ``pods`` are the running pods that it scales, with their nodes; ``values`` are the values that the API has, by pod. ``exporters`` are by
    node. ``service`` is the Service of the API, empty if there is no APIService; ``unavailable`` is why it cannot be reached. ``listed`` is
    whether the API lists the metric; if not, ``similar`` is a metric with a similar name that it lists. ``status`` and ``message`` are the
    answer to the request for its values; ``condition`` is that of the autoscaler.
    """

    kind: str
    metric: str
    namespace: str
    pods: Mapping[str, str] = {}
    values: Mapping[str, str] = {}
    exporters: Mapping[str, ExporterState] = {}
    service: str = ""
    unavailable: str = ""
    listed: bool = False
    similar: str = ""
    status: int = 200
    message: str = ""
    condition: tuple[str, str, str] = ("", "", "")


class Link(Struct, frozen=True):
    name: str
    verdict: Verdict
    text: str


def judge(facts: Facts) -> tuple[Link, ...]:
    """Judge each link from the GPU to the autoscaler."""
    return (_exporter(facts), _scrape(facts), _rule(facts), _api(facts), _autoscaler(facts))


def first_broken(links: tuple[Link, ...]) -> Link | None:
    """The first broken link; the links after it cannot work."""
    return next((link for link in links if link.verdict == "broken"), None)


def _exporter(facts: Facts) -> Link:
    if facts.kind != "Pods":
        return Link("exporter", "unknown", f"a metric of kind {facts.kind} does not come from the exporter")
    if not facts.exporters:
        return Link("exporter", "unknown", "no pod is labelled as an exporter of gpuscaler; assuming that another exporter is used")
    lacking = [name for name in facts.pods if name not in facts.values]
    for name in lacking:
        link = _exporter_of_pod(facts, name)
        if link is not None:
            return link
    shown = f"{len(facts.pods) - len(lacking)} of {len(facts.pods)} pods have values"
    return Link("exporter", "ok", f"{shown}; exporters show the others" if lacking else shown)


def _exporter_of_pod(facts: Facts, name: str) -> Link | None:
    """The problem of the exporter of a pod without a value; None if it shows the pod."""
    node = facts.pods[name]
    exporter = facts.exporters.get(node)
    if exporter is None:
        return Link(
            "exporter", "broken", f"no exporter runs on node {node} of pod {name}; see the DaemonSet's tolerations and node selector"
        )
    if not exporter.ready:
        return Link("exporter", "broken", f"pod {exporter.pod} on node {node} of pod {name} is not ready; see its log")
    if exporter.shows is None:
        return Link("exporter", "unknown", f"the page of pod {exporter.pod} cannot be read: {exporter.trouble}")
    if f"{facts.namespace}/{name}" not in exporter.shows:
        return Link(
            "exporter",
            "broken",
            f"pod {exporter.pod} on node {node} shows no GPU of pod {name}: the pod has none, or its GPUs are not known",
        )
    return None


def _scrape(facts: Facts) -> Link:
    if facts.unavailable or not facts.service:
        return Link("scrape", "unknown", "the API cannot be asked")
    if facts.status >= 500:
        return Link("scrape", "broken", f"{facts.message}; check that Prometheus runs and that the metrics API can reach it")
    if facts.kind != "Pods":
        values = [*facts.values.values()]
        return Link(
            "scrape", "ok" if values else "unknown", f"the value is {values[0]}" if len(values) == 1 else f"there are {len(values)} values"
        )
    lacking = sorted(name for name in facts.pods if name not in facts.values)
    if not lacking:
        return Link("scrape", "ok", "there are fresh samples")
    shown = [name for name in lacking if _is_shown(facts, name)]
    if shown and facts.listed:
        return Link("scrape", "broken", f"exporters show {_list_some(shown)} but there is no fresh sample; see the targets of Prometheus")
    if facts.listed:
        return Link("scrape", "unknown", f"no fresh sample of {_list_some(lacking)}")
    return Link("scrape", "unknown", "no such series is known; either nothing scrapes the series, or no rule uses it")


def _rule(facts: Facts) -> Link:
    if facts.unavailable or not facts.service:
        return Link("rule", "unknown", "the API cannot be asked")
    if facts.listed:
        return Link("rule", "ok", f"{facts.metric} is served")
    scope = "" if facts.kind == "External" else " of pods"
    if facts.similar:
        return Link("rule", "unknown", f"no rule makes {facts.metric}{scope}; rules make {facts.similar}")
    return Link(
        "rule",
        "broken",
        f"no rule makes {facts.metric}{scope} from the existing series; see the rules, and whether Prometheus has the series",
    )


def _api(facts: Facts) -> Link:
    if not facts.service:
        return Link("API", "broken", "there is no APIService for this group; install the metrics API")
    if facts.unavailable:
        return Link("API", "broken", f"{facts.service} does not answer: {facts.unavailable}")
    if facts.status in {401, 403}:
        return Link("API", "broken", facts.message)
    return Link("API", "ok", f"{facts.service} answers")


def _autoscaler(facts: Facts) -> Link:
    if facts.similar and not facts.listed:
        return Link("HPA", "broken", f"saw the metric {facts.metric}, expected one that is served; did you mean {facts.similar}?")
    status, reason, message = facts.condition
    if status == "False":
        return Link("HPA", "broken", f"{reason}: {message}")
    return Link("HPA", "ok" if status == "True" else "unknown", f"{reason}: {message}" if reason else "the autoscaler has not read it yet")


def _is_shown(facts: Facts, name: str) -> bool:
    exporter = facts.exporters.get(facts.pods[name])
    return exporter is not None and exporter.shows is not None and f"{facts.namespace}/{name}" in exporter.shows


def _list_some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
