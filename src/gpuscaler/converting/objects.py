"""Objects as in files, and notes on changes to them."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec import Struct

Json = dict[str, Any]
#: Notes a message about the object that is being converted.
AddNote = Callable[[str], None]


class AddObjectNote(Protocol):
    """Notes a message about an object. ``failed`` says that it does not work as it is, and that only a person may correct it."""

    def __call__(self, manifest: Json, message: str, /, *, failed: bool = False) -> None: ...


class Note(Struct, frozen=True):
    """A change in an object, or something to check. ``where`` is the object's kind and name, ``index`` its place among all objects.

    ``failed`` says that the object could not be converted, or does not work as it is.
    """

    where: str
    text: str
    index: int = -1
    failed: bool = False


class Float(float):
    """A number that is written as ``written``: ``1.10`` stays ``1.10``."""

    written: str = ""


class Integer(int):
    """A number that is written as ``written``: ``0644`` stays octal."""

    written: str = ""


class Unconvertible(ValueError):  # noqa: N818 - it ends nothing: the object is printed unchanged
    """An object of a removed version that cannot be converted. The text says what to do."""


def ensure_mapping(parent: Json, key: str) -> Json:
    """The mapping under ``key``, created if missing. A value that is not a mapping is not changed, and an empty one is returned."""
    if parent.get(key) is None:
        parent[key] = {}
    value = parent[key]
    return value if isinstance(value, dict) else {}


def get_mapping(parent: Json, key: str) -> Json:
    """The mapping under ``key``, empty if there is none. For reading only."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def get_items(parent: Json, key: str) -> list[Json]:
    """The mappings of the list under ``key``."""
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: object) -> str:
    """A scalar as text, in the form that Kubernetes expects; a number as it was written."""
    if isinstance(value, Float | Integer):
        return value.written
    return "" if value is None else ("false", "true")[value] if isinstance(value, bool) else str(value)


def name_of(manifest: Json) -> str:
    """Kind, namespace and name, as in ``Deployment default/web``."""
    parts = [text(get_mapping(manifest, "metadata").get(key)) for key in ("namespace", "name")]
    return f"{text(manifest.get('kind'))} {'/'.join(part for part in parts if part)}".strip()


def pod_template(manifest: Json) -> Json | None:
    """The pod template of a workload, also of a CronJob; for a Pod, the Pod itself."""
    spec = manifest.get("spec")
    if manifest.get("kind") == "Pod":
        return manifest
    if manifest.get("kind") == "CronJob" and isinstance(spec, dict):
        spec = get_mapping(get_mapping(spec, "jobTemplate"), "spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    return template if isinstance(template, dict) else None


def containers(manifest: Json) -> Iterator[Json]:
    """The containers of a workload, including init containers."""
    spec = (pod_template(manifest) or {}).get("spec")
    if isinstance(spec, dict):
        for key in ("initContainers", "containers"):
            yield from get_items(spec, key)
