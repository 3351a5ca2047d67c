import re
from pathlib import Path

import pytest

from gpuscaler.settings import parse_policy
from gpuscaler.settings.offerings import OFFERING_KEYS
from gpuscaler.settings.pieces import BUDGET_KEYS
from gpuscaler.settings.pools_file import LIMIT_KEYS, POOL_KEYS, TOP_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "pools-file.md").read_text()
EXAMPLES = re.findall(r"^```yaml pools-file\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_reference_is_a_good_file(text: str) -> None:
    assert parse_policy(text).pools


def test_the_reference_has_examples() -> None:
    assert len(EXAMPLES) >= 4


def test_every_key_is_in_a_table_of_the_reference() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))

    assert {*TOP_KEYS, *LIMIT_KEYS, *POOL_KEYS, *OFFERING_KEYS, *BUDGET_KEYS} == listed
