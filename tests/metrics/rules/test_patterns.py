"""Regular expressions and names as in Go."""

import pytest

from gpuscaler.metrics.rules.patterns import Pattern, PatternError


@pytest.mark.parametrize(
    ("pattern", "template", "name"),
    [
        ("^(.*)_total$", "$1", "http"),
        ("^(.*)_total$", "${1}_per_second", "http_per_second"),
        ("^(.*)_total$", "$1_per_second", ""),
        ("^(.*)_total$", "$1.per.second", "http.per.second"),
        ("^(?P<base>.*)_total$", "$base", "http"),
        ("^(?P<base>.*)_total$", "$basex-${base}x", "-httpx"),
        ("(total)", "$0/$1/$2", "total/total/"),
        ("(x)?_", "[$1]", "[]"),
        ("t", "$$1", "$1"),
        ("t", "a$", "a$"),
        ("t", "${", "${"),
        ("t", "${0", "${0"),
        ("(t)", "$01", ""),
        ("(t)", "${1}${1}", "tt"),
    ],
)
def test_group_references_expand_as_in_go(pattern: str, template: str, name: str) -> None:
    assert Pattern(pattern).expand(template, "http_total") == name


def test_a_regular_expression_matches_anywhere_and_gives_none_without_a_match() -> None:
    assert Pattern("tota").matches("http_total")
    assert Pattern("^x").expand("$0", "http_total") is None


@pytest.mark.parametrize("text", ["(", "[a", "a{1001}", "(?!a)", "(?<=a)", r"\1", r"\C", "a**"])
def test_regular_expressions_that_go_refuses_are_refused(text: str) -> None:
    with pytest.raises(PatternError, match="Go"):
        Pattern(text)


def test_a_quoted_byte_class_is_accepted_in_a_regular_expression() -> None:
    assert Pattern(r"\Q\C\E|\\C").matches(r"\C")


def test_matching_takes_time_linear_in_the_length_of_the_text() -> None:
    assert not Pattern("(a*)*(a*)*(a*)*b").matches("a" * 20_000)


def test_references_to_unknown_groups_are_reported() -> None:
    assert list(Pattern("(?P<x>a)(b)").unknown("$1 ${2} $3 $x $x_y $$z ${")) == ["3", "x_y"]
