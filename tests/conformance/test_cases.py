"""The case generator: repeatable, varied, and with only objects that our decoders can read."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conformance import ours
from tests.conformance.cases import REPLAYED, draw_case

SOME = 400


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    return [draw_case(1, number) for number in range(SOME)]


@pytest.fixture(scope="module")
def used(cases: list[dict[str, Any]]) -> Counter[str]:
    return Counter(field for case in cases for field in fields(case))


def test_a_seed_and_a_number_give_the_same_case_every_time() -> None:
    assert json.dumps(draw_case(3, 14)) == json.dumps(draw_case(3, 14))
    assert json.dumps(draw_case(3, 14)) != json.dumps(draw_case(4, 14))


def test_every_object_of_every_case_can_be_decoded(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        assert len(ours.judge(case)) == len(case.get("pending") or ())


def test_appending_the_empty_nodes_makes_no_difference_to_our_verdicts(cases: list[dict[str, Any]]) -> None:
    for case in cases[:100]:
        assert ours.judge(case, otherwise=True) == ours.judge(case)


def test_every_nth_case_is_a_replay(cases: list[dict[str, Any]]) -> None:
    assert [number for number, case in enumerate(cases) if "replay" in case] == list(range(0, SOME, REPLAYED))


@pytest.mark.parametrize(
    "field",
    [
        *("nodeName", "nodeSelector", "nodeAffinity", "matchFields", "tolerations", "unschedulable", "taints", "hostPort", "hostIP"),
        *("podAffinity", "podAntiAffinity", "namespaceSelector", "namespaces", "matchLabelKeys", "mismatchLabelKeys"),
        *("topologySpreadConstraints", "minDomains", "nodeAffinityPolicy", "nodeTaintsPolicy"),
        *("initContainers", "overhead", "containerStatuses", "nvidia.com/gpu", "hugepages-2Mi", "ephemeral-storage"),
        *("persistentVolumeClaim", "ephemeral", "gcePersistentDisk", "rbd", "claimRef", "allowedTopologies", "deletionTimestamp"),
    ],
)
def test_the_cases_use_the_field(field: str, used: Counter[str]) -> None:
    assert used[field] >= 5


def test_the_cases_use_every_operator_and_effect(cases: list[dict[str, Any]]) -> None:
    found = Counter(value for value in values(cases) if isinstance(value, str))
    for word in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "NoSchedule", "NoExecute", "ReadWriteOncePod", "Always"):
        assert found[word] >= 5, word


def fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from fields(item)


def values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from values(item)
    else:
        yield value
