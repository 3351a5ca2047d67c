"""The chart as helm packs it, and the manifest for users without helm; both name the image by its digest."""

import re
from pathlib import Path

from tools.release.archives import below, pack
from tools.release.source import Refused, Source

FOLDER = Path("charts/gpuscaler")
MANIFEST = Path("deploy/gpuscaler.yaml")


def pack_chart(source: Source, out: Path, *, image: str, digest: str) -> Path:
    """Write the chart; with ``image`` (repository) and ``digest`` it installs that image by default."""
    files = below(source.folder / FOLDER, prefix="gpuscaler/")
    if image:
        values = (source.folder / FOLDER / "values.yaml").read_text()
        values = replaced(values, "  repository: gpuscaler\n", f"  repository: {image}\n", where="values.yaml of the chart")
        if digest:
            values = replaced(values, '  digest: ""\n', f"  digest: {digest}\n", where="values.yaml of the chart")
        files["gpuscaler/values.yaml"] = values.encode()
    target = out / f"gpuscaler-{source.version}.tgz"
    pack(target, files, epoch=source.epoch)
    return target


def write_manifest(source: Source, out: Path, *, image: str, digest: str) -> Path:
    text = (source.folder / MANIFEST).read_text()
    if image:
        named = f"{image}@{digest}" if digest else f"{image}:{source.version}"
        text = replaced(text, f" image: gpuscaler:{source.version}\n", f" image: {named}\n", where=str(MANIFEST))
    target = out / f"gpuscaler-{source.version}.yaml"
    target.write_text(text)
    return target


def replaced(text: str, old: str, new: str, *, where: str) -> str:
    if (count := len(re.findall(re.escape(old), text))) != 1:
        raise Refused(
            f"{where} has {count} lines `{old.strip()}`, expected one to put the image into; run `make manifest`, or fix tools/release"
        )
    return text.replace(old, new)
