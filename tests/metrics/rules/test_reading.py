"""Files of rules: which rules are used, which are left out, and the messages about them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.metrics.rules.making import OVERRIDES, SUM, entry, rule_set

from gpuscaler.metrics.rules.reading import DEFAULT_QUERY, RuleSet, read_rules
from gpuscaler.metrics.rules.resources import WELL_KNOWN, Resource, Resources
from gpuscaler.model.reading.errors import SettingsError


def only_problem(rules: RuleSet) -> str:
    (problem,) = rules.problems
    return f"{problem.path}: {problem.message}"


def test_every_rule_field_of_prometheus_adapter_is_accepted() -> None:
    rules = read_rules("""
rules:
- seriesQuery: '{__name__=~"^container_.*",pod!=""}'
  seriesFilters:
  - is: ^container_.*_total
  - isNot: _seconds_total$
  resources:
    template: kube_<<.Group>>_<<.Resource>>
    overrides:
      team: {resource: namespace}
      microservice: {group: apps, resource: deployment}
    namespaced: false
  name:
    matches: ^container_(.*)_total$
    as: ${1}_per_second
  metricsQuery: sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)
""")
    assert (rules.problems, rules.notes) == ((), ())
    (rule,) = rules.rules
    assert rule.accepts("container_network_total")
    assert not rule.accepts("container_cpu_seconds_total")
    assert rule.metric("container_network_total") == "network_per_second"
    assert [resource.text for resource in rule.labelling.resources({"team", "microservice", "kube_batch_job", "image"})] == [
        "jobs.batch",
        "deployments.apps",
        "namespaces",
    ]
    assert not rule.namespaced


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "rules: []\n", "rules:\nexternalRules:\n"])
def test_a_file_without_rules_is_accepted(text: str) -> None:
    assert read_rules(text) == RuleSet()


@pytest.mark.parametrize(("text", "why"), [("rules: [", "not YAML"), ("- a\n", "a mapping"), ("a: 1\na: 2\n", "second time")])
def test_a_file_that_is_not_a_mapping_is_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"rules.yaml.*{why}"):
        read_rules(text, source="rules.yaml")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metricQuery": "x"}, "rules[0].metricQuery: unknown key; did you mean metricsQuery?"),
        ({"seriesQuery": None}, "rules[0]: saw no seriesQuery"),
        ({"seriesFilters": [{"is": "a", "isNot": "b"}]}, "rules[0].seriesFilters[0]: saw both, expected one of is and isNot"),
        ({"seriesFilters": [{}]}, "rules[0].seriesFilters[0]: saw neither is nor isNot"),
        ({"seriesFilters": [{"is": "("}]}, 'rules[0].seriesFilters[0].is: saw "(", expected a regular expression'),
        ({"name": {"matches": "(?!x)"}}, 'rules[0].name.matches: saw "(?!x)", expected a regular expression'),
        ({"name": {"matches": "(a)(b)"}}, "rules[0].name: saw 2 groups in matches, expected as: with the name of the metric"),
        ({"resources": {"overrides": {"x": {"resource": "turbine"}}}}, "rules[0].resources.overrides.x.resource: saw turbine"),
        ({"resources": {"overrides": {"x": {"group": "apps"}}}}, "rules[0].resources.overrides.x: saw no resource"),
        ({"resources": {"template": "<<.Kind>>"}}, "rules[0].resources.template: saw .Kind, expected one of .Group, .Resource"),
        ({"resources": {"template": "pod"}}, 'rules[0].resources.template: saw "pod", expected <<.Resource>> in it'),
        ({"resources": {"namespaced": "maybe"}}, "rules[0].resources.namespaced: saw"),
        ({"metricsQuery": "sum(<<.Series>)"}, "rules[0].metricsQuery: line 1: saw"),
        ({"metricsQuery": "<<call .Series>>"}, "rules[0].metricsQuery: line 1: saw call, which is not supported here"),
        ({"metricsQuery": ["x"]}, "rules[0].metricsQuery: saw a list, expected text"),
    ],
)
def test_an_invalid_rule_is_left_out_and_its_error_named(change: dict[str, Any], says: str) -> None:
    rules = rule_set(entry(**change), entry())
    assert only_problem(rules).startswith(says)
    assert [rule.place for rule in rules.rules] == ["rules[1]"]


def test_external_rules_are_kept_if_custom_rules_are_invalid() -> None:
    rules = rule_set(entry(name={"matches": "("}), external=(entry(),))
    assert len(rules.problems) == 1
    assert [rule.place for rule in rules.external] == ["externalRules[0]"]


def test_a_misspelled_top_level_key_is_named_and_the_rules_are_kept() -> None:
    rules = read_rules(yaml.safe_dump({"rules": [entry()], "externalRule": []}))
    assert only_problem(rules) == "externalRule: unknown key; did you mean externalRules?"
    assert len(rules.rules) == 1


@pytest.mark.parametrize("text", ["cloud: aws\npools:\n- name: gpu\n", "externalRule: []\n", "cloud: aws\nrules:\n"])
def test_a_file_without_any_key_of_a_file_of_rules_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_rules(text, source="run.yaml")
    message = str(caught.value)

    assert "run.yaml: saw none of rules, externalRules, resourceRules, expected rules in the format of prometheus-adapter" in message
    assert "run.yaml:1: " in message
    assert "unknown key" in message


def test_a_group_reference_that_includes_the_following_text_causes_a_warning() -> None:
    rules = rule_set(entry(name={"matches": "^(.*)_total$", "as": "$1_per_second"}))
    (note,) = rules.notes
    assert note.path == "rules[0].name.as"
    assert "write ${1}_per_second" in note.message
    assert rules.rules[0].metric("http_requests_total") == ""


def test_two_labels_for_one_resource_cause_a_warning_and_the_later_is_used() -> None:
    rules = rule_set(entry(resources={"overrides": {"exported_pod": {"resource": "pod"}, "pod": {"resource": "pods"}}}))
    assert "exported_pod and pod are both pods: queries use pod" in rules.notes[0].message
    assert rules.rules[0].label(Resource("pods", "pod")) == "pod"


def test_a_note_says_that_resource_metric_rules_are_not_served() -> None:
    rules = read_rules("resourceRules:\n  cpu: {containerQuery: x, nodeQuery: y, containerLabel: container}\n  window: 3m\n")
    assert [(note.path, note.line) for note in rules.notes] == [("resourceRules", 1)]
    assert not rules.problems


def test_a_rule_without_a_metrics_query_uses_the_plain_series() -> None:
    rules = rule_set(entry(query=""))
    assert rules.rules[0].template.source == DEFAULT_QUERY


def test_numbers_and_booleans_in_text_fields_are_read_as_written() -> None:
    rules = read_rules("rules:\n- {seriesQuery: up, name: {matches: 1_000, as: true}, metricsQuery: 010}\n")
    assert rules.rules[0].metric("a1_000") == "true"
    assert rules.rules[0].template.render({}) == "010"


def test_custom_resources_with_a_group_are_accepted_with_a_note_on_the_assumed_names() -> None:
    rules = rule_set(entry(resources={"overrides": {"rollout": {"group": "argoproj.io", "resource": "rollout"}}}))
    assert not rules.problems
    assert "rollouts.argoproj.io is not a built-in resource" in rules.notes[0].message
    assert [resource.text for resource in rules.rules[0].labelling.resources(["rollout"])] == ["rollouts.argoproj.io"]


def test_additional_resources_are_known_if_given() -> None:
    text = yaml.safe_dump({"rules": [entry(resources={"overrides": {"rollout": {"resource": "rollout"}}})]})
    assert read_rules(text).problems
    resources = Resources((*WELL_KNOWN, Resource("rollouts", "rollout", "argoproj.io")))
    assert not read_rules(text, resources=resources).problems


def test_each_series_query_is_listed_once() -> None:
    rules = rule_set(entry(), entry(SUM), entry(seriesQuery="up"), external=(entry(seriesQuery="up"),))
    assert rules.series_queries == ("{pod!=''}", "up")


def test_a_yaml_file_with_exponentially_expanding_aliases_is_refused() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join(['*' + old] * 10)}]\n" for old, new in zip("abcdef", "bcdefg", strict=True)
    )
    rules = read_rules(f"{bomb}rules: *g\n")
    assert not rules.rules
    assert rules.problems


def test_the_example_rules_of_the_documentation_are_read() -> None:
    rules = read_rules((Path(__file__).parents[3] / "docs" / "examples" / "metrics-rules.yaml").read_text(encoding="utf-8"))
    assert (rules.problems, rules.notes) == ((), ())
    assert rules.rules[0].metric("my_server_requests_total") == "requests_per_second"
    assert rules.external[0].external_query("jobs_waiting", namespace="a") == "sum(jobs_waiting{}) by (queue)"


def test_overrides_are_found_by_their_labels() -> None:
    rules = rule_set(entry(resources={"overrides": OVERRIDES}))
    assert [resource.text for resource in rules.rules[0].labelling.resources(["node", "pod", "uuid"])] == ["nodes", "pods"]
