import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.settings.corpus import BAD_FORM, BAD_MEANING, GOOD, Bad
from tests.soaking import examples

from gpuscaler.settings import Problem, SettingsError, parse_policy, parse_settings


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SettingsError) as raised:
        parse_policy(text, "pools.yaml")
    return raised.value.problems


@pytest.mark.parametrize("bad", [*BAD_FORM, *BAD_MEANING], ids=lambda bad: f"{bad.place}: {bad.says}")
def test_a_mistake_in_a_file_is_reported_once_with_its_line_and_a_remedy(bad: Bad) -> None:
    (problem,) = problems(bad.text)

    assert problem.path == bad.place
    assert bad.says in problem.message


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_valid_file_has_no_mistakes(text: str) -> None:
    settings = parse_settings(text)

    assert settings.policy.pools or settings.has_account_pools


def test_all_mistakes_are_reported_together_with_their_lines_in_the_order_of_the_file() -> None:
    text = """
regoin: us-east-1
pools:
  - name: a
    min: 3
    max: 1
    offerings:
      - type: g5.xlarge
        price:
          -1
  - name: b
    types: [g5.xlarge]
    labels:
      team: 7
limits: {gpus: many}
"""
    with pytest.raises(SettingsError) as raised:
        parse_policy(text, "pools.yaml")

    assert str(raised.value).splitlines() == [
        "pools.yaml:2: regoin: unknown key; did you mean region?",
        "pools.yaml:5: pools[0].min: saw 3, expected at most max, which is 1; lower min or raise max",
        "pools.yaml:9: pools[0].offerings[0].price: saw the number -1, expected dollars per hour above 0 (0 only if all is reserved)",
        "pools.yaml:12: pools[1].types[0]: saw no price for g5.xlarge and no region to look it up in; set region (or zones), or give price",
        'pools.yaml:14: pools[1].labels.team: saw the number 7, expected text as a label\'s value; quote it: "7"',
        'pools.yaml:15: limits.gpus: saw "many", expected a whole number, 0 or more',
    ]


def test_other_mistakes_are_reported_beside_a_missing_key() -> None:
    text = "region: us-east-1\npools: [{name: a, types: [g5.xlarge]}]\npages: {authenticated: {address: nowhere, key: a.pem}}"

    assert [(problem.path, problem.message.partition(",")[0]) for problem in problems(text)] == [
        ("pages.authenticated", "saw no certificate"),
        ("pages.authenticated.address", 'saw "nowhere"'),
    ]


def test_a_mistake_that_affects_every_zone_is_reported_once() -> None:
    text = "pools: [{name: a, zones: [westus3-1, westus3-2, westus3-3], markets: [spot], types: [Standard_NC4as_T4_v3, nope]}]"

    assert [problem.path for problem in problems(text)] == ["pools[0].types[0]", "pools[0].types[1]"]


@pytest.mark.parametrize(
    ("text", "line", "path", "says"),
    [
        ("", None, "", "is empty"),
        ("# nothing\n---\n", None, "", "is empty"),
        ("pools: [a\n", 2, "", "not YAML"),
        ("a: b: c", 1, "", "not YAML: mapping values are not allowed"),
        ("pools:\n\t- name: x", 2, "", "not YAML"),
        ("pools: \x07", None, "", "remove characters that are not printable"),
        ("pools: \ud800", None, "", "surrogate"),
        ("region: a\nregion: b", 2, "region", "a second time (first on line 1)"),
        ("pools:\n- name: a\n  labels:\n    x: '1'\n    x: '2'", 5, "pools[0].labels.x", "a second time (first on line 4)"),
        ("pools: !!python/name:os.system x", 1, "pools", "remove the tag"),
        ("pools: !custom [x]", 1, "pools", "remove the tag"),
        ("true: 1", 1, "", "saw the key true, expected text; quote it"),
        ("? [a]\n: 1", 1, "", "saw the key a list or mapping"),
        ("pools: *nowhere", 1, "pools", "*nowhere refers to no anchor above it"),
        ("pools: &a [*a]", 1, "pools[0]", "*a is inside the value that it refers to"),
        ("<<: 5", 1, "<<", "saw the number 5 merged with <<"),
        ("region: a\n---\nregion: b", 2, "", "a second document"),
        ("[" * 100_000, 1, "", "nested more than 50 deep"),
        ("\n".join(" " * depth + "a:" for depth in range(200)), 51, "", "nested more than 50 deep"),
        ("priority_cutoff: " + "9" * 10_000, 1, "priority_cutoff", "a whole number of 32 bits"),
    ],
)
def test_text_that_is_not_strict_yaml_is_reported_with_its_line(text: str, line: int | None, path: str, says: str) -> None:
    assert any(p.path == path and p.line == line and says in p.message for p in problems(text)), problems(text)


def test_a_file_that_expands_to_millions_of_values_is_rejected_in_seconds() -> None:
    zones = ",".join(f"z{index}" for index in range(100_000))
    text = f"pools: [{{name: a, zones: &all [{zones}], types: [g5.xlarge, g5.2xlarge, g5.4xlarge], markets: [spot]}}, {{zones: *all}}]"

    assert any("expands to more than 3,000,000 values" in problem.message for problem in problems(text))


def test_a_file_with_thousands_of_unknown_types_is_rejected_in_seconds() -> None:
    text = "region: us-east-1\npools: [{name: a, types: [" + ", ".join(f"g5.x{index}large" for index in range(1000)) + "]}]"

    assert len(problems(text)) == 1000


KEYS = [
    *("name", "types", "offerings", "zones", "markets", "min", "max", "spare", "gpus", "idle_after", "labels", "taints", "budgets"),
    *("nodes", "schedule", "duration", "reasons", "type", "price", "resources", "cpu", "key", "effect", "arch", "<<"),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["g5.xlarge", "spot", "10m", "a:NoSchedule"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


QUICK = settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(st.fixed_dictionaries({"pools": st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), max_size=3)}))
def test_any_yaml_value_is_parsed_or_rejected_with_a_settings_error(tree: object) -> None:
    try:
        good = bool(parse_policy(json.dumps(tree)).pools)
    except SettingsError as error:
        good = all(problem.message for problem in error.problems)
    assert good


@QUICK
@given(st.text(alphabet="ab: -[]{}&*<>|!%@'\"#\n\t,?0.", max_size=60))
def test_any_text_is_parsed_or_rejected_with_a_settings_error(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_policy(text)
