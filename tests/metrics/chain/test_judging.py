"""Detection of the broken link, and its description."""

from typing import Any

import pytest

from gpuscaler.metrics.chain.judging import ExporterState, Facts, first_broken, judge

WELL = Facts(
    kind="Pods",
    metric="duty_cycle_current",
    namespace="ml",
    pods={"p0": "n0", "p1": "n1"},
    values={"p0": "40", "p1": "50"},
    exporters={"n0": ExporterState("gpu/e0", True, frozenset({"ml/p0"})), "n1": ExporterState("gpu/e1", True, frozenset({"ml/p1"}))},
    service="Service gpu/gpuscaler-metrics",
    listed=True,
    condition=("True", "ValidMetricFound", "the HPA was able to successfully calculate a replica count"),
)
FAILED = ("False", "FailedGetPodsMetric", "the HPA was unable to compute the replica count")


def facts(**changed: Any) -> Facts:
    return Facts(**{field: changed.get(field, getattr(WELL, field)) for field in Facts.__struct_fields__})


def test_without_problems_no_link_is_broken() -> None:
    links = judge(WELL)
    assert [link.verdict for link in links] == ["ok"] * 5
    assert first_broken(links) is None


@pytest.mark.parametrize(
    ("changed", "link", "phrase"),
    [
        ({"values": {"p0": "40"}, "exporters": {"n0": WELL.exporters["n0"]}}, "exporter", "no exporter runs on node n1 of pod p1"),
        ({"values": {}, "exporters": {"n0": ExporterState("gpu/e0", False)}}, "exporter", "gpu/e0 on node n0 of pod p0 is not ready"),
        (
            {"values": {"p1": "1"}, "exporters": {"n0": ExporterState("gpu/e0", True, frozenset())}},
            "exporter",
            "gpu/e0 on node n0 shows no GPU of pod p0",
        ),
        ({"values": {"p0": "40"}}, "scrape", "exporters show p1 but there is no fresh sample"),
        (
            {"values": {}, "status": 500, "message": "unable to fetch metrics: prometheus: cannot connect"},
            "scrape",
            "prometheus: cannot connect",
        ),
        ({"values": {}, "listed": False, "status": 404, "message": "could not find"}, "rule", "no rule makes duty_cycle_current of pods"),
        ({"values": {}, "service": ""}, "API", "there is no APIService"),
        ({"values": {}, "unavailable": "no endpoints"}, "API", "does not answer: no endpoints"),
        ({"values": {}, "status": 403, "message": "pods is forbidden", "exporters": {}}, "API", "pods is forbidden"),
        ({"condition": FAILED}, "HPA", "FailedGetPodsMetric: the HPA was unable"),
    ],
)
def test_the_first_broken_link_is_named(changed: dict[str, Any], link: str, phrase: str) -> None:
    worst = first_broken(judge(facts(**changed)))
    assert worst is not None
    assert worst.name == link
    assert phrase in worst.text


def test_a_link_that_cannot_be_checked_is_neither_ok_nor_broken() -> None:
    unread = facts(values={}, exporters={"n0": ExporterState("gpu/e0", True, None, "pods/proxy is forbidden")})
    assert judge(unread)[0].verdict == "unknown"
    assert "pods/proxy is forbidden" in judge(unread)[0].text
    others = judge(facts(exporters={}))
    assert (others[0].verdict, others[1].verdict) == ("unknown", "ok")
    queue = judge(facts(kind="External", metric="queue_length", pods={}, values={"{}": "5"}))
    assert [link.verdict for link in queue] == ["unknown", "ok", "ok", "ok", "ok"]
    assert queue[1].text == "the value is 5"
    queues = judge(facts(kind="External", metric="queue_length", pods={}, values={"a": "5", "b": "6"}))
    assert queues[1].text == "there are 2 values"


def test_a_description_names_only_the_first_of_many_pods() -> None:
    pods = {f"p{number}": "n0" for number in range(10)}
    shown = ExporterState("gpu/e0", True, frozenset(f"ml/{name}" for name in pods))
    worst = first_broken(judge(facts(pods=pods, values={}, exporters={"n0": shown})))
    assert worst is not None
    assert "p0, p1, p2 and 7 more" in worst.text
