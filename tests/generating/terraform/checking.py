"""Checks files of Terraform against the table of a provider, without Terraform: types, arguments, blocks and references."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import hcl2
from tests.generating.terraform.stand_in import Table

#: Arguments and blocks that Terraform itself gives every resource and data source.
_META = frozenset({"for_each", "count", "depends_on", "provider"})
_META_BLOCKS = frozenset({"lifecycle", "provisioner", "connection"})
_LITERALS = {"string": str, "number": (int, float), "bool": bool}


def mistakes(texts: Iterable[str], table: Table) -> list[str]:
    """Return what is wrong with files that are applied together."""
    module = _Module(texts)
    types = table["types"]
    prefix = table["provider"].rsplit("/", 1)[-1]
    found = list[str]()
    for address, body in module.resources.items():
        kind = address.rpartition(".")[0]
        if kind not in types:
            found.append(f"{address}: the table has no such type")
        else:
            found += _block(address, body, types[kind], top=True)
    for body in module.providers:
        found += _block("provider", body, types[prefix], top=True)
    for text in module.expressions:
        found += _references(text, module, types, prefix)
    return found


class _Module:
    """All blocks of some files."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.resources = dict[str, dict[str, Any]]()
        self.providers = list[dict[str, Any]]()
        self.names = {"var": set[str](), "local": set[str]()}
        self.locals = dict[str, Any]()
        self.expressions = list[str]()
        for text in texts:
            for kind, blocks in hcl2.loads(text).items():
                for block in blocks if kind != "__comments__" else ():
                    self._add(kind, _clean(block))

    def _add(self, kind: str, block: dict[str, Any]) -> None:
        self.expressions += _strings(block)
        match kind:
            case "resource" | "data":
                for type_, named in block.items():
                    for name, body in named.items():
                        self.resources[f"{'data.' if kind == 'data' else ''}{type_}.{name}"] = body
            case "provider":
                self.providers += block.values()
            case "variable":
                self.names["var"] |= block.keys()
            case "locals":
                self.names["local"] |= block.keys()
                self.locals |= block


def _clean(tree: Any) -> Any:
    """Return what the parser found without its own keys, and names without their quotes."""
    if isinstance(tree, dict):
        return {
            key.strip('"'): _clean(value)
            for key, value in tree.items()
            if key not in {"__is_block__", "__comments__", "__inline_comments__"}
        }
    return [_clean(value) for value in tree] if isinstance(tree, list) else tree


def _strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from _strings(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _strings(value)
    elif isinstance(tree, str):
        yield tree


def _block(at: str, body: Mapping[str, Any], table: Mapping[str, Any], *, top: bool = False) -> Iterator[str]:
    arguments, blocks = table.get("arguments", {}), table.get("blocks", {})
    dynamic = {name: nested for entry in body.get("dynamic", []) for name, nested in entry.items()}
    for name, value in body.items():
        if name in arguments:
            yield from _argument(f"{at}.{name}", value, arguments[name]["type"])
        elif name in blocks:
            for nested in value:
                yield from _block(f"{at}.{name}", nested, blocks[name])
            if len(value) > 1 and not blocks[name]["many"]:
                yield f"{at}.{name}: {len(value)} blocks, expected one"
        elif name != "dynamic" and not (top and name in _META | _META_BLOCKS):
            yield f"{at}.{name}: no such argument or block"
    for name, nested in dynamic.items():
        if name in blocks:
            for content in nested["content"]:
                yield from _block(f"{at}.{name}", content, blocks[name])
        else:
            yield f"{at}.{name}: no such block"
    required = {name for name, entry in (arguments | blocks).items() if entry["required"]}
    for name in sorted(required - body.keys() - dynamic.keys()):
        yield f"{at}.{name}: is required and not there"


def _argument(at: str, value: Any, form: Any) -> Iterator[str]:
    """Compare a literal with the type that it must have; expressions may be of any type."""
    if value is None or (isinstance(value, str) and not value.startswith('"')):
        return
    if isinstance(form, list):
        expected: Any = dict if form[0] == "map" else list
    else:
        # The provider's older toolkit reads booleans as text where unset means something.
        expected = _LITERALS[form] if form != "string" else (str, bool)
    if not isinstance(value, expected) or (form == "number" and isinstance(value, bool)):
        yield f"{at}: {value!r}, expected {form}"


def _references(text: str, module: _Module, types: Mapping[str, Any], prefix: str) -> Iterator[str]:
    names = re.sub(r'"(?:[^"\\$%]|\\.|[$%](?!\{))*"', '""', text)
    for scope, name in re.findall(r"(?<![\w.])(var|local)\.(\w+)", names):
        if name not in module.names[scope]:
            yield f"{scope}.{name}: is mentioned and not there"
    for name, field in re.findall(r"(?<![\w.])local\.(\w+)\.(\w+)", names):
        fields = module.locals.get(name)
        if isinstance(fields, dict) and field not in fields:
            yield f"local.{name}.{field}: is mentioned and not there"
    pattern = rf"(?<![\w.])((?:data\.)?{prefix}_\w+)\.(\w+)(?:\[[^\]]*\])?(?:\.(\w+))?"
    for type_, name, attribute in re.findall(pattern, names):
        if f"{type_}.{name}" not in module.resources:
            yield f"{type_}.{name}: is mentioned and not there"
        elif attribute and not any(attribute in types[type_].get(part, {}) for part in ("arguments", "blocks", "attributes")):
            yield f"{type_}.{name}.{attribute}: no such attribute"
