"""What holds for all generated files, whatever writes them."""

import pytest
import yaml
from tests.generating.corpus import NAMES, generated


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
