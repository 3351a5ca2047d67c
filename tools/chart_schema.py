"""Generates the two files of the chart that depend on the program.

The JSON Schema of the run file becomes part of the schema of the chart's values, so that Helm refuses what the controller would refuse. The
catalogue's types with GPUs become a file, by which GPU nodes without any GPU label are recognised.

Usage: ``python tools/chart_schema.py``; tests fail if the chart's files are out of date.
"""

import json
from pathlib import Path
from typing import Any

from gpuscaler.catalogue import types
from gpuscaler.settings.schema import pools_file_schema

CHART = Path(__file__).parents[1] / "charts" / "gpuscaler"
FILE, TYPES = CHART / "values.schema.json", CHART / "files" / "gpu-instance-types.json"


def schema(written: dict[str, Any]) -> dict[str, Any]:
    """``written`` with the current schema of the run file.

    Required keys are checked in a template instead: the chart's own values have no pools, and must pass.
    """
    config = {key: value for key, value in pools_file_schema().items() if key not in {"$schema", "required"}}
    config["else"] = {key: value for key, value in config["else"].items() if key != "required"}
    return {**written, "$defs": {**written["$defs"], "config": config}}


def gpu_types() -> dict[str, list[str]]:
    """Names of instance types by the manufacturer of their GPUs."""
    names_by_maker: dict[str, list[str]] = {}
    for instance_type in types():
        if instance_type.gpus:
            names_by_maker.setdefault(instance_type.gpu_manufacturer, []).append(instance_type.name)
    return {maker: sorted(names) for maker, names in sorted(names_by_maker.items())}


def main() -> None:
    TYPES.write_text(json.dumps(gpu_types(), indent=2) + "\n")
    FILE.write_text(json.dumps(schema(json.loads(FILE.read_text())), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
