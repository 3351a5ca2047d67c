import re
from pathlib import Path

import pytest

from gpuscaler.settings import parse_policy, parse_settings, run_file
from gpuscaler.settings.offerings import OFFERING_KEYS
from gpuscaler.settings.pieces import BUDGET_KEYS
from gpuscaler.settings.pools_file import LIMIT_KEYS, POOL_KEYS, TOP_KEYS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "pools-file.md").read_text()
RUN_PAGE = (REFERENCE / "run-file.md").read_text()
EXAMPLES = re.findall(r"^```yaml pools-file\n(.*?)^```$", PAGE + RUN_PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_reference_is_a_good_file(text: str) -> None:
    assert parse_policy(text).pools


def test_the_reference_has_examples() -> None:
    assert len(EXAMPLES) >= 4


def test_every_key_is_in_a_table_of_the_reference() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))

    assert {*TOP_KEYS, *LIMIT_KEYS, *POOL_KEYS, *OFFERING_KEYS, *BUDGET_KEYS} == listed


def test_every_key_of_a_run_file_is_in_a_table_of_its_reference() -> None:
    groups = [keys for name, keys in vars(run_file).items() if name.endswith("_KEYS")]
    listed = set(re.findall(r"^\| `(\w+)` \|", RUN_PAGE, re.MULTILINE))

    assert {key for keys in groups for key in keys} == listed


def test_the_defaults_of_the_reference_are_those_of_the_program() -> None:
    """Each default that the page gives, written into a file, changes nothing."""
    smallest = "region: us-east-1\npools: [{name: a, types: [g5.xlarge]}]\n"
    rows = re.findall(r"^### (.*)$|^## (.*)$|^\| `(\w+)` \| [^|]+ \| `([^`|]+)` \|", RUN_PAGE, re.MULTILINE)
    groups = {
        "Pace": "pace",
        "Leader election": "leader_election",
        "Rate limit": "rate_limit",
        "HTTP": "http",
        "Pages": "pages",
        "History": "history",
    }
    groups |= {"Log": "log", "The simulated cloud": "simulated"}
    group, checked = "", 0
    for deeper, heading, key, default in rows:
        if deeper or heading:
            group = groups.get(deeper or heading, "reclaim" if deeper == "Reclaim" else "")
        elif group:
            value = f"{{{key}: {default!r}}}" if default.startswith(":") else f"{{{key}: {default}}}"
            text = f"simulated: {{reclaim: {value}}}" if group == "reclaim" else f"{group}: {value}"
            assert parse_settings(smallest + text) == parse_settings(smallest), text
            checked += 1

    assert checked >= 20
