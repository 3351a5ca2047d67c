"""NodeUnschedulable, TaintToleration and NodeAffinity, against the rules of kube-scheduler's source."""

from typing import Any

import pytest
from tests.planning.building import affinity, bare_node, spec, term
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.selectors import NodeSelector
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.well_known import UNSCHEDULABLE

NODES = (
    bare_node("one", {"gpu": "t4", "size": "1"}),
    bare_node("five", {"gpu": "a100", "size": "5"}),
    bare_node("big", {"gpu": "", "size": "big"}),
    bare_node("bare"),
)


@pytest.mark.parametrize(
    ("expression", "admitted"),
    [
        (("gpu", "In", "t4", "a100"), ["one", "five"]),
        (("gpu", "In", ""), ["big"]),
        (("gpu", "In"), []),
        (("gpu", "NotIn", "t4"), ["five", "big", "bare"]),
        (("gpu", "NotIn"), []),
        (("gpu", "Exists"), ["one", "five", "big"]),
        (("gpu", "Exists", "t4"), []),
        (("gpu", "DoesNotExist"), ["bare"]),
        (("gpu", "DoesNotExist", "t4"), []),
        (("size", "Gt", "1"), ["five"]),
        (("size", "Lt", "5"), ["one"]),
        (("size", "Gt", "1", "2"), []),
        (("size", "Lt", "many"), []),
        (("size", "Lt", "+9"), []),
        (("size", "NotIn", "no label value"), []),
        (("bad key", "DoesNotExist"), []),
        (("gpu", "in", "t4"), []),
    ],
)
def test_a_requirement_admits_nodes_with_labels_that_satisfy_it(expression: tuple[Any, ...], admitted: list[str]) -> None:
    assert rows(room(*NODES), spec(node_affinity=affinity(expression))) == sorted(admitted)


def test_one_node_affinity_term_must_match_with_all_its_expressions() -> None:
    wanted = NodeSelector((term(("gpu", "In", "t4"), ("size", "Gt", "3")), term(("gpu", "DoesNotExist"))))
    assert rows(room(*NODES), spec(node_affinity=wanted)) == ["bare"]


def test_a_term_with_an_unreadable_requirement_does_not_affect_other_terms() -> None:
    wanted = NodeSelector((term(("gpu", "Exists"), ("size", "Gt", "x")), term(("gpu", "In", "a100"))))
    assert rows(room(*NODES), spec(node_affinity=wanted)) == ["five"]


@pytest.mark.parametrize("selector", [NodeSelector(), affinity()])
def test_missing_or_empty_node_affinity_terms_match_no_node(selector: NodeSelector) -> None:
    assert rows(room(*NODES), spec(node_affinity=selector)) == []


@pytest.mark.parametrize(
    ("field", "admitted"),
    [
        (("metadata.name", "In", "one"), ["one"]),
        (("metadata.name", "NotIn", "one"), ["five", "big", "bare"]),
        (("metadata.name", "In", "one", "five"), []),
        (("metadata.name", "Exists"), []),
        (("metadata.name", "In", "missing"), []),
        (("spec.other", "NotIn", "x"), ["one", "five", "big", "bare"]),
        (("spec.other", "In", "x"), []),
    ],
)
def test_a_field_requirement_takes_one_value_and_supports_only_the_name(field: tuple[Any, ...], admitted: list[str]) -> None:
    assert rows(room(*NODES), spec(node_affinity=affinity(fields=(field,)))) == sorted(admitted)


def test_the_node_selector_and_the_affinity_must_both_match() -> None:
    wanted = spec(node_selector=(("gpu", "t4"),), node_affinity=affinity(("size", "Lt", "3")))
    assert rows(room(*NODES), wanted) == ["one"]
    assert rows(room(*NODES), spec(node_selector=(("gpu", "t4"), ("size", "5")))) == []


