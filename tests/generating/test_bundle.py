"""What holds for all generated files, whatever writes them."""

import pytest
import yaml
from tests.generating.corpus import NAMES, generated

from gpuscaler.generating.writing.explained import because
from gpuscaler.generating.writing.yaml_text import render_yaml

#: Texts that some parser of YAML would read as more lines than one, or otherwise than they are.
ODD_TEXTS = (
    "a\n\u2028- b",
    "a\n\u2029b: c",
    "\x85a\nb",
    "a\rb\nc",
    "a\x07\nb",
    "  a\nb",
    " a",
    "\n",
    "a\n\n\n",
    "a\n  \nb",
    "a\tb",
    "\ta\nb",
    "\ufeffa\nb",
    "a\u202eb",
    "\U0001f600\nb",
    "#a\n# b",
    "--- a\n...\nb",
    "y",
    "",
)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_is_written_as_what_it_is(text: str) -> None:
    tree = because(f"Why {text}", {"one": text, text: "two", "list": [text, because(text, {"deep": text})]})
    plain = {"one": text, text: "two", "list": [text, {"deep": text}]}
    for explain in (False, True):
        written = render_yaml([tree, tree], explain=explain)
        assert list(yaml.load_all(written, yaml.SafeLoader)) == [plain, plain]
        assert all(map(str.isprintable, written.split("\n")))


def test_what_would_read_otherwise_is_not_returned() -> None:
    with pytest.raises(AssertionError, match="reads otherwise than what was to be written"):
        render_yaml([{"not a number": float("nan")}], explain=False)
    with pytest.raises(AssertionError, match="cannot be read"):
        render_yaml([{"k" * 2000: 1}], explain=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_reason(name: str) -> None:
    assert {path: file.gaps for path, file in generated(name).items() if file.gaps} == {}


@pytest.mark.parametrize("name", NAMES)
def test_reasons_do_not_change_what_is_written(name: str) -> None:
    for path, file in generated(name).items():
        if path.endswith(".yaml"):
            assert list(yaml.safe_load_all(file.text(explain=True))) == list(yaml.safe_load_all(file.text(explain=False))), path


@pytest.mark.parametrize("name", NAMES)
def test_paths_are_relative_and_distinct(name: str) -> None:
    paths = list(generated(name))
    assert len(set(paths)) == len(paths)
    assert not [path for path in paths if path.startswith("/") or ".." in path.split("/")]
