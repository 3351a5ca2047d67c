"""What holds for all generated files, whatever writes them."""

import re

import pytest
import yaml
from tests.generating.corpus import NAMES, description, generated


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


def sections(name: str) -> dict[str, str]:
    """The sections of the README by their headings."""
    _, *found = re.split("^## (.*)$", generated(name)["README.md"].text(explain=False), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_no_part_of_the_setup_and_say_what_they_ask_for_and_how_they_go(name: str) -> None:
    steps, examples = sections(name)["Apply the files in this order"], sections(name)["Try one of these"]
    paths = [path for path in generated(name) if path != "README.md"]
    assert re.findall("^[0-9]+[.] `(.*?)`", steps, re.MULTILINE) == [path for path in paths if not path.startswith("workloads/")]
    entries = dict(re.findall("^- `(.*?)`(.*?)(?=^- |\\Z)", examples, re.MULTILINE | re.DOTALL))
    assert list(entries) == [path for path in paths if path.startswith("workloads/")]
    for path, entry in entries.items():
        assert f"kubectl delete --filename {path}\n" in entry
        if path != "workloads/hpa.yaml":
            types = {group.instance_type.name for group in description(name).groups}
            assert "asks for" in entry, path
            assert any(type_ in entry for type_ in types) or re.search("has [0-9]+ types", entry), path
            assert re.search("about [0-9.]+ .*dollars an hour|no list price is known", entry), path
