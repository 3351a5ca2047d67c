"""Applies a template to values."""

from collections.abc import Iterator, Mapping

from gpuscaler.metrics.rules.gotemplate import syntax
from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.formatting import plain
from gpuscaler.metrics.rules.gotemplate.functions import call
from gpuscaler.metrics.rules.gotemplate.parsing import parse


class Fields:
    """The named values that a template is applied to. Unlike in a map, an unknown name is an error."""

    def __init__(self, values: Mapping[str, syntax.Value]) -> None:
        self.values = values

    def __str__(self) -> str:
        return f"{{{' '.join(plain(value) for value in self.values.values())}}}"


class _LoopExit(Exception):  # noqa: N818  # no error
    """A ``break`` or ``continue`` on its way to its range."""

    def __init__(self, keyword: str) -> None:
        super().__init__(keyword)
        self.keyword = keyword


class Template:
    """A parsed template. Raises :class:`~.errors.TemplateError` if it cannot be parsed."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.nodes = parse(source)

    def render(self, values: Mapping[str, syntax.Value]) -> str:
        """The text for ``values``. Like Go, raises :class:`~.errors.TemplateError` when it reaches something that cannot be executed."""
        fields = Fields(values)
        run = _Run(fields)
        run.walk(self.nodes, fields)
        return "".join(run.written)


class _Run:
    def __init__(self, fields: Fields) -> None:
        self.written: list[str] = []
        self._variables: list[tuple[str, syntax.Value]] = [("$", fields)]

    def walk(self, nodes: tuple[syntax.Node, ...], dot: syntax.Value) -> None:
        for node in nodes:
            match node:
                case syntax.Text():
                    self.written.append(node.text)
                case syntax.Action():
                    value = self._pipeline(node.pipeline, dot)
                    if not node.pipeline.variables:
                        self.written.append("<no value>" if value is None else plain(value))
                case syntax.Branch():
                    self._branch(node, dot)
                case syntax.Jump():
                    raise _LoopExit(node.keyword)

    def _branch(self, node: syntax.Branch, dot: syntax.Value) -> None:
        variable_count = len(self._variables)
        if node.keyword == "range":
            self._range(node, dot)
        else:
            value = self._pipeline(node.pipeline, dot)
            if value:
                self.walk(node.body, value if node.keyword == "with" else dot)
            else:
                self.walk(node.otherwise, dot)
        del self._variables[variable_count:]

    def _range(self, node: syntax.Branch, dot: syntax.Value) -> None:
        # The variables have the whole value until they get the members, and keep it if there are none.
        value = self._pipeline(node.pipeline, dot)
        members = list(_members(value))
        if not members:
            self.walk(node.otherwise, dot)
        names = node.pipeline.variables
        for key, member in members:
            variable_count = len(self._variables)
            for name, item in zip(names, (key, member) if len(names) == 2 else (member,), strict=True) if names else ():
                self._set(name, item, declares=node.pipeline.declares)
            try:
                self.walk(node.body, member)
            except _LoopExit as left:
                if left.keyword == "break":
                    break
            finally:
                del self._variables[variable_count:]

    def _set(self, name: str, value: syntax.Value, *, declares: bool) -> None:
        if declares:
            self._variables.append((name, value))
            return
        self._variables[self._place(name)] = (name, value)

    def _place(self, name: str) -> int:
        """The index of the innermost variable with this name."""
        for place in reversed(range(len(self._variables))):
            if self._variables[place][0] == name:
                return place
        raise TemplateError(f"saw {name}, expected a variable that was declared with := before")

    def _pipeline(self, pipeline: syntax.Pipeline, dot: syntax.Value) -> syntax.Value:
        piped: list[syntax.Value] = []
        for command in pipeline.commands:
            piped = [self._command(command, dot, piped)]
        for name in pipeline.variables:
            self._set(name, piped[0], declares=pipeline.declares)
        return piped[0]

    def _command(self, command: syntax.Command, dot: syntax.Value, piped: list[syntax.Value]) -> syntax.Value:
        """Run a command. ``piped`` is the result of the previous command, if there is one, and becomes the last argument."""
        first, *arguments = command
        if isinstance(first, syntax.Function):
            return self._call(first.name, arguments, dot, piped)
        if arguments or piped:
            raise TemplateError("saw a value with arguments, expected a function before them")
        return self._operand(first, dot)

    def _call(self, name: str, arguments: list[syntax.Operand], dot: syntax.Value, piped: list[syntax.Value]) -> syntax.Value:
        if name not in ("and", "or"):
            return call(name, [*(self._operand(argument, dot) for argument in arguments), *piped])
        if not arguments and not piped:
            raise TemplateError(f"saw {name} without values, expected at least one")
        value: syntax.Value = None
        for argument in arguments:
            value = self._operand(argument, dot)
            if bool(value) == (name == "or"):
                return value
        return piped[0] if piped else value

    def _operand(self, operand: syntax.Operand, dot: syntax.Value) -> syntax.Value:
        match operand:
            case syntax.Dot():
                return dot
            case syntax.Constant():
                return operand.value
            case syntax.Variable():
                return self._variables[self._place(operand.name)][1]
            case syntax.Pipeline():
                return self._pipeline(operand, dot)
            case syntax.Function():
                return self._call(operand.name, [], dot, [])
            case syntax.Chain():
                value = self._operand(operand.base, dot)
                for name in operand.fields:
                    value = _field(value, name)
                return value


def _field(value: syntax.Value, name: str) -> syntax.Value:
    if isinstance(value, Fields):
        if name not in value.values:
            raise TemplateError(f"saw .{name}, expected one of {', '.join(f'.{field}' for field in value.values)}")
        return value.values[name]
    if isinstance(value, dict):
        return value.get(name)
    raise TemplateError(f"saw .{name} of {plain(value)}, expected it of a value that has fields")


def _members(value: syntax.Value) -> Iterator[tuple[syntax.Value, syntax.Value]]:
    if isinstance(value, dict):
        yield from ((key, value[key]) for key in sorted(value, key=str.encode))
    elif isinstance(value, list):
        yield from enumerate(value)
    else:
        raise TemplateError(f"saw a range over {plain(value)}, expected a list or a map")
