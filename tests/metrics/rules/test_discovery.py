"""Metrics that rules make from the existing series."""

from tests.metrics.rules.making import OVERRIDES, entry, rule_set, series

ALL = "{pod!=''}"


def test_serves_a_series_for_every_resource_among_its_labels() -> None:
    found = rule_set(entry()).discover({ALL: [series("up", "pod", "namespace", "node", "uuid")]})
    assert sorted(found.custom) == [("namespaces", "up"), ("nodes", "up"), ("pods", "up")]
    assert found.custom["pods", "up"].series == "up"
    assert found.silent == ()


def test_filters_by_every_filter_and_by_the_name() -> None:
    rules = rule_set(entry(seriesFilters=[{"is": "^gpu_"}, {"isNot": "_total$"}], name={"matches": "^gpu_(use|total_x)"}))
    names = ["gpu_use", "gpu_total", "cpu_use", "gpu_total_x", "gpu_heat"]
    found = rules.discover({ALL: [series(name, "pod") for name in names]})
    assert sorted(metric for _, metric in found.custom) == ["total_x", "use"]


def test_the_later_of_two_rules_is_used() -> None:
    rules = rule_set(entry(name={"matches": "^a$", "as": "use"}), entry(seriesQuery="b", name={"matches": "^b$", "as": "use"}))
    one, both = {ALL: [series("a", "pod")]}, {ALL: [series("a", "pod")], "b": [series("b", "pod")]}
    assert rules.discover(one).custom["pods", "use"].series == "a"
    assert rules.discover(both).custom["pods", "use"].series == "b"


def test_a_query_without_an_answer_removes_only_its_own_metrics() -> None:
    rules = rule_set(entry(), entry(seriesQuery="gone", name={"matches": "^x$"}))
    found = rules.discover({ALL: [series("up", "pod")], "gone": []})
    assert list(found.custom) == [("pods", "up")]
    assert [rule.place for rule in found.silent] == ["rules[1]"]
    assert list(rules.discover({ALL: [series("up", "pod")]}).custom) == [("pods", "up")]


def test_an_empty_name_makes_no_metric() -> None:
    rules = rule_set(entry(name={"matches": "^(up)$", "as": "$1_x"}), external=(entry(name={"matches": "^(up)$", "as": "$1_x"}),))
    found = rules.discover({ALL: [series("up", "pod")]})
    assert (found.custom, found.external) == ({}, {})
    assert len(found.silent) == 2


def test_external_metrics_have_no_resource() -> None:
    rules = rule_set(external=(entry(name={"matches": "^queue_(.*)$"}),))
    found = rules.discover({ALL: [series("queue_length"), series("other")]})
    assert list(found.external) == ["length"]
    assert found.external["length"].resource is None
    assert found.custom == {}


def test_series_of_one_metric_may_have_labels_of_different_resources() -> None:
    found = rule_set(entry()).discover({ALL: [series("up", "pod"), series("up", "node"), series("up", "pod")]})
    assert sorted(found.custom) == [("nodes", "up"), ("pods", "up")]


def test_labels_that_match_the_template_without_a_resource_are_ignored() -> None:
    rules = rule_set(entry(resources={"template": "<<.Resource>>", "overrides": {"team": {"resource": "namespace"}}}))
    found = rules.discover({ALL: [series("up", "pod", "job", "instance", "team", "deployment")]})
    assert sorted(resource for resource, _ in found.custom) == ["deployments.apps", "jobs.batch", "namespaces", "pods"]
    assert OVERRIDES["pod"] == {"resource": "pod"}
