"""Makes a table of arguments and attributes of a Terraform provider: ``python -m tests.generating.terraform.make_table WHEEL TABLE TYPE…``.

WHEEL are HashiCorp's bindings of the provider for Python, such as cdktf-cdktf-provider-aws of PyPI, which are made from the schema that the
provider itself gives out (``terraform providers schema``). TABLE is the file to write. Each TYPE is a type of resource, such as
aws_launch_template, or of data, such as data.aws_subnet; without any, those that TABLE has already.

The bindings do not say which optional arguments the provider fills in, and call sets lists.
"""

import json
import re
import sys
import tarfile
import zipfile
from gzip import decompress
from io import BytesIO
from pathlib import Path
from typing import Any

_ANCHOR = re.compile(r"#(\w+) ")
_LINK = re.compile(r"/docs/(resources|data-sources)/\w+ (\w+)\}")
_PRIMITIVES = {"string": "string", "number": "number", "boolean": "bool", "any": "string"}
#: Attributes of the bindings themselves, beside those of the provider.
_OWN = frozenset({"internal_value", "fqn", "timeouts", "tf_resource_type"})


class Bindings:
    """The classes and interfaces of the bindings."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as outer:
            inner = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            packed = BytesIO(outer.read(inner))
        with tarfile.open(fileobj=packed) as archive:
            manifest = json.loads(_member(archive, "package.json"))
            assembly = json.loads(_member(archive, ".jsii"))
            if "filename" in assembly:
                assembly = json.loads(decompress(_member(archive, assembly["filename"])))
        self.name: str = manifest["name"]
        self.provider: dict[str, str] = manifest["cdktf"]["provider"]
        self.source = f"{wheel.name} of PyPI, for {self.provider['name']} {self.provider['version']}"
        self._types: dict[str, Any] = assembly["types"]
        #: The class of each type of resource or data.
        self._made: dict[str, str] = {}
        for name, entry in self._types.items():
            link = _LINK.search(entry.get("docs", {}).get("summary", ""))
            if link and entry["kind"] == "class":
                self._made[("data." if link[1] == "data-sources" else "") + link[2]] = name.removeprefix(f"{self.name}.")

    def table_of(self, kind: str) -> dict[str, Any]:
        """Return arguments, blocks and attributes of a type, or of the provider itself, whose kind is its own name."""
        if kind == self.provider["name"].rsplit("/", 1)[-1]:
            return {"arguments": self._block(f"provider.{kind.capitalize()}ProviderConfig", "")["arguments"]}
        made = self._made[kind]
        return self._block(f"{made}Config", made)

    def _block(self, config: str, made: str) -> dict[str, Any]:
        arguments, blocks, attributes = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        for entry in self._properties(config):
            docs = entry.get("docs", {})
            anchor = _ANCHOR.search(docs.get("summary", "") + docs.get("remarks", ""))
            if anchor is None:
                continue
            name, required = anchor[1], not entry.get("optional", False)
            fqn, many = self._struct(entry["type"])
            if docs.get("summary", "").endswith(" block."):
                nested = self._block(fqn, f"{fqn}OutputReference")
                blocks[name] = {"required": required, "many": many, **nested}
            else:
                arguments[name] = {"required": required, "type": self._type(entry["type"])}
        for entry in self._properties(made) if made else ():
            name = re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", entry["name"])
            taken = name in arguments or name in blocks or name in _OWN or name.endswith("_input")
            if not taken and not entry.get("static"):
                attributes[name] = self._type(entry["type"])
        return {key: value for key, value in (("arguments", arguments), ("blocks", blocks), ("attributes", attributes)) if value}

    def _properties(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._types.get(f"{self.name}.{name}", {}).get("properties", [])
        return found

    def _struct(self, kind: dict[str, Any]) -> tuple[str, bool]:
        """Return the name of the interface that a type has, if any, and whether there may be several."""
        if "union" in kind:
            return next((found for each in kind["union"]["types"] if (found := self._struct(each))[0]), ("", False))
        if "collection" in kind:
            return self._struct(kind["collection"]["elementtype"])[0], True
        fqn = kind.get("fqn", "")
        return (fqn.removeprefix(f"{self.name}."), False) if fqn.startswith(f"{self.name}.") else ("", False)

    def _type(self, kind: dict[str, Any]) -> Any:
        """Return a type as Terraform writes it in JSON."""
        if "primitive" in kind:
            return _PRIMITIVES[kind["primitive"]]
        if "collection" in kind:
            return ["map" if kind["collection"]["kind"] == "map" else "list", self._type(kind["collection"]["elementtype"])]
        if "union" in kind:
            return self._type(next(each for each in kind["union"]["types"] if each.get("fqn") != "cdktf.IResolvable"))
        fqn = kind["fqn"]
        if fqn == "cdktf.IResolvable":
            return "bool"
        if fqn.startswith("cdktf."):
            return ["map", "bool" if "Boolean" in fqn else "number" if "Number" in fqn else "string"]
        name = fqn.removeprefix(f"{self.name}.")
        stem = name.removesuffix("OutputReference").removesuffix("List")
        block = self._block(stem, f"{stem}OutputReference")
        fields = {key: value["type"] for key, value in block.get("arguments", {}).items()} | block.get("attributes", {})
        return ["list", ["object", fields]]


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    assert file is not None, name
    return file.read()


def main(wheel: str, table: str, *types: str) -> None:
    bindings, path = Bindings(Path(wheel)), Path(table)
    wanted = sorted(types or json.loads(path.read_text())["types"])
    lines = [f"  {json.dumps(kind)}: {json.dumps(bindings.table_of(kind))}" for kind in wanted]
    head = {"source": bindings.source, "read": "2026-11-26", "provider": bindings.provider["name"], "version": bindings.provider["version"]}
    text = json.dumps(head)[1:-1].replace('", "', '",\n "')
    path.write_text("{" + text + ',\n "types": {\n' + ",\n".join(lines) + "\n }}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
