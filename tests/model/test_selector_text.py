"""Label selectors as text: valid ones, and invalid ones with the API server's messages."""

import pytest

from gpuscaler.model.selector_text import SelectorError, Term, parse_selector, parse_terms


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("  ", ()),
        ("a=b", (Term("a", "=", ("b",)),)),
        (" a == b , c != d ", (Term("a", "==", ("b",)), Term("c", "!=", ("d",)))),
        ("a in (y, x,x),b notin (z)", (Term("a", "in", ("x", "y")), Term("b", "notin", ("z",)))),
        ("a in (x,)", (Term("a", "in", ("", "x")),)),
        ("a in ()", (Term("a", "in", ("",)),)),
        ("a,!b", (Term("a", ""), Term("b", "!"))),
        ("a=,b!=", (Term("a", "=", ("",)), Term("b", "!=", ("",)))),
        ("gpus>4,gpus<9", (Term("gpus", ">", ("4",)), Term("gpus", "<", ("9",)))),
        ("example.com/gpu-type=a.100_x", (Term("example.com/gpu-type", "=", ("a.100_x",)),)),
        ("x=in", (Term("x", "=", ("in",)),)),
        ("in in (in),notin", (Term("in", "in", ("in",)), Term("notin", ""))),
    ],
)
def test_every_form_of_a_requirement_in_a_selector_text_is_parsed(text: str, terms: tuple[Term, ...]) -> None:
    assert parse_terms(text) == terms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=b,", "found '', expected: identifier after ','"),
        (",a", "found ',', expected: identifier"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a b", "found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a!b", "found '!', expected"),
        ("a in x", "found 'x' expected: '('"),
        ("a in (x", "found '', expected: ',', or identifier"),
        ("a in (x y)", "found 'y', expected: ',', or identifier"),
        ("a==(x)", "found '(', expected: identifier"),
        ("-a=b", "expected a label's key"),
        ("a=b/c", "values that labels can have"),
        ("gpus>many", "values that labels can have"),
    ],
)
def test_the_error_for_an_invalid_selector_text_says_what_was_found(text: str, said: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_terms(text)
    assert said in str(caught.value)


def test_a_selector_parsed_from_text_matches_the_labels_it_names() -> None:
    selector = parse_selector("app=web,tier in (a,b),!old")
    assert selector.matches({"app": "web", "tier": "b"})
    assert not selector.matches({"app": "web", "tier": "b", "old": ""})
    assert not selector.matches({"app": "web"})
    assert parse_selector("").matches({})
