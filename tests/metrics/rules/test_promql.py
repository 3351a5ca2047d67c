"""Arbitrary queries: from files of rules, with names of series that anyone may have chosen."""

import pytest
from tests.metrics.rules.making import POD, a_rule

from gpuscaler.metrics.rules.promql import Call, Matcher, PromqlError, Selector, parse
from gpuscaler.metrics.rules.separating import prove

DEEP = 20_000


@pytest.mark.parametrize(
    ("query", "matcher", "text"),
    [
        ("x { a = 'b', }", Matcher("a", "=", "b"), 'x{a="b"}'),
        (r"x{a=~`\d+`}", Matcher("a", "=~", r"\d+"), r'x{a=~"\\d+"}'),
        ("x{a=`\\`}", Matcher("a", "=", "\\"), r'x{a="\\"}'),
        (r'x{a!="b\n\u00e9\""}', Matcher("a", "!=", 'b\né"'), r'x{a!="b\né\""}'),
        ('x{a!=`"\'{(#`} # not "this', Matcher("a", "!=", "\"'{(#"), 'x{a!="\\"\'{(#"}'),
        ('x{"a b"="c"}', Matcher("a b", "=", "c"), 'x{"a b"="c"}'),
        ('{"x"}', Matcher("__name__", "=", "x"), '{__name__="x"}'),
        ('x{a="\0"}', Matcher("a", "=", "\0"), r'x{a="\x00"}'),
    ],
)
def test_string_literals_round_trip_with_prometheus_escaping(query: str, matcher: Matcher, text: str) -> None:
    selector = parse(query)
    assert selector == Selector("x", (matcher,), text)
    assert parse(text) == selector


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "no expression found"),
        ("x{a", "unexpected end of input"),
        ('x{a="b', "a string does not end"),
        ('x{a="b\n"}', "a string does not end"),
        ("x\0", "unexpected character"),
        ('x{a="\ud800"}', "surrogates not allowed"),
        ("sum(x[5m])", "expected type vector"),
        ("unheard_of(x)", "unknown function"),
        ('x{a="b" or c="d"}', "or between matchers is not supported"),
        ("x + fill(0) y", "fill is not supported"),
        # The library panics.
        ("x offset 1e30", "cannot convert float seconds to Duration"),
        ("x[5m:1e30]", "cannot convert float seconds to Duration"),
        ("x[2739727y]", "must have magnitude"),
    ],
)
def test_parse_errors_of_queries_name_the_problem(query: str, why: str) -> None:
    with pytest.raises(PromqlError) as caught:
        parse(query)
    assert str(caught.value).startswith(f"saw {query!r}, expected PromQL: ")
    assert why in str(caught.value)


def test_a_parse_error_is_short_even_if_the_query_is_long() -> None:
    with pytest.raises(PromqlError) as caught:
        parse(f'x{{a=~"({"b|" * 10_000}"}}')
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "query",
    [
        "(" * DEEP + "x" + ")" * DEEP,
        "sum(" * DEEP + "x" + ")" * DEEP,
        "-" * DEEP + "x",
        "x" + " + x" * DEEP,
        "x" + " oR x" * DEEP,
        'x{a="b"}' + 'or x{a="b"}' * DEEP,
        "x" + " ^ x" * DEEP,
        "x" + " == bool x" * DEEP,
        "x" + "[5m:]" * DEEP,
        # Strings that the library would read as longer than they are, or as shorter.
        r"x{a=`\`} + " + "(" * DEEP + "x" + ")" * DEEP + " + x{a=`b`}",
        "x{a='\n'} + " + "(" * DEEP + "x" + ")" * DEEP + " + x{a='b'}",
        "x # '\r + " + "(" * DEEP + "x" + ")" * DEEP + " # '",
    ],
    ids=range(12),
)
def test_queries_that_are_nested_too_deeply_are_refused(query: str) -> None:
    with pytest.raises(PromqlError, match=r"more than 200 parentheses|a string does not end"):
        parse(query)
    assert prove(a_rule(query), "x", POD).breadth == "names"


def test_the_deepest_allowed_query_is_parsed_and_proved() -> None:
    query = "abs(" * 200 + "<<.Series>>{<<.LabelMatchers>>}" + ")" * 200
    assert prove(a_rule(query), "x", POD).breadth == "cluster"


def test_brackets_inside_strings_comments_and_braces_are_not_counted_as_nesting() -> None:
    many = ",".join(f'a{number}!="(((((-----"' for number in range(300))
    called = parse(f"abs(x{{{many}}}) # {'(' * 300}")
    assert isinstance(called, Call)
    (selector,) = called.arguments
    assert isinstance(selector, Selector)
    assert len(selector.matchers) == 300
