"""Parses tokens into nodes."""

import re
from dataclasses import dataclass, field

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.formatting import check_verbs
from gpuscaler.metrics.rules.gotemplate.functions import NAMES
from gpuscaler.metrics.rules.gotemplate.lexing import Token, tokens
from gpuscaler.metrics.rules.gotemplate.syntax import (
    Action,
    Branch,
    Chain,
    Command,
    Constant,
    Dot,
    Function,
    Jump,
    Node,
    Operand,
    Pipeline,
    Text,
    Variable,
)

#: Go's other keywords and functions, which are not supported.
_REFUSED = frozenset("define template block call html js urlquery println nil".split())
_BRANCHES = frozenset({"if", "with", "range"})
_CONSTANTS = {"true": True, "false": False}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
#: Deepest nesting of branches and parentheses.
_MOST_DEEP = 50
#: Words that end a list of nodes, in addition to the end of the template.
_ENDS = frozenset({"end", "else"})


def parse(source: str) -> tuple[Node, ...]:
    """The nodes of a template. Raises :class:`~.errors.TemplateError`."""
    parser = _Parser(list(tokens(source)))
    nodes, end = parser.nodes(0)
    if end:
        raise TemplateError(f"line {parser.line}: saw <<{end}>> without a beginning, expected if, with or range before it")
    return nodes


