"""The part of the AWS CLI that our pages use: commands become calls of a client, by the model that the CLI itself reads."""

import json
import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from botocore import xform_name

#: Options for the output, which every operation has.
OUTPUT_OPTIONS = {"query", "output", "region"}


def run_command_line(text: str, client: Callable[[str], Any], output: str = "") -> str:
    """The output of a command line: commands of the AWS CLI, connected by xargs."""
    for part in split_pipe(text):
        output = xargs(part[1:], client, output) if part[0] == "xargs" else aws(part, client)
    return output


def split_pipe(text: str) -> list[list[str]]:
    """The words of each command of a pipe."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def xargs(words: Sequence[str], client: Callable[[str], Any], words_in: str) -> str:
    """``xargs -r -n NUMBER COMMAND``."""
    assert (words[0], words[1]) == ("-r", "-n"), words
    many, arguments = int(words[2]), words_in.split()
    return "".join(aws([*words[3:], *arguments[place : place + many]], client) for place in range(0, len(arguments), many))


def aws(words: Sequence[str], client: Callable[[str], Any]) -> str:
    """Run an operation as the CLI does: unknown options and missing ones are refused."""
    command, service, operation, *options = words
    assert command == "aws", words
    service_client = client(service)
    name = operation.replace("-", "_")
    shape = service_client.meta.service_model.operation_model(service_client.meta.method_to_api_mapping[name]).input_shape
    parameters, output_options = parse_parameters(options, shape)
    missing = set(shape.required_members) - parameters.keys()
    assert not missing, f"{operation}: the following arguments are required: {sorted(missing)}"
    return format_answer(getattr(service_client, name)(**parameters), output_options)


def parse_parameters(options: Sequence[str], shape: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The parameters of an operation, and how to print its answer."""
    members = {xform_name(name, "-"): name for name in shape.members}
    parameters, output_options = dict[str, Any](), dict[str, str]()
    for option, values in group_options(options):
        if option in OUTPUT_OPTIONS:
            (output_options[option],) = values
        elif option.startswith("no-") and option[3:] in members:
            parameters[members[option[3:]]] = False
        else:
            assert option in members, f"Unknown options: --{option}"
            parameters[members[option]] = parse_value(values, shape.members[members[option]])
    return parameters, output_options


def group_options(options: Sequence[str]) -> list[tuple[str, list[str]]]:
    options_with_values: list[tuple[str, list[str]]] = []
    for word in options:
        if word.startswith("--"):
            options_with_values.append((word[2:], []))
        else:
            options_with_values[-1][1].append(word)
    return options_with_values


def parse_value(values: Sequence[str], shape: Any) -> Any:
    if shape.type_name == "list":
        assert values, "expected at least one argument"
        if values[0].startswith("["):
            (text,) = values
            return json.loads(text)
        return [parse_value([value], shape.member) for value in values]
    if shape.type_name == "boolean":
        assert not values, values
        return True
    (text,) = values
    if shape.type_name in {"structure", "map"}:
        return json.loads(text) if text.startswith("{") else parse_shorthand(text, shape)
    return {"integer": int, "double": float}.get(shape.type_name, str)(text)


def parse_shorthand(text: str, shape: Any) -> dict[str, Any]:
    """A structure written ``Key=Value,Other=Value``."""
    pairs = dict(part.split("=", 1) for part in text.split(","))
    unknown = pairs.keys() - shape.members.keys()
    assert not unknown, f"Unknown keys: {sorted(unknown)}"
    return {key: value == "true" if shape.members[key].type_name == "boolean" else value for key, value in pairs.items()}


def format_answer(answer: dict[str, Any], output_options: dict[str, str]) -> str:
    """``--output text`` of a list of words, or JSON."""
    shown_answer = {key: value for key, value in answer.items() if key != "ResponseMetadata"}
    chosen = import_module("jmespath").search(output_options["query"], shown_answer) if "query" in output_options else shown_answer
    if output_options.get("output") != "text":
        return json.dumps(chosen, default=str)
    return "\t".join(chosen) + "\n" if isinstance(chosen, list) else f"{chosen}\n"
