"""Unpacked sizes of the parts of a wheel and of the image: the product by package, simulation and emulators, libraries, and the base.

``python -m tools.release.sizes WHEEL`` prints them for a wheel; a release prints them for both.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

from tools.release.sbom import entries

#: Packages for trying out and testing; `gpuscaler run` on a real cloud, `metrics` and `exporter` load none of them.
LABORATORY = ("simulation", "embedded")
OURS = re.compile(r"opt/gpuscaler/.*/site-packages/gpuscaler/(?:(?P<room>[^/]+)/)?")


def parts_of_wheel(wheel: Path) -> Counter[str]:
    """Bytes by sub-package; files beside the sub-packages count as ``package``, those beside the package as ``metadata``."""
    sizes: Counter[str] = Counter()
    with ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = entry.filename.split("/")
            sizes["metadata" if parts[0] != "gpuscaler" else parts[1] if len(parts) > 2 else "package"] += entry.file_size
    return sizes


def parts_of_image(layout: Path) -> Counter[str]:
    """Bytes of the image in an OCI layout: sub-packages, also compiled, ``libraries`` beside the package, and the ``base`` below."""
    sizes: Counter[str] = Counter()
    for path, member in entries(layout).items():
        match = OURS.match(path)
        part = (match["room"] or "package") if match else "libraries" if path.startswith("opt/gpuscaler/") else "base"
        sizes["package" if part == "__pycache__" else part] += member.size
    return sizes


def table(sizes: Counter[str]) -> str:
    """One line for each part, the largest first, and one for each half of the package."""
    beside = [part for part in ("libraries", "base") if part in sizes]
    laboratory = sum(sizes[room] for room in LABORATORY)
    product = sizes.total() - laboratory - sum(sizes[part] for part in beside)
    rows = [(part, size, " (laboratory)" if part in LABORATORY else "") for part, size in sizes.most_common()]
    rows += [("product", product, ""), ("laboratory", laboratory, "")]
    return "\n".join(f"  {name:<12}{size / 1000:>9,.0f} kB{note}" for name, size, note in rows)


if __name__ == "__main__":
    print(f"{Path(sys.argv[1]).name}, unpacked:\n{table(parts_of_wheel(Path(sys.argv[1])))}")
