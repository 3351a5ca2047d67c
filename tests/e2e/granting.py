"""The rights that an account's roles grant, and the rights that its requests needed."""

import json
from collections.abc import Iterable

from tests.e2e.stage import Json, Stage

from gpuscaler.kube.resources import SERVICE_ACCOUNTS

#: Verb, API group, resource (``pods/eviction``) and name. An empty name stands for all names.
Right = tuple[str, str, str, str]

#: Rights from a Role of the cluster itself, which a metrics API needs to learn which clients to trust.
TRUSTS: frozenset[Right] = frozenset((verb, "", "configmaps", "extension-apiserver-authentication") for verb in ("get", "watch"))


def granted(objects: Iterable[Json], account: str) -> set[Right]:
    """All rights that the roles in ``objects`` grant to an account."""
    existing = [obj for obj in objects if obj]
    bindings = [
        obj for obj in existing if obj["kind"].endswith("RoleBinding") and account in {subject["name"] for subject in obj["subjects"]}
    ]
    bound = {(binding["roleRef"]["kind"], binding["roleRef"]["name"]) for binding in bindings}
    return {
        (verb, group, resource, name)
        for obj in existing
        if (obj["kind"], obj["metadata"]["name"]) in bound
        for rule in obj["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def asked(made: Stage, account: str, namespace: str) -> list[Json]:
    """Every request of an account for a resource, from the API server's audit log."""
    user = f"system:serviceaccount:{namespace}:{account}"
    # The last line may be incomplete.
    lines = [line for line in made.plane.layout.audit.read_text().splitlines(keepends=True) if user in line and line.endswith("\n")]
    return [
        request for request in map(json.loads, lines) if request["user"]["username"] == user and "resource" in request.get("objectRef", {})
    ]


def used(requests: Iterable[Json], allowed: set[Right]) -> set[Right]:
    """The rights that requests needed: with a name where ``allowed`` has the right by name, otherwise without."""
    return {right if right in allowed else (*right[:3], "") for right in map(_right, requests)}


def refused(requests: Iterable[Json]) -> set[Right]:
    """The rights for which requests were refused."""
    return {_right(request) for request in requests if request["responseStatus"]["code"] == 403}


def _right(request: Json) -> Right:
    about = request["objectRef"]
    resource = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
    return request["verb"], about.get("apiGroup", ""), resource, about.get("name", "")


async def token(made: Stage, account: str, namespace: str) -> str:
    """A token of a service account."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    reply = await made.admin.create(SERVICE_ACCOUNTS, request, namespace=namespace, name=account, subresource="token")
    text: str = json.loads(reply)["status"]["token"]
    return text
