"""Puts the JSON Schema of the run file into the chart's schema, so that Helm refuses what the controller would.

Usage: ``python tools/chart_schema.py``; a test says when the chart's is an older one.
"""

import json
from pathlib import Path
from typing import Any

from gpuscaler.settings.schema import pools_file_schema

FILE = Path(__file__).parents[1] / "charts" / "gpuscaler" / "values.schema.json"


def schema(written: dict[str, Any]) -> dict[str, Any]:
    """``written`` with the run file's schema of today.

    What is required is left to a template: the chart's own values have no pools, and must pass.
    """
    config = {key: value for key, value in pools_file_schema().items() if key not in {"$schema", "required"}}
    config["else"] = {key: value for key, value in config["else"].items() if key != "required"}
    return {**written, "$defs": {**written["$defs"], "config": config}}


def main() -> None:
    FILE.write_text(json.dumps(schema(json.loads(FILE.read_text())), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
