"""The part of the AWS CLI that our pages use: commands become calls of a client, by the model that the CLI itself reads."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

#: Options for the output, which every operation has.
SHOWING = {"query", "output", "region"}


def run(text: str, client: Callable[[str], Any], said: str = "") -> str:
    """The output of a command line: commands of the AWS CLI, connected by xargs."""
    for part in parts(text):
        said = xargs(part[1:], client, said) if part[0] == "xargs" else aws(part, client)
    return said


def parts(text: str) -> list[list[str]]:
    """The words of each command of a pipe."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            found.append([])
        else:
            found[-1].append(word)
    return found


def xargs(words: Sequence[str], client: Callable[[str], Any], said: str) -> str:
    """``xargs -r -n NUMBER COMMAND``."""
    assert (words[0], words[1]) == ("-r", "-n"), words
    many, given = int(words[2]), said.split()
    return "".join(aws([*words[3:], *given[place : place + many]], client) for place in range(0, len(given), many))


def aws(words: Sequence[str], client: Callable[[str], Any]) -> str:
    """Run an operation as the CLI does: unknown options and missing ones are refused."""
    command, service, operation, *options = words
    assert command == "aws", words
    asked = client(service)
    name = operation.replace("-", "_")
    shape = asked.meta.service_model.operation_model(asked.meta.method_to_api_mapping[name]).input_shape
    told, showing = given(options, shape)
    missing = set(shape.required_members) - told.keys()
    assert not missing, f"{operation}: the following arguments are required: {sorted(missing)}"
    return shown(getattr(asked, name)(**told), showing)


def given(options: Sequence[str], shape: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The parameters of an operation, and how to print its answer."""
    members = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower(): name for name in shape.members}
    told, showing = dict[str, Any](), dict[str, str]()
    for option, values in grouped(options):
        if option in SHOWING:
            (showing[option],) = values
        elif option.startswith("no-") and option[3:] in members:
            told[members[option[3:]]] = False
        else:
            assert option in members, f"Unknown options: --{option}"
            told[members[option]] = value(values, shape.members[members[option]])
    return told, showing


def grouped(options: Sequence[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in options:
        if word.startswith("--"):
            found.append((word[2:], []))
        else:
            found[-1][1].append(word)
    return found


def value(values: Sequence[str], shape: Any) -> Any:
    if shape.type_name == "list":
        assert values, "expected at least one argument"
        return list(values)
    if shape.type_name == "boolean":
        assert not values, values
        return True
    (text,) = values
    if shape.type_name in {"structure", "map"}:
        return json.loads(text)
    return int(text) if shape.type_name == "integer" else text


def shown(answer: dict[str, Any], showing: dict[str, str]) -> str:
    """``--output text`` of a list of words, or JSON."""
    found = {key: said for key, said in answer.items() if key != "ResponseMetadata"}
    chosen = import_module("jmespath").search(showing["query"], found) if "query" in showing else found
    if showing.get("output") != "text":
        return json.dumps(chosen, default=str)
    return "\t".join(chosen) + "\n" if isinstance(chosen, list) else f"{chosen}\n"
