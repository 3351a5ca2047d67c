"""Objects as in files, and notes on changes to them."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

Json = dict[str, Any]
#: Notes a message about the object that is being converted.
Say = Callable[[str], None]


class Note(Struct, frozen=True):
    """A change in an object, or something to check. ``where`` is the object's kind and name."""

    where: str
    text: str


class Unconvertible(ValueError):  # noqa: N818 - it ends nothing: the object is printed unchanged
    """An object of a removed version that cannot be converted. The text says what to do."""


def mapping(parent: Json, key: str) -> Json:
    """The mapping under ``key``, created if missing. A value that is not a mapping is not changed, and an empty one is returned."""
    if parent.get(key) is None:
        parent[key] = {}
    found = parent[key]
    return found if isinstance(found, dict) else {}


def seen(parent: Json, key: str) -> Json:
    """The mapping under ``key``, empty if there is none. For reading only."""
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def items(parent: Json, key: str) -> list[Json]:
    """The mappings of the list under ``key``."""
    found = parent.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def text(value: object) -> str:
    """A scalar as text, in the form that Kubernetes expects."""
    return "" if value is None else ("false", "true")[value] if isinstance(value, bool) else str(value)


def name_of(one: Json) -> str:
    """Kind, namespace and name, as in ``Deployment default/web``."""
    parts = [text(seen(one, "metadata").get(key)) for key in ("namespace", "name")]
    return f"{text(one.get('kind'))} {'/'.join(part for part in parts if part)}".strip()


def pod_template(one: Json) -> Json | None:
    """The pod template of a workload, also of a CronJob; for a Pod, the Pod itself."""
    spec = one.get("spec")
    if one.get("kind") == "Pod":
        return one
    if one.get("kind") == "CronJob" and isinstance(spec, dict):
        spec = seen(seen(spec, "jobTemplate"), "spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    return template if isinstance(template, dict) else None


def containers(one: Json) -> Iterator[Json]:
    """The containers of a workload, including init containers."""
    spec = (pod_template(one) or {}).get("spec")
    if isinstance(spec, dict):
        for key in ("initContainers", "containers"):
            yield from items(spec, key)
