"""What a query is made of. ``@`` is left out: it moves all series alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or text."""

    text: str


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """``name{matchers}``, as ``text``; the name may be empty. A range's duration is no part of it.

    ``reach`` is how far ranges, subqueries and offsets around it look back together, in seconds; 0 where there are none.
    """

    name: str
    matchers: tuple[Matcher, ...]
    text: str
    reach: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """``clause`` is ``by``, ``without`` or empty. The last argument is what is aggregated."""

    operator: str
    arguments: tuple["Expression", ...]
    clause: str
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Operation:
    """``clause`` is ``on``, ``ignoring`` or empty; ``many`` says that ``group_left`` or ``group_right`` is there."""

    operator: str
    left: "Expression"
    right: "Expression"
    clause: str = ""
    labels: frozenset[str] = frozenset()
    many: bool = False


Expression = Literal | Selector | Call | Aggregation | Operation
