"""Trees as HCL: read back as they were, laid out as `terraform fmt` does, whatever text is in them."""

import json
import re
from pathlib import Path
from typing import Any

import hcl2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.generating.terraform.running import needs_terraform, terraform

from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, Nested, call, hcl_file

HOSTILE = (
    *("", '"', "\\", "\\\\n", "${var.x}", "$${x}", "$$${x}", "%{if true}", "%%{", "$", "%", "${", "$$", "}", "# no comment", "// nor this"),
    *(
        "a\nb",
        "a\nb\n",
        "EOT\nEOT\n",
        "x\nEOT\ny\n",
        " indented\n  more\n",
        "a\n\nb\n",
        "a$\nb\n",
        "a\r\nb\r\n",
        "tab\there\n\n",
        "\n",
        "\n\n",
    ),
    *("\x00", "\x1b[31m", "\u2028", "é", "😀", "'", "`", "{{ x }}", "<<EOT\nx\nEOT\n", "${\nx\n}\n", "%{ for }\nx\n", "~}"),
)
#: What python-hcl2 cannot read, though it is HCL: an escaped template that does not end. Terraform itself reads these, below.
UNREAD = re.compile(r"[$%]\{[^}]*$")
WHOLE: Tree = because(
    "Why it is there.",
    Block(
        "resource",
        ("aws_x", "y"),
        {
            "for_each": Expression("local.groups"),
            "name": "n",
            "enabled_long": because("It has a reason of its own.", True),
            "tags": {"a/b": 1, "for": 2.5, Expression("var.key"): None, "empty": {}},
            "policy": call("jsonencode", {"Statement": [{"Action": ["a"]}, because("The second.", {"Action": []})]}),
            "text": "one\n  two ${x}\n",
            "z": [{"key": "k", "value": ""}],
            "lifecycle": because("It changes.", Nested({"ignore_changes": [Expression("size")]})),
            "taint": [Nested({"key": "a"}), because("Another.", Nested({"key": "b"}))],
            "dynamic": Nested({"for_each": [], "content": Nested({"a": Expression("tag.key")})}, labels=("tag",)),
        },
    ),
)
TEXT = """\
# Why it is there.
resource "aws_x" "y" {
  for_each = local.groups
  name     = "n"
  # It has a reason of its own.
  enabled_long = true
  tags = {
    "a/b"     = 1
    "for"     = 2.5
    (var.key) = null
    empty     = {}
  }
  policy = jsonencode({
    Statement = [
      {
        Action = ["a"]
      },
      # The second.
      {
        Action = []
      },
    ]
  })
  text = <<EOT
one
  two $${x}
EOT
  z    = [{ key = "k", value = "" }]

  # It changes.
  lifecycle {
    ignore_changes = [size]
  }

  taint {
    key = "a"
  }

  # Another.
  taint {
    key = "b"
  }

  dynamic "tag" {
    for_each = []

    content {
      a = tag.key
    }
  }
}
"""


def rendered(value: Tree, *, explain: bool = False) -> str:
    return hcl_file("x.tf", "a file", [Block("locals", (), {"x": value})]).text(explain=explain)


def read(text: str) -> Any:
    return _values(hcl2.loads(text)["locals"][0]["x"])


