"""How large the parts of a wheel are, unpacked: the product by room, and the laboratory beside it. ``python tools/sizes.py WHEEL``."""

import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

#: What serves trying and proving; `gpuscaler run` on a real cloud, `metrics` and `exporter` load none of it.
LABORATORY = ("simulation", "embedded")


def parts_of(wheel: Path) -> Counter[str]:
    """Bytes by room of the package; files beside the rooms count as ``package``, those beside the package as ``metadata``."""
    sizes: Counter[str] = Counter()
    with ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = entry.filename.split("/")
            sizes["metadata" if parts[0] != "gpuscaler" else parts[1] if len(parts) > 2 else "package"] += entry.file_size
    return sizes


def table(sizes: Counter[str]) -> str:
    """A line for each part, the largest first, and one for each half."""
    laboratory = sum(sizes[room] for room in LABORATORY)
    rows = [(room, size, " (laboratory)" if room in LABORATORY else "") for room, size in sizes.most_common()]
    rows += [("product", sizes.total() - laboratory, ""), ("laboratory", laboratory, "")]
    return "\n".join(f"  {name:<12}{size / 1000:>9,.0f} kB{note}" for name, size, note in rows)


if __name__ == "__main__":
    print(f"{Path(sys.argv[1]).name}, unpacked:\n{table(parts_of(Path(sys.argv[1])))}")
