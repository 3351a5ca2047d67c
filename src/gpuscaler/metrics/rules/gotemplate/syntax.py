"""The syntax tree of a template."""

from dataclasses import dataclass

#: The values of templates: text, whole numbers, booleans, lists and maps of text, and None for keys that a map lacks.
Value = str | int | list[str] | dict[str, str] | object


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    """The value that the template is applied to at this point."""


@dataclass(frozen=True, slots=True)
class Constant:
    value: str | int


@dataclass(frozen=True, slots=True)
class Function:
    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """``base.A.B``; without a base the fields are those of dot."""

    base: "Operand"
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """``$variable := first | second``. ``declares`` is whether its variables are new."""

    commands: tuple["Command", ...]
    variables: tuple[str, ...] = ()
    declares: bool = False


Operand = Dot | Constant | Function | Variable | Chain | Pipeline
#: A function or value, and its arguments.
Command = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """``<<pipeline>>``: its value is written, unless it sets a variable."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """``if``, ``with`` or ``range``, with the nodes in it and after ``else``."""

    keyword: str
    pipeline: Pipeline
    body: tuple["Node", ...]
    otherwise: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Jump:
    """``break`` or ``continue``."""

    keyword: str


Node = Text | Action | Branch | Jump
