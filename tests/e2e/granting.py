"""The two sides of every comparison of rights: what the roles of an account allow, and what it asked for."""

import json
from collections.abc import Iterable

from tests.e2e.stage import Json, Stage

from gpuscaler.kube.resources import SERVICE_ACCOUNTS

#: Verb, API group, resource (``pods/eviction``), name; an empty name stands for all.
Right = tuple[str, str, str, str]

#: What a metrics API needs of a Role of the cluster's own to know whom to believe.
TRUSTS: frozenset[Right] = frozenset((verb, "", "configmaps", "extension-apiserver-authentication") for verb in ("get", "watch"))


def granted(objects: Iterable[Json], account: str) -> set[Right]:
    """All that the roles among ``objects`` that are bound to an account allow."""
    found = [one for one in objects if one]
    bindings = [one for one in found if one["kind"].endswith("RoleBinding") and account in {who["name"] for who in one["subjects"]}]
    bound = {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings}
    return {
        (verb, group, resource, name)
        for one in found
        if (one["kind"], one["metadata"]["name"]) in bound
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def asked(made: Stage, account: str, namespace: str) -> list[Json]:
    """Every request of an account about some object, as the API server noted it down."""
    user = f"system:serviceaccount:{namespace}:{account}"
    # Of the last line a part may be there only.
    lines = [line for line in made.plane.layout.audit.read_text().splitlines(keepends=True) if user in line and line.endswith("\n")]
    return [one for one in map(json.loads, lines) if one["user"]["username"] == user and "resource" in one.get("objectRef", {})]


def used(requests: Iterable[Json], allowed: set[Right]) -> set[Right]:
    """The rights that requests needed, as those that are ``allowed`` spell them, whether they are among these or not."""
    return {one if one in allowed else (*one[:3], "") for one in map(_right, requests)}


def refused(requests: Iterable[Json]) -> set[Right]:
    """What was asked for in vain, for want of a right."""
    return {_right(one) for one in requests if one["responseStatus"]["code"] == 403}


def _right(request: Json) -> Right:
    about = request["objectRef"]
    resource = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
    return request["verb"], about.get("apiGroup", ""), resource, about.get("name", "")


async def token(made: Stage, account: str, namespace: str) -> str:
    """A token of a service account."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    found = await made.admin.create(SERVICE_ACCOUNTS, request, namespace=namespace, name=account, subresource="token")
    told: str = json.loads(found)["status"]["token"]
    return told
