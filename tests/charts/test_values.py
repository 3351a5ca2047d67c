"""The values of the chart: schema and documentation, and that both are of this version. Nothing is rendered here."""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import gpuscaler

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "gpuscaler"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
PAGE = ROOT / "docs" / "reference" / "chart.md"


def leaves(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Return the dotted names of all values; ``config`` is one."""
    for name, part in schema["properties"].items():
        if "properties" in part:
            yield from leaves(part, f"{path}{name}.")
        elif name != "global":
            yield path + name


def defaults(values: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        part = schema["properties"][name]
        if "properties" in part:
            yield from defaults(value, part, f"{path}{name}.")
        else:
            yield path + name, value


def documented() -> dict[str, str]:
    """Return value and default of each row of the page's tables."""
    return dict(re.findall(r"^\| `([A-Za-z.]+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE))


def tool() -> Any:
    """Load tools/chart_schema.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("chart_schema", ROOT / "tools" / "chart_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_values_schema_includes_the_run_file_schema_of_this_version() -> None:
    assert tool().schema(SCHEMA) == SCHEMA, "run `make manifest`"


def test_the_chart_has_the_gpu_instance_types_of_this_version_s_catalogue() -> None:
    types = json.loads((CHART / "files" / "gpu-instance-types.json").read_text())

    assert types == tool().gpu_types(), "run `make manifest`"
    assert ("g5.xlarge" in types["nvidia"], "g4ad.xlarge" in types["amd"]) == (True, True)


def test_the_charts_version_is_that_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (gpuscaler.__version__, gpuscaler.__version__)


def test_every_value_has_a_valid_default() -> None:
    assert list(Draft202012Validator(SCHEMA).iter_errors(VALUES)) == []
    assert sorted(leaves(SCHEMA)) == sorted(name for name, _ in defaults(VALUES, SCHEMA))


def test_the_chart_reference_page_lists_exactly_the_charts_values() -> None:
    assert sorted(documented()) == sorted(leaves(SCHEMA))


@pytest.mark.parametrize(("name", "default"), list(defaults(VALUES, SCHEMA)), ids=lambda given: given if isinstance(given, str) else "")
def test_the_chart_reference_page_has_the_default_values(name: str, default: Any) -> None:
    shown = documented()[name]
    if shown.startswith("`"):
        assert yaml.safe_load(shown.strip("`")) == default
    else:
        # Long defaults are in values.yaml, and the table describes them in words.
        assert default
        assert shown
