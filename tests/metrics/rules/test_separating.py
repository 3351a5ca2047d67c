"""Proofs that one query serves all objects."""

import pytest
from tests.metrics.rules.making import DEPLOYMENT, NODE, POD, SUM, a_rule

from gpuscaler.metrics.rules.builtin import builtin_rules
from gpuscaler.metrics.rules.promql import PromqlError
from gpuscaler.metrics.rules.separating import is_scalar, prove, selectors

S = "<<.Series>>{<<.LabelMatchers>>}"
BY = "by (<<.GroupBy>>)"


@pytest.mark.parametrize(
    "query",
    [
        S,
        f"sum({S}) {BY}",
        f"sum {BY} ({S})",
        f'sum(rate(<<.Series>>{{<<.LabelMatchers>>,container!="POD"}}[2m])) {BY}',
        f"ceil(avg_over_time({S}[3m]))",
        f"avg({S}) {BY} / avg(limits{{<<.LabelMatchers>>}}) {BY} * 100",
        f"histogram_quantile(0.95, sum(rate({S}[5m])) by (le, <<.GroupBy>>))",
        f"quantile_over_time(0.9, {S}[10m]) > bool 3",
        f"max_over_time(sum({S}) {BY}[5m:30s] offset 1m)",
        f"sum({S}) {BY} or vector(0)",
        f"sum({S}) without (le, instance)",
        f"topk(1, {S}) {BY}",
        f"sum({S}) {BY} / on (<<.GroupBy>>) sum(other{{<<.LabelMatchers>>}}) {BY}",
        f"{S} unless on (<<.GroupBy>>) sum(other{{<<.LabelMatchers>>}}) {BY}",
        f"sum({S}) {BY} / scalar(sum(up))",
        f"-{S} ^ 2 + time() - 1e3",
        f"sum({S}) by (<<range $i, $l := .GroupBySlice>><<if $i>>,<<end>><<$l>><<end>>)",
        f'<<if eq .Series "x">>{S}<<else>>rate({S}[1m])<<end>>',
        f"sum({S} @ end()) {BY} # how much",
        f"clamp_max({S}, 100)",
        f"holt_winters({S}[1h], 0.5, 0.5)",
        f"double_exponential_smoothing({S}[1h], 0.5, 0.5)",
    ],
)
def test_one_query_is_proved_to_serve_all_objects_of_the_cluster(query: str) -> None:
    proof = prove(a_rule(query), "x", POD)
    assert (proof.breadth, proof.why) == ("cluster", "")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (f"sum({S}) by (pod)", "sum does not keep namespace"),
        (f"sum({S}) without (namespace)", "sum does not keep namespace"),
        (f"sum({S}) {BY} / on (pod) sum({S}) by (pod)", "sum does not keep namespace"),
    ],
)
def test_a_query_is_proved_to_serve_one_namespace_with_the_reason_why_not_all(query: str, why: str) -> None:
    proof = prove(a_rule(query), "x", POD)
    assert (proof.breadth, proof.why) == ("namespace", why)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (f"avg({S})", "avg does not keep pod"),
        (f"sum({S}) without (<<.GroupBy>>)", "sum does not keep pod"),
        (f"sum({S}) {BY} / avg({S})", "avg does not keep pod"),
        (f"topk(3, {S})", "topk does not keep pod"),
        (f"sum({S}) {BY} * on (<<.GroupBy>>) group_left kube_pod_info", "with series that are not the object's own"),
        (f"sum({S}) {BY} * on (<<.GroupBy>>) group_left other{{<<.LabelMatchers>>}}", "group_left"),
        (f"{S} * on (pod, namespace) other{{<<.LabelMatchers>>}}", "is not grouped by its labels"),
        (f"{S} / ignoring (le) other{{<<.LabelMatchers>>}}", "ignoring may fail for all"),
        (f"vector(0) or {S}", "comes before or"),
        (f'label_replace({S}, "pod", "$1", "exported_pod", "(.+)")', "label_replace() is not a function of one series"),
        (f"absent({S})", "absent() is not"),
        (f"{S} * scalar({S})", "scalar() is not"),
        (f'rate({{__name__=~"x|y",<<.LabelMatchers>>}}[5m]) + sum({S}) {BY}', "several metrics at once"),
        (f'count_values("v", {S}) {BY}', "count_values is not supported"),
        ("sum(up)", "series that are not the object's own"),
        ("vector(1)", "a vector without labels"),
        ("1", "a number"),
        (f"sum({S}", "expected PromQL: unclosed left parenthesis"),
        ('sum(x{pod=~"<<index .LabelValuesByName `pod`>>"}) by (pod)', "the template uses .LabelValuesByName"),
        (f"<<if eq .GroupBy `pod`>>sum({S}) {BY}<<end>>", "the template uses .GroupBy"),
        (f"<<$m := .LabelMatchers>>sum(x{{<<$m>>}}) {BY}", "the template uses .LabelMatchers"),
        (f"<<printf `sum(x{{%s}})` .LabelMatchers>> {BY}", "the template uses .LabelMatchers"),
    ],
)
def test_the_reason_why_a_query_needs_object_names_is_given(query: str, why: str) -> None:
    proof = prove(a_rule(query), "x", POD)
    assert proof.breadth == "names"
    assert why in proof.why


