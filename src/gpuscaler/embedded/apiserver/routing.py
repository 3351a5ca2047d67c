"""Maps paths to resources."""

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from gpuscaler.embedded.apiserver.kinds import BY_PLURAL, Kind


@dataclass(frozen=True, slots=True)
class Target:
    """A collection (without ``name``), an object, or a ``part`` of one; without a namespace, in all of them."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    part: str = ""
    watch: bool = False


@lru_cache(maxsize=4096)  # the same few objects are written again and again
def target(path: str) -> Target | None:
    """The resource of ``path``, which is percent-encoded; None if there is none."""
    steps = [unquote(step) for step in path.strip("/").split("/")]
    match steps:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    watch = rest[:1] == ["watch"]
    rest = rest[1:] if watch else rest
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        return None
    kind = BY_PLURAL.get((group, version, rest[0]))
    if kind is None or (namespace and not kind.namespaced) or (len(rest) > 1 and kind.namespaced and not namespace):
        return None
    name, part = (*rest[1:], "", "")[:2]
    return Target(kind, namespace, name, part, watch)
