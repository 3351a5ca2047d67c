"""``labelSelector`` and ``fieldSelector`` of a request.

Grammar: ``k8s.io/apimachinery/pkg/labels`` (``Parse``) and ``k8s.io/apimachinery/pkg/fields`` (``ParseSelector``), Kubernetes 1.35.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuscaler.embedded.apiserver.kinds import Kind
from gpuscaler.embedded.apiserver.store import Stored
from gpuscaler.embedded.apiserver.wire.failures import bad_request
from gpuscaler.model.selector_text import SelectorError, parse_selector
from gpuscaler.model.selectors import LabelSelector

#: Field names in selectors of events.k8s.io, with their names in the core group.
_OTHER_NAMES = {"reportingController": "reportingComponent"}


def label_selector(text: str) -> LabelSelector:
    """``text`` as requirements that must all hold. Raises a 400 Failure if it cannot be read."""
    try:
        return parse_selector(text)
    except SelectorError as error:
        raise bad_request(str(error)) from error


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    path: str
    value: str
    equal: bool


def field_selector(text: str) -> tuple[FieldRequirement, ...]:
    """``text`` as requirements that must all hold. Raises a 400 Failure if it cannot be read."""
    terms = [term for term in re.split(r"(?<!\\),", text) if term.strip()]
    return tuple(_field(term) for term in terms)


def _field(term: str) -> FieldRequirement:
    path, operator, value = next((term.partition(mark) for mark in ("!=", "==", "=") if mark in term), (term, "", ""))
    if not operator:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    return FieldRequirement(path.strip(), re.sub(r"\\([\\,=])", r"\1", value.strip()), operator != "!=")


def _value(kind: Kind, path: str) -> Callable[[Stored], str]:
    path = _OTHER_NAMES.get(path, path.replace("regarding.", "involvedObject."))
    if path == "metadata.name":
        return lambda stored: stored.key.rpartition("/")[2]
    if path == "metadata.namespace":
        return lambda stored: stored.key.rpartition("/")[0]
    if path not in kind.fields:
        raise bad_request(f'field label not supported: "{path}"')
    place = kind.fields.index(path)
    return lambda stored: stored.fields[place]


class Filter:
    """The selection of a list, watch or collection delete, besides its namespace. Empty texts select everything."""

    def __init__(self, kind: Kind, labels: str = "", fields: str = "") -> None:
        self._labels = label_selector(labels)
        wanted = field_selector(fields)
        self._fields = [(_value(kind, requirement.path), requirement.value, requirement.equal) for requirement in wanted]
        self.name = next((r.value for r in wanted if r.path == "metadata.name" and r.equal), "")

    @property
    def everything(self) -> bool:
        return not self._labels.requirements and not self._fields

    def __call__(self, stored: Stored) -> bool:
        return all((value(stored) == wanted) == equal for value, wanted, equal in self._fields) and self._labels.matches(stored.labels)

    def among(self, objects: Iterable[Stored]) -> list[Stored]:
        return list(objects) if self.everything else [stored for stored in objects if self(stored)]
