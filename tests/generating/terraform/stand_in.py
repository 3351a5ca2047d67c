"""Stands in for a provider: Terraform's own program checks and evaluates files against a table of arguments, without a cloud.

It speaks version 5 of Terraform's plugin protocol (hashicorp/terraform, ``docs/plugin-protocol/tfplugin5.6.proto``), as far as
``terraform validate`` and ``terraform plan`` of new resources need it. The table is one of :mod:`tests.generating.terraform.make_table`.
Every attribute that only the provider knows is unknown in a plan, or an example if the test asks for these. What data sources answer, the
test says.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # it ships none
import msgspec

_SERVICE = "tfplugin5.Provider"
#: A value that is known after apply only, as cty writes it in msgpack: an extension of type 0, or of type 12 with what is known of it.
UNKNOWN = msgspec.msgpack.Ext(0, b"\x00")
_LIST = 2
Table = Mapping[str, Any]
#: Returns, for a type of resource or data and its arguments, attributes that the provider fills in, other than what their type says.
Answers = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def load(name: str) -> Table:
    """Return the table of a provider."""
    table: Table = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    return table


@contextmanager
def standing_in(table: Table, answers: Answers, *, examples: bool = False) -> Iterator[Mapping[str, str]]:
    """Serve the provider of the table, and yield the environment in which ``terraform`` uses it.

    With ``examples``, what a real provider knows after apply only is its own name, such as ``aws_sqs_queue.arn``.
    """
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers((_Handlers(_Provider(table, answers, examples=examples)),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        address = {"Network": "tcp", "String": f"127.0.0.1:{port}"}
        where = {table["provider"]: {"Protocol": "grpc", "ProtocolVersion": 5, "Pid": getpid(), "Test": True, "Addr": address}}
        yield {"TF_REATTACH_PROVIDERS": json.dumps(where)}
    finally:
        server.stop(None).wait()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # the same
    def __init__(self, provider: "_Provider") -> None:
        self._methods: dict[str, Callable[[Mapping[int, bytes]], bytes]] = {
            "GetSchema": provider.schema,
            "PrepareProviderConfig": lambda request: _field(1, request.get(1, b"")),
            "PlanResourceChange": provider.plan,
            "ReadDataSource": provider.read_data,
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != _SERVICE or method in {"GetMetadata", "GetFunctions"}:
            return None
        answer = self._methods.get(method, _nothing)
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: answer(_fields(request)))


def _nothing(_request: Mapping[int, bytes]) -> bytes:
    """The answer where there is nothing to report."""
    return b""


class _Provider:
    def __init__(self, table: Table, answers: Answers, *, examples: bool) -> None:
        self._examples = examples
        self._types: Mapping[str, Any] = table["types"]
        self._name = table["provider"].rsplit("/", 1)[-1]
        self._answers = answers

    def schema(self, _request: Mapping[int, bytes]) -> bytes:
        found = _field(1, _schema(self._types[self._name]))
        for kind, entry in self._types.items():
            if kind != self._name:
                number = 3 if kind.startswith("data.") else 2
                found += _field(number, _field(1, kind.removeprefix("data.").encode()) + _field(2, _schema(entry)))
        return found

    def plan(self, request: Mapping[int, bytes]) -> bytes:
        kind, proposed = request[1].decode(), _value(request[3])
        planned = None
        if proposed is not None:
            entry, answered = self._types[kind], self._answers(kind, proposed)
            filled = {key: value for key, value in answered.items() if proposed.get(key, value) is None}
            known = {key: value for key, value in answered.items() if key in entry.get("attributes", {})}
            planned = _planned(entry, {**proposed, **filled}, kind, examples=self._examples) | known
        # What providers made with HashiCorp's first toolkit may do: fill in optional arguments and blocks.
        return _field(1, _dynamic(planned)) + _flag(5, 1)

    def read_data(self, request: Mapping[int, bytes]) -> bytes:
        kind = request[1].decode()
        config = _value(request[2])
        entry = self._types[f"data.{kind}"]
        known = {name: _example(form, f"{kind}.{name}") for name, form in entry.get("attributes", {}).items()}
        known |= {name: value for name, value in config.items() if value is not None}
        return _field(1, _dynamic({**config, **known, **self._answers(kind, config)}))


def _planned(entry: Mapping[str, Any], value: Mapping[str, Any], name: str, *, examples: bool) -> dict[str, Any]:
    def later(form: Any, key: str) -> Any:
        return _example(form, f"{name}.{key}") if examples else UNKNOWN

    planned = dict(value) | {key: later(form, key) for key, form in entry.get("attributes", {}).items()}
    if "id" in entry.get("arguments", {}) and planned.get("id") is None:
        planned["id"] = later("string", "id")
    for key, nested in entry.get("blocks", {}).items():
        if planned.get(key):
            planned[key] = [_planned(nested, item, f"{name}.{key}", examples=examples) for item in planned[key]]
        elif nested.get("attributes") and not nested["many"]:
            # A block that the provider fills in, such as the cluster's network.
            fields = {field: argument["type"] for field, argument in nested.get("arguments", {}).items()} | nested["attributes"]
            filled = {field: later(form, f"{key}.{field}") for field, form in fields.items()}
            planned[key] = [filled | {inner: [] for inner in nested.get("blocks", {})}]
    return planned


def _example(form: Any, name: str) -> Any:
    match form:
        case "string":
            return name
        case "number":
            return 1
        case "bool":
            return False
        case ["list", ["object", fields]]:
            return [{key: _example(kind, f"{name}.{key}") for key, kind in fields.items()}]
        case ["list", kind]:
            return [_example(kind, name)]
    return {}


def _schema(entry: Mapping[str, Any]) -> bytes:
    return _flag(1, 0) + _field(2, _block(entry))


def _block(entry: Mapping[str, Any]) -> bytes:
    found = b""
    for name, argument in entry.get("arguments", {}).items():
        kind = json.dumps(argument["type"]).encode()
        # Whether the provider fills in an optional argument, the table does not say; so it may.
        found += _field(
            2, _field(1, name.encode()) + _field(2, kind) + (_flag(4, 1) if argument["required"] else _flag(5, 1) + _flag(6, 1))
        )
    for name, form in entry.get("attributes", {}).items():
        found += _field(2, _field(1, name.encode()) + _field(2, json.dumps(form).encode()) + _flag(6, 1))
    for name, nested in entry.get("blocks", {}).items():
        limits = _flag(4, int(nested["required"])) + _flag(5, 0 if nested["many"] else 1)
        found += _field(3, _field(1, name.encode()) + _field(2, _block(nested)) + _flag(3, _LIST) + limits)
    return found


def _value(dynamic: bytes) -> Any:
    return msgspec.msgpack.decode(_fields(dynamic)[1], ext_hook=lambda _code, _data: UNKNOWN)


def _dynamic(value: Any) -> bytes:
    return _field(1, msgspec.msgpack.encode(value))


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low]) if not rest else bytes([low | 0x80]) + _varint(rest)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _flag(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the last value of each field of a message; numbers are skipped."""
    found, at = dict[int, bytes](), 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    while at < len(message):
        tag = varint()
        size = varint()
        if tag & 7 == 2:
            found[tag >> 3] = message[at : at + size]
            at += size
    return found