def test_a_query_needs_object_names_if_its_rule_has_no_label_for_resource_or_namespace() -> None:
    assert prove(a_rule(), "x", DEPLOYMENT).breadth == "names"
    assert prove(a_rule(resources={"overrides": {"pod": {"resource": "pod"}}}), "x", POD).breadth == "names"


def test_a_query_for_cluster_scoped_objects_needs_no_namespace() -> None:
    assert prove(a_rule(f"sum({S}) by (node)"), "x", NODE).breadth == "cluster"
    assert prove(a_rule(f"sum({S}) by (pod)"), "x", NODE).breadth == "names"


def test_every_built_in_rule_is_proved_to_serve_the_cluster_with_one_query() -> None:
    for rule in builtin_rules().rules:
        for label in ("pod", "node"):
            resource = POD if label == "pod" else NODE
            proof = prove(rule, "x", resource)
            assert proof.breadth == "cluster" or f"saw no label for {resource.text}" in proof.why, (rule.place, proof)


def test_the_series_that_a_query_reads_are_found() -> None:
    query = a_rule(f'sum(rate({S}[5m])) {BY} / sum(y{{<<.LabelMatchers>>,a="b"}}) {BY} + sum(rate({S}[1m])) {BY}').query(
        "x", resource=POD, namespace="n", names=["p"]
    )
    assert selectors(query) == {'x{namespace="n",pod="p"}': 300, 'y{namespace="n",pod="p",a="b"}': 0}
    with pytest.raises(PromqlError):
        selectors("sum(")


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("x", 0),
        ("rate(x[1h30m])", 5400),
        ("rate(x[90])", 90),
        ("x offset 500ms", 0.5),
        ("x offset -5m", 0),
        ("max_over_time(sum(rate(x[1m] offset 2m) + 1)[10m:5s])", 780),
        ("max_over_time((x + vector(0))[1d:] offset 1w)", 691_200),
    ],
)
def test_the_total_lookback_of_ranges_and_offsets_in_a_query_is_computed(query: str, seconds: float) -> None:
    assert selectors(query) == {"x": seconds}


@pytest.mark.parametrize(
    ("query", "scalar"),
    [
        ("1", True),
        ("scalar(sum(x)) / 2", True),
        ("-time()", True),
        ("(pi())", True),
        ("vector(1)", False),
        ("scalar(x) * x", False),
        ("-x", False),
    ],
)
def test_scalar_expressions_are_distinguished_from_vectors(query: str, scalar: bool) -> None:
    assert is_scalar(query) is scalar


def test_a_query_proved_for_the_cluster_is_the_one_sent_for_all_objects() -> None:
    rule = a_rule(SUM)
    assert prove(rule, "x", POD).breadth == "cluster"
    assert rule.wide_query("x", resource=POD) == 'sum(x{namespace!="",pod!=""}) by (pod,namespace)'
