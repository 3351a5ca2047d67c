"""Makes the two files of the chart that follow from the program.

The JSON Schema of the run file goes into the schema of its values, so that Helm refuses what the controller would; the catalogue's types
with GPUs go into a file, by which nodes are known that nothing else tells of.

Usage: ``python tools/chart_schema.py``; tests say when the chart's are older ones.
"""

import json
from pathlib import Path
from typing import Any

from gpuscaler.catalogue import types
from gpuscaler.settings.schema import pools_file_schema

CHART = Path(__file__).parents[1] / "charts" / "gpuscaler"
FILE, TYPES = CHART / "values.schema.json", CHART / "files" / "gpu-instance-types.json"


def schema(written: dict[str, Any]) -> dict[str, Any]:
    """``written`` with the run file's schema of today.

    What is required is left to a template: the chart's own values have no pools, and must pass.
    """
    config = {key: value for key, value in pools_file_schema().items() if key not in {"$schema", "required"}}
    config["else"] = {key: value for key, value in config["else"].items() if key != "required"}
    return {**written, "$defs": {**written["$defs"], "config": config}}


def gpu_types() -> dict[str, list[str]]:
    """Names of instance types by who makes their GPUs."""
    found: dict[str, list[str]] = {}
    for one in types():
        if one.gpus:
            found.setdefault(one.gpu_manufacturer, []).append(one.name)
    return {maker: sorted(names) for maker, names in sorted(found.items())}


def main() -> None:
    TYPES.write_text(json.dumps(gpu_types(), indent=2) + "\n")
    FILE.write_text(json.dumps(schema(json.loads(FILE.read_text())), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
