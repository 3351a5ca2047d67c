"""Templates as Go's documentation of text/template describes them. What Go's own makes of them is compared in test_oracle.py."""

import pytest

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.running import Template

VALUES = {
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
        ("<<range slice .GroupBySlice 0 0>>x<<else>>none<<end>>", "none"),
        ('<<index .LabelValuesByName "pod">>', "a|b"),
        ("<<.LabelValuesByName.pod>>/<<.LabelValuesByName.none>>", "a|b/<no value>"),
        ("<<index .GroupBySlice 1>>", "container"),
        ("<<len .GroupBySlice>> <<len .Series>>", "2 2"),
        ('<<printf "%s-%q %d %v %5s|%-4s|%05d" .Series .GroupBy 7 true "x" "y" 42>>', 'up-"pod" 7 true     x|y   |00042'),
        ('<<.Series | printf "%s.%s" "a">>', "a.up"),
        ('<<printf "%d" .Series>>', "%!d(string=up)"),
        ("<<$x := .Series>><<range .GroupBySlice>><<$x = .>><<end>><<$x>>", "container"),
        ("<<and .Series .GroupBy>> <<or `` .GroupBy>> <<not .Series>>", "pod pod false"),
        ("<<and (lt 1 2) (le 2 2) (gt 3 2) (ge 2 2)>>", "true"),
        ("<<or .Series (index .GroupBySlice 9)>>", "up"),
        ("<<print 1 2 .Series>>|<<println `a`>>", "1 2up|a\n"),
        ("<<.GroupBySlice>> <<.LabelValuesByName>>", "[pod container] map[namespace:default pod:a|b]"),
        ("<<$.Series>><<with .GroupBy>><<$.Series>><<end>>", "upup"),
        ("<<0x10>> <<010>> <<1_000>> <<'a'>> <<1e3>> <<0.5>>", "16 8 1000 97 1000 0.5"),
    ],
)
def test_renders(source: str, text: str) -> None:
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
def test_refuses_to_read(source: str) -> None:
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
        "<<nil>>",
        "<<and>>",
        "<<slice .Series 2 1>>",
        '<<printf "%99999d" 1>>',
        '<<printf "%[1]s" 1>>',
        "<<$x = 1>>",
    ],
)
def test_refuses_to_fill_in(source: str) -> None:
    template = Template(source)
    with pytest.raises(TemplateError):
        template.render(VALUES)


def test_says_in_which_line() -> None:
    with pytest.raises(TemplateError, match="line 3: saw nothing, which is no function"):
        Template("a\nb\n<<nothing>>")
