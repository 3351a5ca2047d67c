"""What is known of a metric's way, and which link of it is broken: data in, words out."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "broken", "unknown"]


class Exporter(Struct, frozen=True):
    """One of our exporters. ``shows`` are the pods (``namespace/name``) on its page, None where that could not be read."""

    pod: str
    ready: bool
    shows: frozenset[str] | None = None
    trouble: str = ""


class Facts(Struct, frozen=True, kw_only=True):
    """What was found of one metric of an autoscaler.

    ``pods`` are the running pods that it scales, with their nodes; ``values`` those that the API has a number of. ``exporters`` are by
    node. ``service`` is where the API leads, empty where there is no APIService; ``unavailable`` why it does not get there. ``listed`` is
    whether the API knows the metric. ``status`` and ``message`` are of the question for its values, ``condition`` of the autoscaler.
    """

    kind: str
    metric: str
    namespace: str
    pods: Mapping[str, str] = {}
    values: Mapping[str, str] = {}
    exporters: Mapping[str, Exporter] = {}
    service: str = ""
    unavailable: str = ""
    listed: bool = False
    status: int = 200
    message: str = ""
    condition: tuple[str, str, str] = ("", "", "")


class Link(Struct, frozen=True):
    name: str
    verdict: Verdict
    text: str


def judge(facts: Facts) -> tuple[Link, ...]:
    """Each link from the GPU to the autoscaler."""
    return (_exporter(facts), _scrape(facts), _rule(facts), _api(facts), _autoscaler(facts))


def broken(links: tuple[Link, ...]) -> Link | None:
    """The first link that is broken: what follows it cannot be whole."""
    return next((link for link in links if link.verdict == "broken"), None)


def _exporter(facts: Facts) -> Link:
    if facts.kind != "Pods":
        return Link("exporter", "unknown", f"a metric of kind {facts.kind} comes from elsewhere")
    if not facts.exporters:
        return Link("exporter", "unknown", "no pod is labelled as an exporter of gpuscaler: another one is taken for granted")
    lacking = [name for name in facts.pods if name not in facts.values]
    for name in lacking:
        found = _of_pod(facts, name)
        if found is not None:
            return found
    shown = f"{len(facts.pods) - len(lacking)} of {len(facts.pods)} pods have values"
    return Link("exporter", "ok", f"{shown}, and exporters show the others" if lacking else shown)


def _of_pod(facts: Facts, name: str) -> Link | None:
    """What is wrong with the exporter of a pod without a value; None where it shows the pod."""
    node = facts.pods[name]
    exporter = facts.exporters.get(node)
    if exporter is None:
        return Link("exporter", "broken", f"none runs on node {node} of pod {name}; see the DaemonSet's tolerations and node selector")
    if not exporter.ready:
        return Link("exporter", "broken", f"pod {exporter.pod} on node {node}, where pod {name} is, is not ready; see its log")
    if exporter.shows is None:
        return Link("exporter", "unknown", f"the page of pod {exporter.pod} cannot be read: {exporter.trouble}")
    if f"{facts.namespace}/{name}" not in exporter.shows:
        return Link("exporter", "broken", f"pod {exporter.pod} on node {node} shows no GPU of pod {name}: it has none, or is not known")
    return None


def _scrape(facts: Facts) -> Link:
    if facts.unavailable or not facts.service:
        return Link("scrape", "unknown", "the API cannot be asked")
    if facts.status >= 500:
        return Link("scrape", "broken", f"{facts.message}; see that Prometheus is there and can be reached from the metrics API")
    if facts.kind != "Pods":
        told = [*facts.values.values()]
        return Link("scrape", "ok" if told else "unknown", f"the value is {told[0]}" if len(told) == 1 else f"there are {len(told)} values")
    lacking = sorted(name for name in facts.pods if name not in facts.values)
    if not lacking:
        return Link("scrape", "ok", "there are fresh samples")
    shown = [name for name in lacking if _shows(facts, name)]
    if shown and facts.listed:
        return Link("scrape", "broken", f"exporters show {_some(shown)} and there is no fresh sample; see the targets of Prometheus")
    if facts.listed:
        return Link("scrape", "unknown", f"no fresh sample of {_some(lacking)}")
    return Link("scrape", "unknown", "no such series is known; either nobody scrapes it or no rule takes it")


def _rule(facts: Facts) -> Link:
    if facts.unavailable or not facts.service:
        return Link("rule", "unknown", "the API cannot be asked")
    if facts.listed:
        return Link("rule", "ok", f"{facts.metric} is served")
    what = "" if facts.kind == "External" else " of pods"
    return Link(
        "rule", "broken", f"nothing makes {facts.metric}{what} of the series that there are; see the rules, and whether Prometheus has them"
    )


def _api(facts: Facts) -> Link:
    if not facts.service:
        return Link("API", "broken", "there is no APIService for it; install the metrics API")
    if facts.unavailable:
        return Link("API", "broken", f"{facts.service} does not answer: {facts.unavailable}")
    if facts.status in {401, 403}:
        return Link("API", "broken", facts.message)
    return Link("API", "ok", f"{facts.service} answers")


def _autoscaler(facts: Facts) -> Link:
    status, reason, message = facts.condition
    if status == "False":
        return Link("HPA", "broken", f"{reason}: {message}")
    return Link("HPA", "ok" if status == "True" else "unknown", f"{reason}: {message}" if reason else "it has not looked yet")


def _shows(facts: Facts, name: str) -> bool:
    exporter = facts.exporters.get(facts.pods[name])
    return exporter is not None and exporter.shows is not None and f"{facts.namespace}/{name}" in exporter.shows


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
