"""Selectors, numbers, paths, values and errors are byte for byte the same as in Kubernetes and custom-metrics-apiserver."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from tests.conformance.asking import Oracle
from tests.conformance.building import built

from gpuscaler.metrics.api.documents import bodies, statuses
from gpuscaler.metrics.api.documents.kinds import kind_of
from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL, Metric, parse_request
from gpuscaler.metrics.sources.values import Value, format_value
from gpuscaler.model.selector_text import SelectorError, Term, parse_terms

pytestmark = pytest.mark.conformance

CASES = 5000
Json = dict[str, Any]
_OPERATORS = {"": "exists", ">": "gt", "<": "lt"}
_WORDS = "a b app tier in notin gpu-type example.com/x 7 -3 x.y_z A 12 -bad bad/ / a/b/c".split()
_MARKS = ["=", "==", "!=", "!", "(", ")", ",", "<", ">", " ", "  ", " in ", " notin ", "(a,b)", "(x)", ", ", ",!"]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle(built("metricsapi", Path(__file__).parent / "oracle", print)) as running:
        yield running


def drawn_term(random: Random) -> str:
    key = random.choice(_WORDS)
    values = [random.choice([*_WORDS, ""]) for _ in range(random.randint(1, 3))]
    forms: list[Callable[[], str]] = [
        lambda: key,
        lambda: f"!{key}",
        lambda: f"{key}{random.choice(['=', '==', '!=', ' = ', '>', '<'])}{values[0]}",
        lambda: f"{key} {random.choice(['in', 'notin'])} ({random.choice([',', ', ']).join(values)})",
    ]
    return random.choice(forms)()


def drawn_selector(random: Random) -> str:
    if random.random() < 0.3:
        return "".join(random.choice([*_WORDS, *_MARKS]) for _ in range(random.randint(1, 7)))
    return random.choice([",", ", ", " ,"]).join(drawn_term(random) for _ in range(random.randint(0, 3)))


def requirement(term: Term) -> Json:
    return {"key": term.key, "operator": _OPERATORS.get(term.operator, term.operator), "values": sorted(term.values)}


def test_random_selectors_are_accepted_or_refused_as_by_kubernetes(oracle: Oracle) -> None:
    random, seen = Random(1), Counter[str]()
    for _ in range(CASES):
        text = drawn_selector(random)
        theirs = oracle.ask({"Selector": text})
        try:
            terms = parse_terms(text)
        except SelectorError:
            ours: list[Json] | None = None
        else:
            ours = [requirement(term) for term in terms]
        seen["refused" if theirs["refused"] else "read"] += 1
        assert theirs["refused"] is (ours is None), text
        if ours is not None:
            assert sorted(theirs["requirements"], key=str) == sorted(ours, key=str), text
    assert min(seen.values()) > CASES // 5


def drawn_number(random: Random) -> float:
    size = float(10.0 ** random.uniform(-5, 15.9))
    shapes: list[float] = [size, round(size, 0), round(size, 1), round(size, 3), float(2 ** random.randint(0, 52))]
    return random.choice([1.0, 1.0, 1.0, -1.0]) * random.choice(shapes)


def test_random_numbers_become_the_same_quantities_as_in_kubernetes(oracle: Oracle) -> None:
    random = Random(2)
    for number in (0.0, 0.5, 0.0009, 1e6, 17179869184.0, 0.29, 1.001, 9.2e15, *(drawn_number(random) for _ in range(CASES))):
        assert oracle.ask({"Number": number})["text"] == format_value(number), number


def drawn_target(random: Random) -> str:
    groups = [CUSTOM, EXTERNAL, "apps"]
    parts = ["apis", random.choice(groups), random.choice(["v1beta1", "v1beta2"])][: random.choice([1, 2, 3, 3, 3, 3, 3])]
    if len(parts) == 3:
        words = [
            "namespaces",
            "default",
            "pods",
            "jobs.batch",
            "*",
            "x",
            "metrics",
            "duty_cycle_current",
            "status",
            "finalize",
            "p q",
            "a%b",
        ]
        parts += [random.choice(words) for _ in range(random.randint(0, 6))]
        if random.random() < 0.7:
            parts[3:4] = ["namespaces"]
    return "/" + "/".join(quote(part, safe=random.choice(["", "*"])) for part in parts)


def test_access_reviews_have_the_attributes_that_kubernetes_derives_from_the_path(oracle: Oracle) -> None:
    random, seen = Random(3), Counter[int]()
    for _ in range(CASES):
        method, target = random.choice(["GET", "GET", "GET", "HEAD", "POST", "PUT", "PATCH"]), drawn_target(random)
        theirs = oracle.ask({"Method": method, "Target": target})["attributes"]
        attributes = parse_request(method, target).attributes
        ours = [attributes.verb, attributes.path]
        if attributes.resource:
            ours += [
                attributes.group,
                attributes.version,
                attributes.resource,
                attributes.subresource,
                attributes.namespace,
                attributes.name,
            ]
        assert (method, target, theirs) == (method, target, ours)
        seen[len(theirs)] += 1
    assert min(seen[2], seen[8]) > CASES // 20


def drawn_values(random: Random) -> list[Json]:
    return [
        {
            "Namespace": random.choice(["", "default", "n"]),
            "Name": random.choice(["", "a", "b-c"]),
            "Number": drawn_number(random),
            "Timestamp": random.randint(0, 4_102_444_800),
            "Window": random.choice([None, 0, 60, 86400]),
            "Labels": {random.choice("abc"): random.choice(["x", 'quo"te', "ü", "", "a<b>&c"]) for _ in range(random.randint(0, 3))},
        }
        for _ in range(random.randint(0, 3))
    ]


def test_random_metric_values_have_the_same_bytes_as_those_of_custom_metrics_apiserver(oracle: Oracle) -> None:
    random = Random(4)
    for _ in range(CASES // 5):
        resource = random.choice(["pods", "nodes", "deployments.apps", "jobs.batch"])
        kind, version = kind_of(resource)
        terms = parse_terms(random.choice(["", "a=b", "b in (y,x),a==c", "!z,y", "k notin (v)", "a in (b)"]))
        text = ",".join(f"{t.key} {t.operator} ({','.join(t.values)})" if "in" in t.operator else _written(t) for t in terms)
        drawn = drawn_values(random)
        case = {"Kind": kind, "ApiVersion": version, "Metric": "m", "MetricSelector": text, "Values": drawn}
        values = [
            Value(
                "m",
                format_value(value["Number"]) or "",
                value["Timestamp"],
                resource,
                value["Namespace"],
                value["Name"],
                value["Window"],
                value["Labels"],
            )
            for value in drawn
        ]
        ours = [bodies.encode_custom(Metric(CUSTOM, version, "m", resource), values, terms) for version in ("v1beta1", "v1beta2")]
        ours.append(bodies.encode_external(Metric(EXTERNAL, "v1beta1", "m"), values))
        assert oracle.ask(case)["bodies"] == [our.decode() for our in ours], case


def _written(term: Term) -> str:
    return f"!{term.key}" if term.operator == "!" else term.key + term.operator + "".join(term.values)


@pytest.mark.parametrize(
    ("case", "ours"),
    [
        ({"Error": "metric", "Resource": "pods", "Metric": "m"}, statuses.not_found("pods", "m")),
        ({"Error": "metric", "Resource": "jobs.batch", "Metric": "m"}, statuses.not_found("jobs.batch", "m")),
        ({"Error": "object", "Resource": "pods", "Metric": "m", "Name": "p"}, statuses.not_found("pods", "m", "p")),
        ({"Error": "internal", "Why": "unable to fetch metrics"}, statuses.internal("unable to fetch metrics")),
        ({"Error": "internal", "Why": 'saw "a" < b & c'}, statuses.internal('saw "a" < b & c')),
        ({"Error": "bad", "Why": "found 'x' > 1"}, statuses.bad_request("found 'x' > 1")),
        ({"Error": "unauthorized"}, statuses.unauthorized()),
    ],
    ids=lambda case: case.get("Error", "") if isinstance(case, dict) else "",
)
def test_not_found_bad_request_and_internal_errors_have_the_same_bytes(oracle: Oracle, case: Json, ours: statuses.Failure) -> None:
    assert oracle.ask(case)["bodies"] == [ours.body().decode()]


def test_forbidden_errors_have_the_same_bytes(oracle: Oracle) -> None:
    random = Random(5)
    for _ in range(CASES // 10):
        # Go's own message is garbled by a percent sign in a name.
        target, user = drawn_target(random).replace("%25", ""), random.choice(["u", "system:serviceaccount:a:b", "a<b>&c", 'quo"te', ""])
        why = random.choice(["", "no rule", "a < b"])
        method = random.choice(["GET", "POST"])
        theirs = oracle.ask({"Error": "forbidden", "Method": method, "Target": target, "User": user, "Why": why})["bodies"]
        assert theirs == [statuses.forbidden(user, parse_request(method, target).attributes, why).body().decode()], (method, target, user)
