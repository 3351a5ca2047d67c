"""Objects as the API or a file has them, read field by field: a field of another type counts as missing.

The model of planning decodes what planning needs. Checks look at many more fields, of objects that anyone may have written.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One object or a part of it. ``path`` arguments are the names of nested fields."""

    data: Mapping[str, Any]
    #: ``file:line`` where it was read, if it was.
    place: str = ""

    def value(self, *path: str) -> Any:
        """The value as it is; None if it is missing."""
        value: Any = self.data
        for name in path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(name)
        return value

    def has(self, *path: str) -> bool:
        return self.value(*path) is not None

    def text(self, *path: str, default: str = "") -> str:
        value = self.value(*path)
        return value if isinstance(value, str) else default

    def number(self, *path: str) -> float | None:
        value = self.value(*path)
        return None if isinstance(value, bool) or not isinstance(value, int | float) else value

    def whole(self, *path: str) -> int:
        """The number without its fraction; 0 if it is missing or not finite."""
        value = self.number(*path)
        return int(value) if value is not None and isfinite(value) else 0

    def flag(self, *path: str, default: bool = False) -> bool:
        value = self.value(*path)
        return value if isinstance(value, bool) else default

    def part(self, *path: str) -> "Document":
        """The nested object; an empty one if it is missing."""
        value = self.value(*path)
        return Document(value if isinstance(value, Mapping) else {}, self.place)

    def parts(self, *path: str) -> tuple["Document", ...]:
        """The objects of a list."""
        value = self.value(*path)
        return tuple(Document(item, self.place) for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()

    def texts(self, *path: str) -> tuple[str, ...]:
        """The texts of a list."""
        value = self.value(*path)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()

    def pairs(self, *path: str) -> dict[str, str]:
        """The texts of an object by name, such as labels."""
        value = self.value(*path)
        return {str(key): item for key, item in value.items() if isinstance(item, str)} if isinstance(value, Mapping) else {}

    @property
    def kind(self) -> str:
        return self.text("kind")

    @property
    def api_version(self) -> str:
        return self.text("apiVersion")

    @property
    def name(self) -> str:
        return self.text("metadata", "name")

    @property
    def namespace(self) -> str:
        return self.text("metadata", "namespace")

    @property
    def labels(self) -> dict[str, str]:
        return self.pairs("metadata", "labels")

    @property
    def annotations(self) -> dict[str, str]:
        return self.pairs("metadata", "annotations")

    @property
    def key(self) -> str:
        """``namespace/name``, or the name of an object without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def title(self) -> str:
        """``Kind namespace/name``."""
        return f"{self.kind} {self.key}".rstrip()


#: Where the pod template of each kind is.
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


def template_of(document: Document) -> Document | None:
    """The pod template of a workload, a pod itself; None for other kinds."""
    path = TEMPLATES.get(document.kind)
    return None if path is None else document.part(*path)


def containers_of(template: Document) -> Iterator[tuple[str, Document]]:
    """The containers of a pod template with their path: ``spec.containers[0]``, and those of ``spec.initContainers``."""
    for name in ("containers", "initContainers"):
        for index, container in enumerate(template.parts("spec", name)):
            yield f"spec.{name}[{index}]", container


def without_tag(image: str) -> str:
    """The name of a container image with its registry, without tag and digest."""
    return re.sub(r"(@sha256:.*|:[^/:]*)$", "", image)
