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
from gpuscaler.doctor.manifests.credentials import is_credential_name

#: Values that only a person can fill in: variables that are not known, placeholders of examples and templates.
_PLACEHOLDER: Final = re.compile(r"\$|<|\{\{")
_REFERENCE: Final = re.compile(r"\$\$|\$\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_SHELL_VARIABLE: Final = re.compile(r"\$\{?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}?")
_SHELL: Final = re.compile(r"(.*/)?(ba|da|a)?sh")
#: What ends a command of a shell.
_OPERATOR: Final = re.compile(r"[0-9]*[<>].*|&&|\|\|?|;|&")
_COUNTED: Final = re.compile(r"-v+")
#: Names of flags and variables whose values open something, by a word in them; and values with a password of an address.
_KEYS: Final = re.compile(
    r"(^|[-_.])(secrets?|keys?|tokens?|hooks?|webhooks?|password|passwd|passphrase|credentials?)($|[-_.])", re.IGNORECASE
)
#: Keys of Secrets of Cluster Autoscaler for Azure that say where the machines are, in small letters.
_IDENTIFIERS: Final = frozenset({"subscriptionid", "resourcegroup", "noderesourcegroup", "clustername", "vmtype"})
_PASSWORD: Final = re.compile(r"://[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it was given: ``name`` without dashes and with dashes for underscores; ``value`` is "true" if it has none.

    As text, it has no value that is a key: reports go to logs and files that others read.
    """

    name: str
    value: str

    def __str__(self) -> str:
        hidden = _is_key(self.name) or _PASSWORD.search(self.value)
        is_reference = _REFERENCE.fullmatch(self.value) or _SHELL_VARIABLE.fullmatch(self.value)
        return f"--{self.name}={'…' if hidden and not is_reference else self.value}"

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
    """The variables of a container whose values are known: literals, and those from the ConfigMaps in ``sources``.

    Of a Secret, only names and ids of what is in the cloud are known, by their keys; nor is a variable known whose name says that it is a
    key. Flags are shown in reports and in the run file, and who may write a workload may not be allowed to read the Secrets in it.
    """
    known: dict[str, str] = {}
    for source in get_items(container, "envFrom"):
        prefix = text(source.get("prefix"))
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            item = sources.get((kind, text(get_mapping(source, key).get("name")), namespace), {})
            for name, value in _values(item).items():
                _learn(known, f"{prefix}{name}", value)
    for variable in get_items(container, "env"):
        name, origin = text(variable.get("name")), get_mapping(variable, "valueFrom")
        value = expand(text(variable["value"]), known) if "value" in variable else None
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if reference := get_mapping(origin, key):
                item = sources.get((kind, text(reference.get("name")), namespace), {})
                value = _values(item).get(text(reference.get("key")))
        _learn(known, name, value)
    return known


def _is_key(name: str) -> bool:
    return is_credential_name(name) or _KEYS.search(name) is not None


def _learn(known: dict[str, str], name: str, value: str | None) -> None:
    """Note the value of a variable, which replaces an earlier one; None if it is not known."""
    known.pop(name, None)
    if value is not None and not _is_key(name):
        known[name] = value


def _values(item: Json) -> dict[str, str | None]:
    """The texts of a ConfigMap or Secret by key; None for those of a Secret that are no identifiers, or no text."""
    if item.get("kind") != "Secret":
        return {str(key): text(value) for key, value in get_mapping(item, "data").items()}
    values: dict[str, str | None] = {}
    for field in ("data", "stringData"):
        for key, value in get_mapping(item, field).items():
            known = re.sub("[-_]", "", str(key)).lower() in _IDENTIFIERS
            values[str(key)] = (_decoded(text(value)) if field == "data" else text(value)) if known else None
    return values


def _decoded(value: str) -> str | None:
    try:
        return b64decode(value, validate=True).decode().strip()
    except (Base64Error, ValueError):
        return None


def expand(word: str, known: Mapping[str, str]) -> str:
    """``word`` with ``$(NAME)`` replaced as Kubernetes does: ``$$`` is a dollar, an unknown name stays as it is."""
    return _REFERENCE.sub(lambda match: "$" if match["name"] is None else known.get(match["name"], match[0]), word)


def mentioned(words: Iterable[str]) -> set[str | None]:
    """The names of the variables that ``words`` refer to, as Kubernetes or a shell would read them."""
    return {match["name"] for word in words for pattern in (_REFERENCE, _SHELL_VARIABLE) for match in pattern.finditer(word)}


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