@dataclass
class _Parser:
    tokens: list[Token]
    place: int = 0
    variables: list[str] = field(default_factory=lambda: ["$"])
    ranges: int = 0

    @property
    def line(self) -> int:
        return self.tokens[min(self.place, len(self.tokens) - 1)].line if self.tokens else 1

    def nodes(self, depth: int) -> tuple[tuple[Node, ...], str]:
        """The nodes up to ``end``, ``else`` or the end of the template, and which of these it was; the rest of that action remains."""
        if depth > _MOST_DEEP:
            raise self._wrong(f"saw more than {_MOST_DEEP} levels, expected fewer")
        nodes: list[Node] = []
        while (token := self._peek()) is not None:
            if token.kind == "text":
                self.place += 1
                nodes.append(Text(token.text))
                continue
            token = self._skip_spaces()
            if token.kind == "word" and token.text in _ENDS:
                self.place += 1
                return tuple(nodes), token.text
            nodes.append(self._action(token, depth))
        return tuple(nodes), ""

    def _action(self, token: Token, depth: int) -> Node:
        if token.kind == "word" and token.text in _BRANCHES:
            self.place += 1
            return self._branch(token.text, depth)
        if token.kind == "word" and token.text in ("break", "continue"):
            self.place += 1
            self._close(token.text)
            if not self.ranges:
                raise self._wrong(f"saw <<{token.text}>> outside of a range, expected it inside of one")
            return Jump(token.text)
        return Action(self._pipeline("end", depth))

    def _branch(self, keyword: str, depth: int) -> Branch:
        variable_count = len(self.variables)
        pipeline = self._pipeline("end", depth, ranging=keyword == "range")
        self.ranges += keyword == "range"
        body, end = self.nodes(depth + 1)
        self.ranges -= keyword == "range"
        otherwise: tuple[Node, ...] = ()
        if end == "else":
            otherwise, end = self._else(keyword, depth)
        if end != "end":
            raise self._wrong(f"saw {end or 'the end of the template'}, expected <<end>> of <<{keyword} …>>")
        self._close(end)
        del self.variables[variable_count:]
        return Branch(keyword, pipeline, body, otherwise)

    def _else(self, keyword: str, depth: int) -> tuple[tuple[Node, ...], str]:
        """The nodes after an ``else``. An ``else if`` ends with the ``end`` of the whole branch, which is not consumed."""
        token = self._skip_spaces()
        if token.kind == "word" and token.text == keyword != "range":
            self.place += 1
            branch = self._branch(keyword, depth + 1)
            # The branch consumed the only <<end>>: step back to it.
            self.place -= 1
            return (branch,), "end"
        self._close("else")
        return self.nodes(depth + 1)

    def _close(self, keyword: str) -> None:
        token = self._skip_spaces()
        if token.kind != "end":
            raise self._wrong(f"saw {token.text!r} after {keyword}, expected >>")
        self.place += 1

    def _pipeline(self, end: str, depth: int, *, ranging: bool = False) -> Pipeline:
        """A pipeline up to its closing ``>>`` or parenthesis, which is consumed."""
        if depth > _MOST_DEEP:
            raise self._wrong(f"saw more than {_MOST_DEEP} levels, expected fewer")
        names, declares = self._targets(ranging=ranging)
        commands: list[Command] = []
        while True:
            token = self._skip_spaces()
            if token.kind == end or (end == ")" and token.text == ")" and token.kind == "mark"):
                self.place += 1
                if not commands:
                    raise self._wrong("saw no value, expected one")
                break
            command = self._command(depth)
            if commands and isinstance(command[0], Constant | Dot):
                raise self._wrong("saw a value after |, expected a function")
            if command[0] == Function("printf"):
                self._check_printf(command, len(command) - 2 + bool(commands))
            commands.append(command)
            # As in Go, a | at the end has no effect.
            self.place += self._skip_spaces().text == "|" and self._skip_spaces().kind == "mark"
        return Pipeline(tuple(commands), names, declares)

    def _check_printf(self, command: Command, count: int) -> None:
        template = command[1] if len(command) > 1 else None
        if not isinstance(template, Constant) or not isinstance(template.value, str):
            raise self._wrong("saw printf without a format after it, expected one in quotes")
        try:
            check_verbs(template.value, count)
        except TemplateError as error:
            raise self._wrong(str(error)) from None

    def _targets(self, *, ranging: bool) -> tuple[tuple[str, ...], bool]:
        """The variables that a pipeline sets, and whether it declares them."""
        start = self.place
        names: list[str] = []
        while self._skip_spaces().kind == "variable":
            names.append(self._skip_spaces().text)
            self.place += 1
            token = self._skip_spaces()
            if token.kind == "declare" or token.text == "=":
                self.place += 1
                # Known from here on, even if it is only set: as in Go, that fails when it is executed.
                self.variables.extend(names)
                return tuple(names), token.text == ":="
            if token.text != "," or not ranging or len(names) == 2:
                break
            self.place += 1
        if len(names) > 1:
            raise self._wrong(f"saw {', '.join(names)} in a range, expected two variables and :=")
        self.place = start
        return (), False

    def _command(self, depth: int) -> Command:
        """Operands separated by spaces, up to ``|`` or the end of the pipeline."""
        operands: list[Operand] = []
        while True:
            token = self._skip_spaces()
            if token.kind == "end" or (token.kind == "mark" and token.text in ")|"):
                break
            operands.append(self._operand(token, depth))
            after = self._peek()
            if after is None or not (after.kind in ("space", "end") or (after.kind == "mark" and after.text in ")|")):
                raise self._wrong(f"saw {after.text if after else 'the end'!r}, expected a space between values")
        if not operands:
            raise self._wrong(f"saw {self._skip_spaces().text!r}, expected a value")
        return tuple(operands)

    def _operand(self, token: Token, depth: int) -> Operand:
        self.place += 1
        base = self._term(token, depth)
        fields = [token.text[1:]] if token.kind == "field" else []
        while (after := self._peek()) is not None and after.kind == "field":
            if isinstance(base, Constant) or (isinstance(base, Dot) and not fields):
                raise self._wrong(f"saw {after.text} after {token.text}, expected a field of a value that has fields")
            fields.append(after.text[1:])
            self.place += 1
        return Chain(base, tuple(fields)) if fields else base

    def _term(self, token: Token, depth: int) -> Operand:
        match token.kind:
            case "dot" | "field":
                return Dot()
            case "variable":
                if token.text not in self.variables:
                    raise self._wrong(f"saw {token.text}, expected a variable that was declared with :=")
                return Variable(token.text)
            case "word":
                return self._word(token.text)
            case "number":
                return Constant(int(token.text))
            case "raw":
                return Constant(token.text[1:-1].replace("\r", ""))
            case "string":
                return Constant(_ESCAPED.sub(self._unescaped, token.text[1:-1]))
            case "char":
                raise self._wrong(f'saw {token.text}, a character, which is not supported here; expected text in " or `')
            case "mark" if token.text == "(":
                return self._pipeline(")", depth + 1)
        raise self._wrong(f"saw {token.text!r}, expected a value")

    def _word(self, word: str) -> Operand:
        if word in _CONSTANTS:
            return Constant(_CONSTANTS[word])
        if word in NAMES:
            return Function(word)
        names = ", ".join(sorted(NAMES))
        raise self._wrong(
            f"saw {word}, which {'is not supported here' if word in _REFUSED else 'is not a function'}; expected one of {names}"
        )

    def _unescaped(self, match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise self._wrong(f'saw {match[0]} in quoted text, which is not supported here; expected \\", \\\\, \\n or \\t, or text in `')
        return _ESCAPES[match[1]]

    def _peek(self) -> Token | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def _skip_spaces(self) -> Token:
        while (token := self._peek()) is not None and token.kind == "space":
            self.place += 1
        if token is None:
            raise self._wrong("saw the end of the template, expected more")
        return token

    def _wrong(self, message: str) -> TemplateError:
        return TemplateError(f"line {self.line}: {message}")
