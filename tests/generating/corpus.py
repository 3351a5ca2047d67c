"""The descriptions that all files are made of in tests: the scenes of five write-ups."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuscaler.embedded.apiserver.kinds import BY_NAME
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.files import GeneratedFile
from gpuscaler.kube.resources import Resource

FOLDER = Path(__file__).parent / "descriptions"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def description(name: str) -> Description:
    return read_description((FOLDER / f"{name}.yaml").read_text(), name)


def generated(name: str) -> dict[str, GeneratedFile]:
    """The files of a description by their paths."""
    return {file.path: file for file in files_of(description(name))}


def objects(files: Mapping[str, GeneratedFile]) -> Iterator[dict[str, Any]]:
    """The objects of the cluster, in the order in which they are applied."""
    for path, file in files.items():
        if path.startswith(("kubernetes/", "workloads/")):
            yield from yaml.safe_load_all(file.text(explain=False))


def path_of(obj: Mapping[str, Any]) -> str:
    """The path of an object on an API server."""
    kind, metadata = BY_NAME[obj["apiVersion"], obj["kind"]], obj["metadata"]
    resource = Resource(kind.group, kind.version, kind.plural, kind.kind, namespaced=kind.namespaced)
    return resource.path(metadata.get("namespace", ""), metadata["name"])
