"""Label selectors and node selectors, as the scheduler evaluates them."""

import pytest

from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement, is_label_key, parse_integer

LABELS = {"app": "web", "size": "10", "empty": ""}


@pytest.mark.parametrize(
    ("key", "operator", "values", "matches"),
    [
        ("app", "In", ("web", "db"), True),
        ("app", "In", ("db",), False),
        ("app", "In", (), False),
        ("empty", "In", ("",), True),
        ("absent", "In", ("",), False),
        ("app", "NotIn", ("db",), True),
        ("app", "NotIn", ("web",), False),
        ("absent", "NotIn", ("web",), True),
        ("absent", "NotIn", (), False),
        ("app", "Exists", (), True),
        ("empty", "Exists", (), True),
        ("absent", "Exists", (), False),
        ("app", "Exists", ("web",), False),
        ("absent", "DoesNotExist", (), True),
        ("app", "DoesNotExist", (), False),
        ("absent", "DoesNotExist", ("x",), False),
        ("size", "Gt", ("9",), True),
        ("size", "Gt", ("10",), False),
        ("size", "Lt", ("11",), True),
        ("size", "Lt", ("9", "11"), False),
        ("size", "Gt", ("nine",), False),
        ("app", "Gt", ("9",), False),
        ("absent", "Lt", ("9",), False),
        ("app", "Resembles", ("web",), False),
    ],
)
def test_a_requirement_matches_as_in_kubernetes(key: str, operator: str, values: tuple[str, ...], matches: bool) -> None:
    assert Requirement(key, operator, values).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("requirement", "valid"),
    [
        (Requirement("app", "In", ("web", "")), True),
        (Requirement("example.com/app", "Exists"), True),
        (Requirement("app", "In"), False),
        (Requirement("app", "NotIn"), False),
        (Requirement("app", "Exists", ("x",)), False),
        (Requirement("app", "In", ("y!",)), False),
        (Requirement("app", "In", ("x" * 64,)), False),
        (Requirement("size", "Gt", ("5",)), True),
        (Requirement("size", "Gt", ("five",)), False),
        (Requirement("size", "Lt", ("1", "2")), False),
        (Requirement("", "Exists"), False),
        (Requirement("a b", "Exists"), False),
        (Requirement("app", "Resembles", ("x",)), False),
    ],
)
def test_requirements_that_the_api_server_would_reject_are_invalid(requirement: Requirement, valid: bool) -> None:
    assert requirement.valid is valid


@pytest.mark.parametrize(
    ("key", "valid"), [("a", True), ("a.b/c_d", True), ("A.b/c", False), ("/c", False), ("a/", False), ("x" * 64, False), ("a/b/c", False)]
)
def test_label_keys_are_names_with_or_without_a_domain(key: str, valid: bool) -> None:
    assert is_label_key(key) is valid


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("+5", 5),
        ("-5", -5),
        ("005", 5),
        ("0", 0),
        ("-0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", None),
        ("1" * 5000, None),
        ("0" * 5000 + "7", 7),
        ("", None),
        ("-", None),
        ("1.0", None),
        ("1_000", None),
        ("٣", None),
        (" 5", None),
    ],
)
def test_integers_are_parsed_like_in_go(text: str, number: int | None) -> None:
    assert parse_integer(text) == number


def test_a_label_selector_needs_all_its_requirements_and_an_empty_one_matches_everything() -> None:
    app, absent = Requirement("app", "In", ("web",)), Requirement("absent", "Exists")
    assert LabelSelector().matches({})
    assert LabelSelector((app,)).matches(LABELS)
    assert not LabelSelector((app, absent)).matches(LABELS)


def test_a_label_selector_cannot_compare_numbers() -> None:
    assert LabelSelector((Requirement("app", "In", ("web",)),)).valid
    assert not LabelSelector((Requirement("size", "Gt", ("5",)),)).valid


def test_a_node_selector_needs_a_nonempty_valid_term_that_matches() -> None:
    app, name = Requirement("app", "In", ("web",)), Requirement("metadata.name", "In", ("node-1",))
    refused = Requirement("absent", "NotIn", ("y!",))
    assert not NodeSelector().matches(LABELS, "node-1")
    assert not NodeSelector((NodeSelectorTerm(),)).matches(LABELS, "node-1")
    assert NodeSelector((NodeSelectorTerm(), NodeSelectorTerm((app,)))).matches(LABELS, "node-1")
    assert NodeSelector((NodeSelectorTerm((app,), (name,)),)).matches(LABELS, "node-1")
    assert not NodeSelector((NodeSelectorTerm((app,), (name,)),)).matches(LABELS, "node-2")
    assert not NodeSelector((NodeSelectorTerm((app, refused)),)).matches(LABELS, "node-1")
