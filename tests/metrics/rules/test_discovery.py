"""Metrics that rules make from the existing series."""

from tests.metrics.rules.making import OVERRIDES, entry, rule_set, series

ALL = "{pod!=''}"


def test_a_series_is_served_for_every_resource_among_its_labels() -> None:
    discovery = rule_set(entry()).discover({ALL: [series("up", "pod", "namespace", "node", "uuid")]})
    assert sorted(discovery.custom) == [("namespaces", "up"), ("nodes", "up"), ("pods", "up")]
    assert discovery.custom["pods", "up"].series == "up"
    assert discovery.silent == ()


def test_series_are_selected_by_all_filters_and_by_the_name() -> None:
    rules = rule_set(entry(seriesFilters=[{"is": "^gpu_"}, {"isNot": "_total$"}], name={"matches": "^gpu_(use|total_x)"}))
    names = ["gpu_use", "gpu_total", "cpu_use", "gpu_total_x", "gpu_heat"]
    discovery = rules.discover({ALL: [series(name, "pod") for name in names]})
    assert sorted(metric for _, metric in discovery.custom) == ["total_x", "use"]


def test_the_later_of_two_rules_for_one_metric_is_used() -> None:
    rules = rule_set(entry(name={"matches": "^a$", "as": "use"}), entry(seriesQuery="b", name={"matches": "^b$", "as": "use"}))
    single, both = {ALL: [series("a", "pod")]}, {ALL: [series("a", "pod")], "b": [series("b", "pod")]}
    assert rules.discover(single).custom["pods", "use"].series == "a"
    assert rules.discover(both).custom["pods", "use"].series == "b"


def test_a_series_query_without_an_answer_removes_only_its_own_metrics() -> None:
    rules = rule_set(entry(), entry(seriesQuery="gone", name={"matches": "^x$"}))
    discovery = rules.discover({ALL: [series("up", "pod")], "gone": []})
    assert list(discovery.custom) == [("pods", "up")]
    assert [rule.place for rule in discovery.silent] == ["rules[1]"]
    assert list(rules.discover({ALL: [series("up", "pod")]}).custom) == [("pods", "up")]


def test_a_rule_whose_name_template_yields_an_empty_name_makes_no_metric() -> None:
    rules = rule_set(entry(name={"matches": "^(up)$", "as": "$1_x"}), external=(entry(name={"matches": "^(up)$", "as": "$1_x"}),))
    discovery = rules.discover({ALL: [series("up", "pod")]})
    assert (discovery.custom, discovery.external) == ({}, {})
    assert len(discovery.silent) == 2


def test_external_metrics_have_no_resource() -> None:
    rules = rule_set(external=(entry(name={"matches": "^queue_(.*)$"}),))
    discovery = rules.discover({ALL: [series("queue_length"), series("other")]})
    assert list(discovery.external) == ["length"]
    assert discovery.external["length"].resource is None
    assert discovery.custom == {}


def test_series_of_one_metric_may_have_labels_of_different_resources() -> None:
    discovery = rule_set(entry()).discover({ALL: [series("up", "pod"), series("up", "node"), series("up", "pod")]})
    assert sorted(discovery.custom) == [("nodes", "up"), ("pods", "up")]


def test_labels_that_match_the_template_without_a_resource_are_ignored() -> None:
    rules = rule_set(entry(resources={"template": "<<.Resource>>", "overrides": {"team": {"resource": "namespace"}}}))
    discovery = rules.discover({ALL: [series("up", "pod", "job", "instance", "team", "deployment")]})
    assert sorted(resource for resource, _ in discovery.custom) == ["deployments.apps", "jobs.batch", "namespaces", "pods"]
    assert OVERRIDES["pod"] == {"resource": "pod"}
