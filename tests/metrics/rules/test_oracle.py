"""Rules in prometheus-adapter's own code and in ours: matched series, names of metrics, and queries."""

from collections import Counter
from collections.abc import Iterator

import pytest
import yaml
from tests.conformance.asking import Oracle
from tests.metrics.rules.building import adapter
from tests.metrics.rules.cases import KNOWN, Json, draw_case
from tests.metrics.rules.ours import answer, differences
from tests.metrics.rules.public import PUBLIC, SERIES

from gpuscaler.metrics.rules.builtin import builtin_rules_text

pytestmark = pytest.mark.conformance

CASES = 4000


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle(adapter()) as running:
        yield running


def case(rule: Json, series: list[Json], *, external: bool = False) -> Json:
    """The rule with queries for each series: by pods, by namespaces, and as an external metric."""
    ask = {"Group": "", "Namespace": "a", "Selector": "q=b,r!=c", "Names": ["p-1", "p-2"]}
    asks = [
        {**ask, "Series": labels["Name"], "Resource": resource, "External": outside}
        for labels in series
        for resource, outside in (("pods", False), ("namespaces", False), ("pods", True))
    ]
    return {"Known": KNOWN, "Config": yaml.safe_dump({"externalRules" if external else "rules": [rule]}), "Series": series, "Asks": asks}


def test_random_rules_give_the_same_results_as_in_prometheus_adapter(oracle: Oracle) -> None:
    seen: Counter[str] = Counter()
    for number in range(CASES):
        drawn = draw_case(1, number)
        theirs = oracle.ask(drawn)
        assert not differences(drawn, theirs, answer(drawn)), (number, drawn["Config"])
        seen["refused"] += "refused" in theirs
        seen["names"] += sum(bool(result["name"]) for result in theirs.get("found") or ())
        seen["resources"] += sum(bool(result["resources"]) for result in theirs.get("found") or ())
        seen["queries"] += sum(query is not None for query in theirs.get("queries") or ())
    # The random cases cover what they should.
    assert CASES // 10 < seen["refused"] < CASES // 2
    assert min(seen["names"], seen["resources"], seen["queries"]) > CASES // 2


@pytest.mark.parametrize("name", PUBLIC)
def test_rules_of_public_projects_give_the_same_results_as_in_prometheus_adapter(oracle: Oracle, name: str) -> None:
    asked = case(PUBLIC[name], SERIES)
    theirs = oracle.ask(asked)
    assert not differences(asked, theirs, answer(asked))
    assert any(their["taken"] and their["name"] for their in theirs["found"])
    assert any(theirs["queries"])


def test_built_in_rules_work_in_prometheus_adapter_too(oracle: Oracle) -> None:
    series = [
        {"Name": name, "Labels": dict.fromkeys(labels.split(), "v")}
        for name, labels in (
            ("nvidia_gpu_duty_cycle", "pod_name namespace_name node_name uuid"),
            ("DCGM_FI_DEV_FB_USED", "pod namespace Hostname UUID"),
            ("vllm:num_requests_waiting", "pod namespace model_name"),
            ("inference_pool_average_queue_size", "namespace name"),
        )
    ]
    rules = yaml.safe_load(builtin_rules_text())
    for key, external in (("rules", False), ("externalRules", True)):
        for rule in rules[key]:
            asked = case(rule, series, external=external)
            assert not differences(asked, oracle.ask(asked), answer(asked))
