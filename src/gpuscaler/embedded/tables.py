"""Tables, which is what ``kubectl get`` asks for and prints."""

from collections.abc import Sequence
from typing import Any

from gpuscaler.embedded.kinds import Kind
from gpuscaler.embedded.store import Object
from gpuscaler.kube.transport import Request


def wanted(request: Request) -> bool:
    """Whether the first kind of answer that the client would take is a table."""
    first = request.headers.get("accept", "").partition(",")[0]
    return "as=Table" in first and "g=meta.k8s.io" in first


def table(kind: Kind, objects: Sequence[Object], *, revision: int, request: Request) -> Object:
    """``objects`` as rows."""
    rows: list[Any] = [{"cells": [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")], "object": obj} for obj in objects]
    columns = [{"name": "Name", "type": "string"}, {"name": "Created At", "type": "date"}]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(revision)},
        "columnDefinitions": columns,
        "rows": rows,
    }
