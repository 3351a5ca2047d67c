"""The image, built by buildah as an OCI archive whose bytes follow from the commit, its base and buildah's version."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tools.release.archives import below, pack
from tools.release.commands import needed, run
from tools.release.source import Refused, Source

#: Which base: what the Dockerfile calls ``DIGEST``, written down so that the same commit always means the same one.
BASE = Path("requirements/base-image.txt")
#: As BASE: whatever the tag means on this machine. For drafts alone.
UNPINNED = "unpinned"


@dataclass(frozen=True, slots=True)
class Image:
    """``digest`` is what a registry shows it by, ``layout`` is a folder with all that is in the archive."""

    digest: str
    layout: Path


def base_digest(folder: Path) -> str:
    """The ``sha256:…`` that the repository pins. Raises :exc:`Refused`."""
    lines = [line.strip() for line in (folder / BASE).read_text().splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) != 1 or not re.fullmatch(r"sha256:[0-9a-f]{64}", lines[0]):
        raise Refused(f"{BASE} has {lines or 'nothing'}, expected one line sha256:… with the digest of the base image")
    return lines[0]


def build_image(source: Source, out: Path, work: Path, *, base: str = "") -> Image:
    """Build the image of ``source``; ``base`` is a digest in place of the one that the repository pins, or :data:`UNPINNED`.

    Raises :exc:`Refused`, with what buildah says, where there is no buildah or no base.
    """
    needed("buildah", why='builds the image; Debian has it in buildah. Without the image: PARTS="…"')
    pinned = "" if base == UNPINNED else f"@{base or base_digest(source.folder)}"
    name = f"localhost/gpuscaler-release:{source.version}"
    labels = {"org.opencontainers.image.version": source.version, "org.opencontainers.image.revision": source.commit}
    run(
        "buildah",
        "build",
        "--no-cache",
        "--format=oci",
        # All files and the image itself are as old as the commit, and nothing in it names the program that built it.
        f"--timestamp={source.epoch}",
        "--identity-label=false",
        f"--build-arg=DIGEST={pinned}",
        *(f"--label={key}={value}" for key, value in labels.items()),
        f"--tag={name}",
        ".",
        folder=source.folder,
    )
    layout = work / "oci"
    run("buildah", "push", "--quiet", "--format=oci", name, f"oci:{layout}:{source.version}", folder=work)
    run("buildah", "rmi", name, folder=work)
    index = json.loads((layout / "index.json").read_text())
    archive = out / f"gpuscaler-{source.version}.oci.tar"
    # Packed here: buildah's own archive has times of this machine in it.
    pack(archive, below(layout), epoch=source.epoch)
    digest = index["manifests"][0]["digest"]
    (out / f"gpuscaler-{source.version}.oci.digest").write_text(f"{digest}\n")
    return Image(digest=digest, layout=layout)