@pytest.mark.parametrize(
    ("toleration", "admitted"),
    [
        (None, ["soft"]),
        (Toleration("gpu", "Equal", "yes", "NoSchedule"), ["hard", "soft"]),
        (Toleration("gpu", "Equal", "no"), ["soft"]),
        (Toleration("gpu", "Exists"), ["hard", "evicting", "soft"]),
        (Toleration("", "Exists"), ["hard", "evicting", "soft", "cordoned"]),
        (Toleration("", "Equal", "yes"), ["hard", "soft"]),
        (Toleration("", "Exists", "", "NoExecute"), ["evicting", "soft"]),
        (Toleration("gpu", "Gt", "1"), ["soft"]),
        (Toleration("gpu", "Whatever", "yes"), ["soft"]),
        (Toleration(UNSCHEDULABLE, "Exists"), ["soft", "cordoned"]),
        (Toleration(UNSCHEDULABLE, "Exists", "", "NoExecute"), ["soft"]),
    ],
)
def test_hard_taints_and_cordons_need_a_toleration(toleration: Toleration | None, admitted: list[str]) -> None:
    here = room(
        bare_node("hard", taints=(Taint("gpu", "yes"),)),
        bare_node("evicting", taints=(Taint("gpu", "", "NoExecute"),)),
        bare_node("soft", taints=(Taint("gpu", "", "PreferNoSchedule"),)),
        bare_node("cordoned", unschedulable=True),
    )
    assert rows(here, spec(tolerations=(toleration,) if toleration else ())) == sorted(admitted)


EITHER = NodeSelector((term(("gpu", "In", "x", "y"), ("size", "Gt", "9")), term(("gpu", "Exists"), ("size", "Gt", "3"))))


@pytest.mark.parametrize(
    ("fields", "name", "reason"),
    [
        ({"node_selector": (("gpu", "a100"),)}, "one", ("NodeAffinity", "label gpu=a100 wanted, node has gpu=t4")),
        ({"node_selector": (("gpu", "a100"),)}, "bare", ("NodeAffinity", "label gpu=a100 wanted, node has no label gpu")),
        (
            {"node_affinity": EITHER},
            "one",
            ("NodeAffinity", "label size Gt 3 wanted, node has size=1"),
        ),
        (
            {"node_affinity": affinity(("gpu", "NotIn", "t4"))},
            "one",
            ("NodeAffinity", "label gpu not in (t4) wanted, node has gpu=t4"),
        ),
        ({"node_affinity": affinity(("gpu", "DoesNotExist"))}, "one", ("NodeAffinity", "no label gpu wanted, node has gpu=t4")),
        (
            {"node_affinity": affinity(fields=(("metadata.name", "In", "five"),))},
            "one",
            ("NodeAffinity", "label metadata.name=five wanted, node is one"),
        ),
        ({"node_affinity": NodeSelector()}, "one", ("NodeAffinity", "the required node affinity has no term that can match a node")),
    ],
)
def test_the_reason_quotes_the_node_affinity_term_with_the_fewest_mismatches(
    fields: dict[str, Any], name: str, reason: tuple[str, str]
) -> None:
    assert rejection(room(*NODES), spec(**fields), name) == reason


def test_the_reason_for_an_excluded_node_names_taints_and_cordons() -> None:
    here = room(
        bare_node("a", taints=(Taint("soft", "", "PreferNoSchedule"), Taint("dedicated", "ml"))), bare_node("b", unschedulable=True)
    )
    assert rejection(here, spec(), "a") == ("TaintToleration", "taint dedicated=ml:NoSchedule is not tolerated")
    assert rejection(here, spec(), "b") == ("NodeUnschedulable", "node is cordoned")


def test_the_static_mask_ignores_free_capacity() -> None:
    here = room(bare_node("a", {"gpu": "t4"}), bare_node("b"))
    wanted = spec(node_selector=(("gpu", "t4"),), requests={"cpu": 10**9})
    assert here.static_mask(wanted).tolist() == [True, False]
    assert rows(here, wanted) == []
