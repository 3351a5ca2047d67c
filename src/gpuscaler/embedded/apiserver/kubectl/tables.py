"""Tables, which ``kubectl get`` requests and prints."""

from collections.abc import Sequence
from typing import Any

from gpuscaler.embedded.apiserver.kinds import Kind
from gpuscaler.embedded.apiserver.kubectl.columns import COLUMNS, GENERIC
from gpuscaler.embedded.apiserver.store import STORED_AS, Object
from gpuscaler.embedded.apiserver.wire.failures import bad_request
from gpuscaler.kube.transport import Request


def wants_table(request: Request) -> bool:
    """Whether the first kind of answer that the client accepts is a table."""
    first = request.headers.get("accept", "").partition(",")[0]
    return "as=Table" in first and "g=meta.k8s.io" in first


def table_of(kind: Kind, objects: Sequence[Object], *, now: float, request: Request) -> Object:
    """``objects`` as rows of a table at ``now``, in POSIX seconds.

    Source of the columns: ``k8s.io/kubernetes/pkg/printers/internalversion/printers.go``, Kubernetes 1.35.
    """
    columns = COLUMNS.get(STORED_AS.get(kind, kind).qualified, GENERIC)
    keep = request.query.get("includeObject") or "Metadata"
    if keep not in ("None", "Metadata", "Object"):
        raise bad_request(f'unrecognized includeObject value: "{keep}"')
    rows: list[Any] = []
    for obj in objects:
        row: Object = {"cells": [column.cell(obj, now) for column in columns]}
        if keep == "Metadata":
            row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        elif keep == "Object":
            row["object"] = obj
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": [column.definition() for column in columns],
        "rows": rows,
    }
