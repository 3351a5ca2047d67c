"""The queries of a rule to Prometheus."""

import pytest
from tests.metrics.rules.making import DEPLOYMENT, NAMESPACE, NODE, POD, a_rule, entry, rule_set

from gpuscaler.metrics.rules.matchers import QueryError
from gpuscaler.model.selector_text import parse_selector
from gpuscaler.model.selectors import Requirement


def selector(text: str) -> tuple[Requirement, ...]:
    return parse_selector(text).requirements


def test_a_query_selects_one_pod_by_equality_and_several_by_a_regular_expression() -> None:
    rule = a_rule()
    assert rule.query("x", resource=POD, namespace="a", names=["p"]) == 'sum(x{namespace="a",pod="p"}) by (pod)'
    assert rule.query("x", resource=POD, namespace="a", names=["p", "q"]) == 'sum(x{namespace="a",pod=~"p|q"}) by (pod)'


def test_a_query_for_cluster_scoped_objects_has_no_namespace_matcher() -> None:
    assert a_rule().query("x", resource=NODE, names=["n"]) == 'sum(x{node="n"}) by (node)'


def test_a_query_has_the_series_selector_first_then_the_namespace_then_names() -> None:
    asked = a_rule("<<.LabelMatchers>>").query(
        "x", resource=POD, namespace="a", names=["p"], selector=selector("q=b,r!=c,s in (d,e),t notin (f,g),u,!v")
    )
    assert asked == 'q="b",r!="c",s=~"d|e",t!~"f|g",u!="",v="",namespace="a",pod="p"'


def test_a_metric_selector_that_compares_numbers_is_refused() -> None:
    with pytest.raises(QueryError, match="saw a Gt 1, expected"):
        a_rule().query("x", resource=POD, names=["p"], selector=selector("a>1"))


def test_a_query_groups_by_additional_labels_on_request() -> None:
    rule = a_rule("<<.GroupBy>>/<<range .GroupBySlice>><<.>>;<<end>>")
    assert rule.query("x", resource=POD, names=["p"], extra=["container"]) == "pod,container/pod;container;"


def test_the_label_template_gets_the_group_with_escaped_characters() -> None:
    rule = a_rule("<<.GroupBy>>", resources={"template": "kube_<<.Group>>_<<.Resource>>"})
    assert rule.query("x", resource=DEPLOYMENT, names=["p"]) == "kube_apps_deployment"


def test_the_error_names_the_label_that_the_rule_lacks() -> None:
    rule = a_rule(resources={"overrides": {"pod": {"resource": "pod"}}})
    with pytest.raises(QueryError, match=r"rules\[0\]: saw no label for namespaces, expected one in the rule's resources"):
        rule.query("x", resource=POD, namespace="a", names=["p"])


def test_the_error_says_why_a_query_template_cannot_be_rendered() -> None:
    with pytest.raises(QueryError, match=r"rules\[0\]: metricsQuery: saw index 3 of a list of 1"):
        a_rule("<<index .GroupBySlice 3>>").query("x", resource=POD, names=["p"])
    with pytest.raises(QueryError, match="saw an empty query for x"):
        a_rule('<<if eq .Series "y">>y<<end>>').query("x", resource=POD, names=["p"])


def test_a_cluster_wide_query_groups_by_namespace_and_object() -> None:
    rule = a_rule()
    assert rule.wide_query("x", resource=POD) == 'sum(x{namespace!="",pod!=""}) by (pod,namespace)'
    assert rule.wide_query("x", resource=POD, namespace="a") == 'sum(x{namespace="a",pod!=""}) by (pod)'
    assert rule.wide_query("x", resource=NODE) == 'sum(x{node!=""}) by (node)'
    assert rule.wide_query("x", resource=NAMESPACE, selector=selector("a=b")) == 'sum(x{a="b",namespace!=""}) by (namespace)'


def test_an_external_metric_is_selected_in_its_namespace_unless_the_rule_is_not_namespaced() -> None:
    query = "sum(<<.Series>>{<<.LabelMatchers>>})"
    (bound,) = rule_set(external=(entry(query),)).external
    (free,) = rule_set(external=(entry(query, resources={"namespaced": False}),)).external
    assert bound.external_query("x", namespace="a", selector=selector("q=b")) == 'sum(x{q="b",namespace="a"})'
    assert free.external_query("x", namespace="a") == "sum(x{})"


def test_values_in_queries_are_quoted_for_promql() -> None:
    asked = a_rule("<<.LabelMatchers>>").query("x", resource=POD, names=['a"b\\c\n'])
    assert asked == r'pod="a\"b\\c\n"'
