"""Reference pages name everything that there is."""

import re
from pathlib import Path

import msgspec
import pytest

from gpuscaler.model.options import LABELS, PodAnnotations
from gpuscaler.planning import plans

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
STRUCTS = [one for one in vars(plans).values() if isinstance(one, type) and issubclass(one, msgspec.Struct) and one is not msgspec.Struct]


def words(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text()))


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_the_page_of_the_plan_names_every_field(struct: type[msgspec.Struct]) -> None:
    assert {field.encode_name for field in msgspec.structs.fields(struct)} - words("plan.md") == set()


def test_the_page_of_the_plan_names_every_word_of_excluded_by() -> None:
    assert set(plans.EXCLUSIONS) - words("plan.md") == set()


def test_the_page_of_annotations_names_every_annotation_and_label_that_is_read() -> None:
    read = {field.encode_name for field in msgspec.structs.fields(PodAnnotations)} | LABELS

    assert read - words("annotations.md") == set()
