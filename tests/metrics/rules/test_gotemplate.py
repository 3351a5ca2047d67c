"""Templates as described in Go's documentation of text/template. test_oracle.py compares them with Go's own implementation."""

import re

import pytest

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.running import Template
from gpuscaler.metrics.rules.gotemplate.syntax import Value

VALUES: dict[str, Value] = {
    "Empty": [],
    "Series": "up",
    "LabelMatchers": 'pod=~"a|b"',
    "LabelValuesByName": {"namespace": "default", "pod": "a|b"},
    "GroupBy": "pod",
    "GroupBySlice": ["pod", "container"],
}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)", 'sum(up{pod=~"a|b"}) by (pod)'),
        ("a <<- .Series ->> b", "aupb"),
        ("a <</* nothing */>> b", "a  b"),
        ("a <<- /* nothing */ ->> b", "ab"),
        ("<<if .Series>>x<<else>>y<<end>>", "x"),
        ('<<if eq .Series "down" "up">>x<<end>>', "x"),
        ('<<if eq .Series "a">>1<<else if ne .Series "up">>2<<else>>3<<end>>', "3"),
        ("<<with .Series>><<.>><<end>>", "up"),
        ("<<with index .LabelValuesByName `none`>>x<<else with .GroupBy>><<.>><<end>>", "pod"),
        ("<<range .GroupBySlice>><<.>>;<<end>>", "pod;container;"),
        ("<<range $i, $v := .GroupBySlice>><<if $i>>,<<end>><<$v>><<end>>", "pod,container"),
        ('<<range $k, $v := .LabelValuesByName>><<if ne $k "namespace">><<$k>>=~"<<$v>>"<<end>><<end>>', 'pod=~"a|b"'),
        ("<<range .GroupBySlice>><<if eq . `pod`>><<continue>><<end>><<.>><<break>><<end>>", "container"),
        ("<<range .Empty>>x<<else>>none<<end>>", "none"),
        ("<<slice .LabelMatchers 3>>/<<slice .LabelMatchers 0 3>>/<<slice .Series 2>>/<<len (slice .Series 0 1)>>", '=~"a|b"/pod//1'),
        ('<<index .LabelValuesByName "pod">>', "a|b"),
        ("<<.LabelValuesByName.pod>>/<<.LabelValuesByName.none>>", "a|b/<no value>"),
        ("<<index .GroupBySlice 1>>", "container"),
        ("<<len .GroupBySlice>> <<len .Series>>", "2 2"),
        ('<<printf "%s-%q %d%% %v %v" .Series .GroupBy 7 true .GroupBySlice>>', 'up-"pod" 7% true [pod container]'),
        ('<<.Series | printf "%s.%s" "a">>', "a.up"),
        ("<<$x := .Series>><<range .GroupBySlice>><<$x = .>><<end>><<$x>>", "container"),
        ("<<and .Series .GroupBy>> <<or `` .GroupBy>> <<not .Series>>", "pod pod false"),
        ("<<and (lt 1 2) (le 2 2) (gt 3 2) (ge 2 2)>>", "true"),
        ("<<or .Series (index .GroupBySlice 9)>>", "up"),
        ("<<print 1 2 .Series>>", "1 2up"),
        ("<<.GroupBySlice>> <<.LabelValuesByName>>", "[pod container] map[namespace:default pod:a|b]"),
        ("<<$.Series>><<with .GroupBy>><<$.Series>><<end>>", "upup"),
        (r'<<0>> <<120>> <<true>> <<"a\t\"\\">> <<`\t`>>', '0 120 true a\t"\\ \\t'),
    ],
)
def test_templates_render_as_in_go(source: str, text: str) -> None:
    assert Template(source).render(VALUES) == text


