"""Objects as they stand in files, and notes on what was done to them."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

Json = dict[str, Any]
#: Takes note of something about the object that is being converted.
Say = Callable[[str], None]


class Note(Struct, frozen=True):
    """What was changed in an object, or should be looked at. ``where`` is its kind and name."""

    where: str
    text: str


class Unconvertible(ValueError):  # noqa: N818 - it ends nothing: the object is printed as it is
    """An object of a version that is gone, which nobody can say in another one. The text says what to do."""


def mapping(parent: Json, key: str) -> Json:
    """The mapping under ``key``, made where there is none; what is none is left alone, and an empty one returned."""
    if parent.get(key) is None:
        parent[key] = {}
    found = parent[key]
    return found if isinstance(found, dict) else {}


def seen(parent: Json, key: str) -> Json:
    """The mapping under ``key``, empty where there is none: to look at, not to change."""
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def items(parent: Json, key: str) -> list[Json]:
    """The mappings of the list under ``key``."""
    found = parent.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def text(value: object) -> str:
    """A scalar as Kubernetes wants it where it wants text."""
    return "" if value is None else ("false", "true")[value] if isinstance(value, bool) else str(value)


def name_of(one: Json) -> str:
    """``Deployment default/web``."""
    parts = [text(seen(one, "metadata").get(key)) for key in ("namespace", "name")]
    return f"{text(one.get('kind'))} {'/'.join(part for part in parts if part)}".strip()


def pod_template(one: Json) -> Json | None:
    """The pod template of a workload, the CronJob's too; of a Pod itself."""
    spec = one.get("spec")
    if one.get("kind") == "Pod":
        return one
    if one.get("kind") == "CronJob" and isinstance(spec, dict):
        spec = seen(seen(spec, "jobTemplate"), "spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    return template if isinstance(template, dict) else None


def containers(one: Json) -> Iterator[Json]:
    """The containers of a workload, those of its start included."""
    spec = (pod_template(one) or {}).get("spec")
    if isinstance(spec, dict):
        for key in ("initContainers", "containers"):
            yield from items(spec, key)
