"""The image, built by buildah as an OCI archive whose bytes depend on the commit, its base and buildah's version."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tools.release.archives import below, pack
from tools.release.commands import require_program, run
from tools.release.source import Refused, Source

#: The base image, ``DIGEST`` in the Dockerfile, stored so that the same commit always uses the same one.
BASE = Path("requirements/base-image.txt")
#: Value of BASE for the local meaning of the tag. Only for drafts.
UNPINNED = "unpinned"


@dataclass(frozen=True, slots=True)
class Image:
    """``digest`` is its digest in a registry, ``layout`` a folder with the contents of the archive."""

    digest: str
    layout: Path


def base_digest(folder: Path) -> str:
    """The ``sha256:…`` that the repository pins. Raises :exc:`Refused`."""
    lines = [line.strip() for line in (folder / BASE).read_text().splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) != 1 or not re.fullmatch(r"sha256:[0-9a-f]{64}", lines[0]):
        raise Refused(f"{BASE} has {lines or 'nothing'}, expected one line sha256:… with the digest of the base image")
    return lines[0]


def build_image(source: Source, out: Path, work: Path, *, base: str = "") -> Image:
    """Build the image of ``source``; ``base`` is a digest that replaces the pinned one, or :data:`UNPINNED`.

    Raises :exc:`Refused`, with buildah's output, if there is no buildah or no base.
    """
    require_program("buildah", why='builds the image (on Debian: package buildah; to leave the image out: PARTS="…")')
    pinned = "" if base == UNPINNED else f"@{base or base_digest(source.folder)}"
    name = f"localhost/gpuscaler-release:{source.version}"
    labels = {"org.opencontainers.image.version": source.version, "org.opencontainers.image.revision": source.commit}
    run(
        "buildah",
        "build",
        "--no-cache",
        "--format=oci",
        # All files and the image itself have the commit's time, and nothing in it names the program that built it.
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
    # Packed here, since buildah's own archive contains times of this machine.
    pack(archive, below(layout), epoch=source.epoch)
    digest = index["manifests"][0]["digest"]
    (out / f"gpuscaler-{source.version}.oci.digest").write_text(f"{digest}\n")
    return Image(digest=digest, layout=layout)
