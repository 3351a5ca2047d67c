"""Queries as they come: from files of rules, with names of series in them that anybody may have made up."""

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
def test_reads_texts_as_prometheus_does_and_writes_them_so_that_it_reads_the_same(query: str, matcher: Matcher, text: str) -> None:
    selector = parse(query)
    assert selector == Selector("x", (matcher,), text)
    assert parse(text) == selector


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "no expression found"),
        ("x{a", "unexpected end of input"),
        ('x{a="b', "a text does not end"),
        ('x{a="b\n"}', "a text does not end"),
        ("x\0", "unexpected character"),
        ('x{a="\ud800"}', "surrogates not allowed"),
        ("sum(x[5m])", "expected type vector"),
        ("unheard_of(x)", "unknown function"),
        ('x{a="b" or c="d"}', "or between matchers is not understood"),
        ("x + fill(0) y", "fill is not understood"),
        # The library panics.
        ("x offset 1e30", "cannot convert float seconds to Duration"),
        ("x[5m:1e30]", "cannot convert float seconds to Duration"),
        ("x[2739727y]", "must have magnitude"),
    ],
)
def test_says_what_it_cannot_read(query: str, why: str) -> None:
    with pytest.raises(PromqlError) as caught:
        parse(query)
    assert str(caught.value).startswith(f"saw {query!r}, expected PromQL: ")
    assert why in str(caught.value)


def test_an_error_is_short_even_where_the_query_is_long() -> None:
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
        # What the library would take for a longer text than it is, and the other way about.
        r"x{a=`\`} + " + "(" * DEEP + "x" + ")" * DEEP + " + x{a=`b`}",
        "x{a='\n'} + " + "(" * DEEP + "x" + ")" * DEEP + " + x{a='b'}",
        "x # '\r + " + "(" * DEEP + "x" + ")" * DEEP + " # '",
    ],
    ids=range(12),
)
def test_ends_on_queries_that_would_overflow_the_stack(query: str) -> None:
    with pytest.raises(PromqlError, match=r"more than 200 parentheses|a text does not end"):
        parse(query)
    assert prove(a_rule(query), "x", POD).breadth == "names"


def test_reads_and_proves_the_deepest_query_that_is_allowed() -> None:
    query = "abs(" * 200 + "<<.Series>>{<<.LabelMatchers>>}" + ")" * 200
    assert prove(a_rule(query), "x", POD).breadth == "cluster"


def test_what_is_in_texts_comments_and_braces_counts_for_nothing() -> None:
    many = ",".join(f'a{number}!="(((((-----"' for number in range(300))
    called = parse(f"abs(x{{{many}}}) # {'(' * 300}")
    assert isinstance(called, Call)
    (selector,) = called.arguments
    assert isinstance(selector, Selector)
    assert len(selector.matchers) == 300
