"""Reference pages are complete."""

import re
from pathlib import Path

import click
import msgspec
import pytest

from gpuscaler.cli import main
from gpuscaler.model.decoding.nodes import NodeAnnotations
from gpuscaler.model.decoding.workloads import Annotations
from gpuscaler.model.options import LABELS, PodAnnotations
from gpuscaler.planning import plans, scale_down

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
STRUCTS = [var for var in vars(plans).values() if isinstance(var, type) and issubclass(var, msgspec.Struct) and var is not msgspec.Struct]


def words(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text()))


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_the_plan_reference_page_names_every_field(struct: type[msgspec.Struct]) -> None:
    assert {field.encode_name for field in msgspec.structs.fields(struct)} - words("plan.md") == set()


def test_the_plan_reference_page_names_every_value_of_excluded_by() -> None:
    assert set(plans.EXCLUSIONS) - words("plan.md") == set()


def test_the_annotations_reference_page_names_every_annotation_and_label_that_is_read() -> None:
    read = {
        field.encode_name for struct in (PodAnnotations, NodeAnnotations, Annotations) for field in msgspec.structs.fields(struct)
    } | LABELS

    assert read - words("annotations.md") == set()


@pytest.mark.parametrize("name", sorted(main.list_commands(click.Context(main))))
def test_the_commands_reference_page_names_every_command_and_its_options(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    sections = (REFERENCE / "commands.md").read_text().split("\n## ")
    section = next(text for text in sections if text.startswith(f"`gpuscaler {name}`"))
    options = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--")
    }

    assert {option for option in options if f"`{option}" not in section} == set()


def test_the_page_about_nodes_that_are_not_removed_explains_every_blocker() -> None:
    source = Path(scale_down.__file__).parent
    used = {word for path in source.rglob("*.py") for word in re.findall(r"Blocker\(\s*\"([a-z-]+)\"", path.read_text())}
    explained = words("../how-to/why-does-a-node-stay.md")

    assert used
    assert used - explained == set()