@pytest.mark.parametrize(
    "source",
    [
        "<<.Series",
        "<<>>",
        "<<if>>x<<end>>",
        "<<if .Series>>x",
        "x<<end>>",
        "<<else>>",
        "<<$x>>",
        "<<nothing .Series>>",
        "<<template `x`>>",
        "<<.Series | 5>>",
        "<<(.Series>>",
        "<<.Series)>>",
        '<<"unclosed>>',
        "<<break>>",
        "<</* unclosed >>",
        "<<1x>>",
        r'<<"\N{BULLET}">>',
        "<<$a, $b := .Series>>",
        "<<if .Series>>" * 60 + "<<end>>" * 60,
        "<<" + "(" * 60 + "1" + ")" * 60 + ">>",
    ],
)
def test_invalid_templates_are_refused_when_parsed(source: str) -> None:
    with pytest.raises(TemplateError, match=r"^line 1: "):
        Template(source)


@pytest.mark.parametrize(
    "source",
    [
        "<<.Nothing>>",
        "<<.Series.x>>",
        "<<index .GroupBySlice 2>>",
        "<<index .GroupBySlice `x`>>",
        "<<index 5 1>>",
        "<<len 5>>",
        "<<eq 1 `1`>>",
        "<<lt true false>>",
        "<<range .Series>><<end>>",
        "<<.Series .GroupBy>>",
        "<<and>>",
        "<<slice .Series 2 1>>",
        "<<slice .Series 0 3>>",
        "<<slice .GroupBySlice 1>>",
        "<<slice .Series>>",
        "<<index .Series 0>>",
        "<<index .GroupBySlice>>",
        "<<range 3>><<end>>",
        "<<range .LabelValuesByName.none>><<end>>",
        "<<.LabelValuesByName.none.x>>",
        "<<print printf>>",
        '<<printf "%d" .Series>>',
        '<<printf "%d" true>>',
        '<<printf "%s" 1>>',
        '<<printf "%q" .GroupBySlice>>',
        '<<printf "%s" .LabelValuesByName.none>>',
        "<<$x = 1>>",
    ],
)
def test_templates_that_fail_in_go_are_refused_when_rendered(source: str) -> None:
    template = Template(source)
    with pytest.raises(TemplateError):
        template.render(VALUES)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("<<println .Series>>", "println, which is not supported here"),
        ("<<eq .Series nil>>", "nil, which is not supported here"),
        ("<<define `x`>>", "define, which is not supported here"),
        ("<<'a'>>", "'a', a character, which is not supported here"),
        *(
            (f"<<{number}>>", f"{number}, expected a whole decimal number")
            for number in ("0x10", "010", "1_000", "1e3", "0.5", "-3", "1" * 19)
        ),
        (r'<<"\x41">>', r"\x in quoted text, which is not supported here"),
        *(
            (f'<<printf "a{verb} %s" 1 `x`>>', f"{verb} in printf, which is not supported")
            for verb in ("%5s", "%-d", "%.2f", "%x", "%T", "%#v", "% d")
        ),
        ('<<printf "%[1]s" 1>>', "%[ in printf, which is not supported"),
        ('<<printf "50%">>', "% in printf, which is not supported"),
        ('<<printf "%s">>', 'printf "%s" with 0 values, expected 1'),
        ('<<.Series | printf "%s%%" `x`>>', 'printf "%s%%" with 2 values, expected 1'),
        ("<<printf .Series>>", "printf without a format after it"),
        ("<<`%s` | printf>>", "printf without a format after it"),
        ("<<if (printf `%d` 1 2)>><<end>>", 'printf "%d" with 2 values'),
    ],
)
def test_an_unsupported_template_feature_is_named_in_the_error(source: str, named: str) -> None:
    with pytest.raises(TemplateError, match=f"^line 1: saw {re.escape(named)}"):
        Template(source)


def test_template_errors_have_the_line_number() -> None:
    with pytest.raises(TemplateError, match="line 3: saw nothing, which is not a function"):
        Template("a\nb\n<<nothing>>")
