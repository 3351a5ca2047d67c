import re
from pathlib import Path

import pytest
from tools.reference_tables import PAGES, filled, groups, tables

from gpuscaler.settings import parse_policy, parse_settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "pools-file.md").read_text()
RUN_PAGE = (REFERENCE / "run-file.md").read_text()
EXAMPLES = re.findall(r"^```yaml pools-file\n(.*?)^```$", PAGE + RUN_PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_in_the_reference_is_valid(text: str) -> None:
    assert parse_policy(text).pools


def test_the_reference_has_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_tables_of_the_reference_match_the_settings_classes(path: Path) -> None:
    assert filled(path.read_text()) == path.read_text(), "run `make manifest`"


def test_every_class_of_settings_has_a_table() -> None:
    assert sorted(name for path in PAGES for name in tables(path.read_text())) == sorted(groups())


def test_the_defaults_in_the_reference_are_those_of_the_program() -> None:
    """Writing any default of the page into a file does not change the parsed settings."""
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
