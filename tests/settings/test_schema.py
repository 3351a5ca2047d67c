from typing import Any

import jsonschema
import pytest
from tests.settings.corpus import BAD_FORM, BAD_MEANING, GOOD, Bad

from gpuscaler.model.reading.document import Entry, read_document
from gpuscaler.settings.schema import pools_file_schema


def plain(entry: Entry) -> Any:
    if isinstance(entry.value, dict):
        return {key: plain(member) for key, member in entry.value.items()}
    if isinstance(entry.value, list):
        return [plain(item) for item in entry.value]
    return entry.value


def accepts(text: str) -> bool:
    root, problems = read_document(text)
    assert root is not None
    assert problems == []
    return bool(jsonschema.Draft202012Validator(pools_file_schema()).is_valid(plain(root)))


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(pools_file_schema())


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_the_schema_accepts_what_the_parser_accepts(text: str) -> None:
    assert accepts(text)


@pytest.mark.parametrize("bad", BAD_FORM, ids=lambda bad: f"{bad.place}: {bad.says}")
def test_the_schema_rejects_mistakes_in_form(bad: Bad) -> None:
    assert not accepts(bad.text)


@pytest.mark.parametrize("bad", BAD_MEANING, ids=lambda bad: f"{bad.place}: {bad.says}")
def test_the_schema_accepts_mistakes_in_meaning_that_only_the_parser_finds(bad: Bad) -> None:
    assert accepts(bad.text)


def test_descriptions_of_run_file_keys_in_the_schema_are_plain_text() -> None:
    top = pools_file_schema()["properties"]
    kept = top["history"]["anyOf"][0]["properties"]["bytes"]

    assert top["cloud"]["description"].endswith("its AKS agent pools and scale sets")
    assert (kept["description"], kept["anyOf"][0]["default"]) == ("maximum size of the kept decisions in total", "64Mi")
