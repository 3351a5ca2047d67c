"""The part of OpenAPI v3 that kubectl reads before it writes: it says that the server validates fields.

kubectl 1.27 and later search for the query parameter ``fieldValidation`` of the patch of a kind
(``k8s.io/cli-runtime/pkg/resource/query_param_verifier_v3.go``), and validate nothing themselves if they find it. Fields are not described:
``kubectl explain`` shows where a kind is documented.
"""

from typing import Any, Final

from gpuscaler.embedded.apiserver.kinds import KINDS, Kind
from gpuscaler.embedded.apiserver.kubectl.discovery import VERSION
from gpuscaler.embedded.apiserver.wire.replies import json_reply, reply
from gpuscaler.kube.transport import Answer

_ROOT: Final = "/openapi/v3"
_EXPLAINED: Final = "https://kubernetes.io/docs/reference/kubernetes-api/"
#: A document of OpenAPI v2 in protobuf that contains only ``swagger: 2.0``. kubectl requests it before it writes a List, and
#: does not validate kinds that it does not contain.
_OLD: Final = b"\x0a\x032.0"


def answer(path: str) -> Answer | None:
    """The index of documents, or the document of one group and version; None if ``path`` is neither."""
    roots = dict.fromkeys(kind.root for kind in KINDS)
    if path == "/openapi/v2":
        return reply(_OLD, headers={"content-type": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"})
    if path == _ROOT:
        return json_reply({"paths": {root.removeprefix("/"): {"serverRelativeURL": f"{_ROOT}{root}"} for root in roots}})
    root = path.removeprefix(_ROOT)
    if not path.startswith(_ROOT) or root not in roots:
        return None
    kinds = [kind for kind in KINDS if kind.root == root]
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    schemas = {kind.kind: _schema(kind) for kind in kinds}
    return json_reply({"openapi": "3.0.0", "info": info, "paths": dict(map(_path, kinds)), "components": {"schemas": schemas}})


def _schema(kind: Kind) -> dict[str, Any]:
    text = f"This server stores each {kind.kind} unchanged and has no description of its fields; see {_EXPLAINED}."
    return {"type": "object", "description": text, "x-kubernetes-group-version-kind": [_named(kind)]}


def _named(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _path(kind: Kind) -> tuple[str, dict[str, Any]]:
    scope = "namespaces/{namespace}/" if kind.namespaced else ""
    text = {"type": "string", "uniqueItems": True}
    parameters = [{"name": name, "in": "query", "schema": text} for name in ("dryRun", "fieldManager", "fieldValidation", "force")]
    operation = {
        "operationId": f"patch{kind.kind}",
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": _named(kind),
    }
    return f"{kind.root}/{scope}{kind.plural}/{{name}}", {"patch": operation}
