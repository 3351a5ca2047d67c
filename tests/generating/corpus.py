"""The descriptions that all files are made of in tests: the scenes of five write-ups."""

from pathlib import Path

from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.files import GeneratedFile

FOLDER = Path(__file__).parent / "descriptions"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def description(name: str) -> Description:
    return read_description((FOLDER / f"{name}.yaml").read_text(), name)


def generated(name: str) -> dict[str, GeneratedFile]:
    """The files of a description by their paths."""
    return {file.path: file for file in files_of(description(name))}
