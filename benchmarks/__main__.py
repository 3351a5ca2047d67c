"""``python -m benchmarks [NAME]...``: measure, print a table, write ``build/bench.json``. Exit 1 if a figure misses its target."""

import json
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure

MODULES = (
    *("cost", "speed", "fleet", "scale_down", "replay", "simulation", "live", "restarts", "binding", "real"),
    *("exporter", "metrics", "aws", "azure", "hostile", "attacks"),
)


def main(names: list[str]) -> int:
    figures: list[Figure] = []
    console = Console()
    for name in names or MODULES:
        for figure in import_module(f"benchmarks.{name}").figures():
            console.print(
                f"{'reached ' if figure.reached else 'MISSED  '} {figure.what}: {figure.measured} (target {figure.reach})", highlight=False
            )
            figures.append(figure)
    table = Table(title="Figures")
    for heading in ("what", "peers", "reach", "measured", ""):
        table.add_column(heading)
    for figure in figures:
        table.add_row(figure.what, figure.peers, figure.reach, figure.measured, "✓" if figure.reached else "✗")
    console.print(table)
    out = Path("build")
    out.mkdir(exist_ok=True)
    (out / "bench.json").write_text(json.dumps([vars(figure) for figure in figures], indent=2, ensure_ascii=False) + "\n")
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
