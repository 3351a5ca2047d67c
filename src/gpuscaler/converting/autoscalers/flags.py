"""Command lines of containers, as Kubernetes, a shell and the programs themselves read them."""

import re
import shlex
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscaler.converting.adapters.references import key_of, namespace_of
from gpuscaler.converting.objects import Json, get_items, get_mapping, text

#: Values that only a person can fill in: variables that are not known, placeholders of examples and templates.
_PLACEHOLDER: Final = re.compile(r"\$|<|\{\{")
_REFERENCE: Final = re.compile(r"\$\$|\$\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_SHELL_VARIABLE: Final = re.compile(r"\$\{?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}?")
_SHELL: Final = re.compile(r"(.*/)?(ba|da|a)?sh")
#: What ends a command of a shell.
_OPERATOR: Final = re.compile(r"[0-9]*[<>].*|&&|\|\|?|;|&")
_COUNTED: Final = re.compile(r"-v+")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it was given: ``name`` without dashes and with dashes for underscores; ``value`` is "true" if it has none."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"--{self.name}={self.value}"

    @property
    def is_placeholder(self) -> bool:
        """Whether the value is one that only a person can fill in."""
        return _PLACEHOLDER.search(self.value) is not None


def effective(flags: Iterable[Flag], lists: Mapping[str, Callable[[str], str]]) -> tuple[list[Flag], list[tuple[Flag, Flag]]]:
    """(the flags that count, in order; those that do not, each with the later one that counts instead).

    The last of a flag counts. Those in ``lists`` add up: of them, the last counts among those of which the function returns the same.
    """
    last: dict[tuple[str, str], Flag] = {}
    listed = [((flag.name, lists[flag.name](flag.value) if flag.name in lists else ""), flag) for flag in flags]
    for key, flag in listed:
        last.pop(key, None)
        last[key] = flag
    return list(last.values()), [(flag, last[key]) for key, flag in listed if flag is not last[key]]


#: ConfigMaps and Secrets by kind, name and namespace.
Sources = Mapping[tuple[str, str, str], Json]


def sources_of(objects: Iterable[Json]) -> Sources:
    """The ConfigMaps and Secrets among ``objects``."""
    return {(*key_of(item), namespace_of(item)): item for item in objects if item.get("kind") in ("ConfigMap", "Secret")}


def environment(container: Json, namespace: str, sources: Sources) -> dict[str, str]:
    """The variables of a container whose values are known: literals, and those from ``sources``."""
    known: dict[str, str] = {}
    for source in get_items(container, "envFrom"):
        prefix = text(source.get("prefix"))
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            item = sources.get((kind, text(get_mapping(source, key).get("name")), namespace), {})
            known |= {f"{prefix}{name}": value for name, value in _values(item).items()}
    for variable in get_items(container, "env"):
        name, origin = text(variable.get("name")), get_mapping(variable, "valueFrom")
        if "value" in variable:
            known[name] = expand(text(variable["value"]), known)
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            reference = get_mapping(origin, key)
            values = _values(sources.get((kind, text(reference.get("name")), namespace), {}))
            if text(reference.get("key")) in values:
                known[name] = values[text(reference["key"])]
    return known


def _values(item: Json) -> dict[str, str]:
    """The texts of a ConfigMap or Secret by key, without those that are no text."""
    values = {}
    for key, value in get_mapping(item, "data").items():
        plain = text(value)
        if item.get("kind") == "Secret":
            try:
                plain = b64decode(plain, validate=True).decode().strip()
            except (Base64Error, ValueError):
                continue
        values[str(key)] = plain
    return values | {str(key): text(value) for key, value in get_mapping(item, "stringData").items()}


def expand(word: str, known: Mapping[str, str]) -> str:
    """``word`` with ``$(NAME)`` replaced as Kubernetes does: ``$$`` is a dollar, an unknown name stays as it is."""
    return _REFERENCE.sub(lambda match: "$" if match["name"] is None else known.get(match["name"], match[0]), word)


def mentions(word: str, name: str) -> bool:
    """Whether ``word`` refers to the variable ``name``, as Kubernetes or a shell would read it."""
    return any(match["name"] == name for pattern in (_REFERENCE, _SHELL_VARIABLE) for match in pattern.finditer(word))


def command_line(container: Json, known: Mapping[str, str]) -> list[str]:
    """The words of command and args with variables replaced. A line for a shell is split as a shell does."""
    words = [
        expand(text(word), known)
        for key in ("command", "args")
        if isinstance(container.get(key), list)
        for word in container[key]
        if not isinstance(word, dict | list)
    ]
    if len(words) > 2 and _SHELL.fullmatch(words[0]) and words[1].startswith("-") and "c" in words[1]:
        return _split(_SHELL_VARIABLE.sub(lambda match: known.get(match["name"], match[0]), words[2]))
    return words


def _split(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    if words[:1] == ["exec"]:
        del words[0]
    end = next((index for index, word in enumerate(words) if _OPERATOR.fullmatch(word)), len(words))
    return words[:end]


def flags_of(words: Iterable[str], booleans: Collection[str]) -> list[Flag]:
    """The flags among ``words``, with one dash or two. Flags in ``booleans`` take no value from the next word."""
    flags: list[Flag] = []
    waiting = ""
    for word in words:
        is_flag = word.startswith("-") and word.strip("-") != ""
        if waiting and not is_flag:
            flags.append(Flag(waiting, word.strip()))
            waiting = ""
            continue
        if waiting:
            flags.append(Flag(waiting, "true"))
            waiting = ""
        if _COUNTED.fullmatch(word):
            flags.append(Flag("v", str(len(word) - 1)))
        elif is_flag:
            name, equals, value = word.strip().lstrip("-").partition("=")
            name = name.replace("_", "-")
            if equals or name in booleans:
                flags.append(Flag(name, value if equals else "true"))
            else:
                waiting = name
    return [*flags, Flag(waiting, "true")] if waiting else flags