def _values(tree: Any) -> Any:
    """Return what the parser found, with strings as HCL reads them."""
    if isinstance(tree, dict):
        return {_string(key): _values(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_values(value) for value in tree]
    return _string(tree) if isinstance(tree, str) else tree


def _string(text: str) -> str:
    if text.startswith('"<<EOT\n'):
        body = text.removeprefix('"<<EOT\n').removesuffix('EOT"')
    elif text.startswith('"'):
        body = json.loads(_json(text))
    else:
        return text
    return str(body).replace("$${", "${").replace("%%{", "%{")


def _json(text: str) -> str:
    """Return a quoted string of HCL as one of JSON, which lacks only the long form of code points."""
    head, *rest = text.split("\\U")
    return head + "".join(json.dumps(chr(int(part[:8], 16)))[1:-1] + part[8:] for part in rest)


def test_layout_and_reasons() -> None:
    assert hcl_file("x.tf", "a file", [WHOLE]).text(explain=True) == TEXT


def test_without_reasons_neighbours_are_aligned() -> None:
    assert rendered({"a": because("Why.", 1), "long": because("Why.", 2), "list": [], "x y": "z"}) == (
        'locals {\n  x = {\n    a     = 1\n    long  = 2\n    list  = []\n    "x y" = "z"\n  }\n}\n'
    )


def test_values_without_a_reason_are_gaps_and_blocks_are_not() -> None:
    blocks = [
        Block("resource", ("a", "b"), {"x": 1, "y": because("Why.", 2), "n": Nested({"z": 3, "w": because("Why.", [])})}),
        because("Why.", Block("data", ("c", "d"), {})),
        Block("locals", (), {"p": call("jsonencode", {"Sid": "s", "Action": because("Why.", "t")})}),
    ]
    assert hcl_file("x.tf", "a file", blocks).gaps == ("resource.a.b.x", "resource.a.b.n.z", "locals.p[0].Sid")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"a b": 1}, 'saw the name "a b"'),
        ({"x": [Nested({}), 1]}, "saw blocks and values in one list"),
        ({"x": object()}, "expected a value that HCL has"),
        ({"x": float("nan")}, "not JSON compliant"),
    ],
)
def test_what_hcl_has_not_is_refused(body: dict[str, Tree], error: str) -> None:
    file = hcl_file("x.tf", "a file", [Block("locals", (), body)])
    with pytest.raises((TypeError, ValueError), match=error):
        file.text(explain=False)


@pytest.mark.parametrize("text", [text for text in HOSTILE if not UNREAD.search(text)], ids=ascii)
def test_hostile_text_is_read_back(text: str) -> None:
    assert read(rendered({"value": text, "list": [text], "nested": {text or "empty": text}})) == {
        "value": text,
        "list": [text],
        "nested": {text or "empty": text},
    }


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(0, 2**53)
    | st.text(st.characters(codec="utf-8"), max_size=20).filter(lambda text: not UNREAD.search(text))
)
KEYS = st.text('abz_-09./ $%{}"\\', min_size=1, max_size=8).filter(lambda text: not UNREAD.search(text))
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(TREES)
def test_trees_are_read_back_with_and_without_reasons(tree: Any) -> None:
    def explained(value: Any) -> Tree:
        if isinstance(value, dict):
            return {key: because("A reason.", explained(entry)) for key, entry in value.items()}
        return [because("A reason.", explained(entry)) for entry in value] if isinstance(value, list) else value

    assert read(rendered(tree)) == tree
    assert read(rendered(explained(tree), explain=True)) == tree


@needs_terraform
def test_terraform_reads_hostile_text_as_it_was(tmp_path: Path) -> None:
    tree = {"list": list(HOSTILE), "keys": {text: 1 for text in HOSTILE if text}}
    (tmp_path / "x.tf").write_text(rendered(tree))
    (tmp_path / "out.tf").write_text('output "x" {\n  value = jsonencode(local.x)\n}\n')
    terraform(tmp_path, "init")
    terraform(tmp_path, "apply", "-auto-approve")
    assert json.loads(json.loads(terraform(tmp_path, "output", "-json", "x"))) == tree


@needs_terraform
@pytest.mark.parametrize("explain", [True, False])
def test_the_layout_is_that_of_terraform_fmt(tmp_path: Path, *, explain: bool) -> None:
    file = hcl_file("x.tf", "a file", [WHOLE, Block("locals", (), {"hostile": list(HOSTILE), "call": call("f", 1, {"a": "b\nc\nd\n"})})])
    (tmp_path / "x.tf").write_text(file.text(explain=explain))
    terraform(tmp_path, "fmt", "-check", "-diff")
