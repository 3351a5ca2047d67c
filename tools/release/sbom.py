"""Bills of materials of the wheel's environment and of the image, as CycloneDX: names, versions, licences and dependencies."""

import json
import re
import sys
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tools.release.commands import require_program, run
from tools.release.image import Image
from tools.release.source import Refused, Source

LOCK = Path("requirements/runtime.txt")
#: The list of Debian's packages in an image.
PACKAGES = "var/lib/dpkg/status"
#: The files of an image that list its packages. No part of a path is `..`.
NAMES_PACKAGES = re.compile(rf"{PACKAGES}|(?!.*\.\.)[^/].*/[^/]+\.dist-info/METADATA")
#: A layer removes a file of an earlier one by a file of the same name with this prefix.
REMOVED = ".wh."
#: Prints the paths of an environment's packages, as the interpreter of that environment would.
STAND_IN = "#!/bin/sh\necho '{paths}'\n"


def of_wheel(source: Source, out: Path, work: Path) -> Path:
    """Write the bill of the wheel with every extra, as locked for this platform and Python."""
    environment = work / "environment"
    require_program("uv", why="installs the locked packages (`make` takes it from .venv)")
    run("uv", "--no-config", "venv", "--quiet", "--python", sys.executable, environment, folder=work)
    locked = ("--require-hashes", "--only-binary", ":all:", "--requirement", source.folder / LOCK)
    run("uv", "--no-config", "pip", "install", "--quiet", "--python", environment, *locked, folder=work)
    bill = collect_bill(source, environment / "bin" / "python")
    own = {"purl": f"pkg:pypi/gpuscaler@{source.version}"}
    return write_bill(bill, out / f"gpuscaler-{source.version}.cdx.json", source=source, own=own)


def of_image(source: Source, out: Path, work: Path, *, image: Image) -> Path:
    """Write the bill of the image: our packages and its base's, those of Debian, and the interpreter."""
    root = work / "root"
    variables = unpacked(image.layout, root)
    folders = sorted({str(path.parent) for path in root.rglob("*.dist-info")})
    bill = collect_bill(source, stand_in(work, folders))
    bill["components"] += debian(root)
    if version := variables.get("PYTHON_VERSION"):
        python = {"type": "platform", "bom-ref": "python", "name": "python", "version": version, "purl": f"pkg:generic/python@{version}"}
        bill["components"].append(python)
    own = {"type": "container", "purl": f"pkg:oci/gpuscaler@{image.digest.replace(':', '%3A')}"}
    return write_bill(bill, out / f"gpuscaler-{source.version}.oci.cdx.json", source=source, own=own)


def unpacked(layout: Path, root: Path) -> dict[str, str]:
    """Write the files that list packages in the image of an OCI layout below ``root``; return its environment variables.

    Layers are read in order, so that a later one replaces and removes files of earlier ones.
    """
    for path, entry in entries(layout, NAMES_PACKAGES).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(entry.content)
    config = blob(layout, manifest(layout)["config"])
    return dict(line.split("=", 1) for line in json.loads(config.read_text())["config"].get("Env", ()))


class Entry(NamedTuple):
    """A file of an image; its ``content`` is read if requested."""

    size: int
    content: bytes = b""


def entries(layout: Path, wanted: re.Pattern[str] | None = None) -> Mapping[str, Entry]:
    """The files that remain after all layers of an OCI layout, by path; with ``wanted`` only matching ones, with their content."""
    files: dict[str, Entry] = {}
    for layer in manifest(layout)["layers"]:
        with tarfile.open(blob(layout, layer)) as tar:
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                path = f"{folder}/{name}" if folder else name
                if name.startswith(REMOVED):
                    removed = path.removesuffix(name) + name.removeprefix(REMOVED)
                    files = {path: entry for path, entry in files.items() if path != removed and not path.startswith(f"{removed}/")}
                elif wanted is None:
                    files[path] = Entry(member.size)
                elif wanted.fullmatch(path) and (file := tar.extractfile(member)):
                    files[path] = Entry(member.size, file.read())
    return files


def manifest(layout: Path) -> Any:
    return json.loads(blob(layout, json.loads((layout / "index.json").read_text())["manifests"][0]).read_text())


def blob(layout: Path, described: Mapping[str, str]) -> Path:
    return layout / "blobs" / described["digest"].replace(":", "/")


def stand_in(work: Path, paths: list[str]) -> Path:
    file = work / "python-of-the-image"
    file.write_text(STAND_IN.format(paths=json.dumps(paths)))
    file.chmod(0o755)
    return file


def collect_bill(source: Source, python: Path) -> dict[str, Any]:
    require_program("cyclonedx-py", why="writes bills of materials (`make release` installs it into build/release-tools)")
    command = ("cyclonedx-py", "environment", "--output-reproducible", "--pyproject", "pyproject.toml", python)
    bill: dict[str, Any] = json.loads(run(*command, folder=source.folder, epoch=source.epoch))
    if not bill.get("components"):
        raise Refused(f"saw no packages with {python}, expected those of requirements/")
    return bill


def write_bill(bill: dict[str, Any], target: Path, *, source: Source, own: Mapping[str, str]) -> Path:
    """Complete and write the bill; ``own`` has more on our packages. Its serial number and time depend on the commit."""
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, f"{target.name}@{source.commit}").urn
    bill["metadata"]["component"] |= {"version": source.version, **own}
    target.write_text(json.dumps(bill, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return target


def debian(root: Path) -> list[dict[str, str]]:
    """A component for each installed package, with the version of its source, which Debian's advisories use."""
    status = root / PACKAGES
    return sorted(installed(status.read_text(errors="replace")), key=lambda component: component["bom-ref"]) if status.exists() else []


def installed(status: str) -> Iterator[dict[str, str]]:
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if not line.startswith(" ") and ": " in line)
        if fields.get("Status") == "install ok installed":
            name, version = fields["Package"], fields["Version"]
            upstream = fields.get("Source", name).replace(" (", "@").rstrip(")")
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}&upstream={upstream}".replace("+", "%2B")
            yield {"type": "library", "bom-ref": f"deb:{name}:{fields['Architecture']}", "name": name, "version": version, "purl": purl}
