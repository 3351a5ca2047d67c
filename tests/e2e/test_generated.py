"""What ``gpuscaler generate cluster`` writes, on a real API server: it takes every object strictly, and keeps pools of teams for them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.e2e.stage import Stage, stage, until
from tests.generating.corpus import NAMES, description, generated, objects, path_of

from gpuscaler.kube.transport import Request

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
#: What must exist before others can be applied, even as a dry run.
FIRST = frozenset({"Namespace", "PriorityClass", "StorageClass"})
#: Of the tools: kOps creates it. A pod of a class that does not exist is refused.
RUNTIME_CLASS: Json = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
TEAMS = "s4-terraform"
EVERYTHING = {"operator": "Exists"}
#: A toleration that opens nothing to the pod.
NOTHING = {"key": "gpu-pool", "operator": "Equal", "value": "others", "effect": "NoSchedule"}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
#: Of a namespace whose pods run on every node.
LOGS: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "logs", "labels": {"gpu-pool": "all"}}}


def _container(name: str = "c", resource: str = "", **more: Any) -> Json:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "name": name,
        "image": "train:1",
        "resources": {"limits": {resource: "1"} if resource else {}},
        "securityContext": security,
        **more,
    }


def _spec(*tolerations: Json, resource: str = "", **more: Any) -> Json:
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [_container(resource=resource)], "tolerations": list(tolerations), "securityContext": security}
    return {**spec, "automountServiceAccountToken": False, **more}


def _environment(value: Json) -> Json:
    return {"env": [{"name": VISIBLE, **value}]}


#: Lets members of two groups create pods: kubelets, and others.
GROUPS = ("system:nodes", "people")
RIGHTS: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "members"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name} for name in GROUPS],
}
#: Pods that the policy must refuse outside the pool's teams, and pods that it must admit everywhere.
REFUSED: Mapping[str, Json] = {
    "toleration of the pool": _spec({**NOTHING, "value": "notebooks"}),
    "toleration of the pool with GPUs": _spec({**NOTHING, "value": "notebooks"}, resource=GPU),
    "toleration of any pool": _spec({"key": "gpu-pool", "operator": "Exists"}),
    "toleration of everything": _spec(EVERYTHING),
    "toleration of everything with GPUs": _spec(EVERYTHING, resource=GPU),
    "toleration of everything that keeps off": _spec({**EVERYTHING, "effect": "NoSchedule"}),
    "toleration of everything with a part of a GPU": _spec(EVERYTHING, resource="nvidia.com/mig-1g.10gb"),
    "toleration of everything with a sidecar": _spec(EVERYTHING, initContainers=[_container("s", GPU, restartPolicy="Always")]),
    "name of a node": _spec(NOTHING, resource=GPU, nodeName="n"),
    "all GPUs by a variable": _spec(containers=[_container(**_environment({"value": "all"}))]),
    "a GPU by a variable of a sidecar": _spec(initContainers=[_container("s", **_environment({"value": "0"}))]),
    "GPUs by a variable from elsewhere": _spec(
        containers=[_container(**_environment({"valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['gpus']"}}}))]
    ),
}
ADMITTED: Mapping[str, Json] = {
    "nothing": _spec(NOTHING),
    "GPUs": _spec(NOTHING, resource=GPU),
    "what ends pods": _spec({**EVERYTHING, "effect": "NoExecute"}),
    "no GPU by a variable": _spec(containers=[_container(**_environment({"value": "none"}))]),
}


@dataclass
class Seen:
    """Refusals and warnings by object, and the status of pods by namespace and name, and of changes of pods by name."""

    troubles: dict[str, str] = field(default_factory=dict)
    taken: int = 0
    pods: dict[tuple[str, str], int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    by_group: dict[str, int] = field(default_factory=dict)
    warnings_of_types: Any = None
    of_system_class: dict[str, tuple[int, str]] = field(default_factory=dict)


async def _send(
    made: Stage, method: str, path: str, body: Json | list[Json], *, media: str = "json", group: str = "", **query: str
) -> tuple[int, str, Json]:
    """Send ``body``, as a member of ``group`` if there is one. Returns status, the API server's warnings and its answer."""
    headers = {"content-type": f"application/{media}"} | ({"impersonate-user": "member", "impersonate-group": group} if group else {})
    asked = Request(method, path, query, headers, msgspec.json.encode(body), 60.0)
    async with made.admin.transport.exchange(asked) as answer:
        content = b"".join([piece async for piece in answer.pieces])
    return answer.status, str(answer.headers.get("warning", "")), msgspec.json.decode(content)


async def _apply(made: Stage, obj: Json, seen: Seen, **more: str) -> None:
    query = {"fieldManager": "person", "fieldValidation": "Strict", "force": "true", **more}
    status, warning, answer = await _send(made, "PATCH", path_of(obj), obj, media="apply-patch+yaml", **query)
    if status not in {200, 201} or warning:
        seen.troubles[path_of(obj)] = f"{status} {warning} {answer.get('message', '')}"
    seen.taken += status in {200, 201}


async def _status(made: Stage, namespace: str, spec: Json, *, name: str = "", group: str = "", **more: Any) -> tuple[int, str]:
    """Create a pod, as a dry run unless it has a ``name``. Returns the status and the message."""
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name or "p"}, "spec": {**spec, **more}}
    query = {} if name else {"dryRun": "All"}
    status, _, answer = await _send(made, "POST", f"/api/v1/namespaces/{namespace}/pods", body, group=group, **query)
    return status, str(answer.get("message", ""))


async def _changed(made: Stage, name: str, body: Json | list[Json]) -> int:
    """Change a pod of the examples, as a dry run. A list is a JSON patch."""
    kind = "json-patch+json" if isinstance(body, list) else "strategic-merge-patch+json"
    status, _, _ = await _send(made, "PATCH", f"/api/v1/namespaces/gpu-examples/pods/{name}", body, media=kind, dryRun="All")
    return status


async def _prepare(made: Stage, seen: Seen) -> None:
    """Put the policy and the quotas in force, and make a pod before that."""
    await _apply(made, LOGS, seen)

    async def made_accounts() -> bool:
        # Pods are refused in a namespace whose ServiceAccount does not exist yet.
        statuses = [await _status(made, namespace, _spec(NOTHING)) for namespace in ("research", "gpu-examples", "logs")]
        return all(status == 201 for status, _ in statuses)

    await until("pods are admitted", made_accounts)
    await _status(made, "gpu-examples", _spec(EVERYTHING), name="earlier")
    for obj in objects(generated(TEAMS)):
        if obj["kind"].startswith("ValidatingAdmissionPolicy") or obj["metadata"]["name"] == "no-system-priority":
            await _apply(made, obj, seen)

    async def in_force() -> bool:
        return (await _status(made, "gpu-examples", _spec(EVERYTHING)))[0] == 403

    await until("the policy is in force", in_force)


async def _try_pods(made: Stage, seen: Seen) -> None:
    for namespace in ("research", "gpu-examples", "kube-system", "logs"):
        for name, spec in {**REFUSED, **ADMITTED}.items():
            seen.pods[namespace, name], _ = await _status(made, namespace, spec)
    await _apply(made, RIGHTS, seen)
    for group in GROUPS:

        async def allowed(group: str = group) -> bool:
            return (await _status(made, "gpu-examples", _spec(NOTHING), group=group))[0] == 201

        await until(f"{group} may create pods", allowed)
        seen.by_group[group], _ = await _status(made, "gpu-examples", REFUSED["name of a node"], group=group)

    async def checked() -> bool:
        policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gpu-pool-notebooks"
        _, _, answer = await _send(made, "GET", policy, {})
        seen.warnings_of_types = answer.get("status", {}).get("typeChecking")
        return seen.warnings_of_types is not None

    await until("the types of the expressions are checked", checked)


async def _try_changes(made: Stage, seen: Seen) -> None:
    seen.changes["label of a pod that tolerates everything"] = await _changed(made, "earlier", {"metadata": {"labels": {"a": "b"}}})
    await _status(made, "gpu-examples", _spec(NOTHING), name="later")
    seen.changes["label"] = await _changed(made, "later", {"metadata": {"labels": {"a": "b"}}})
    seen.changes["toleration"] = await _changed(made, "later", [{"op": "add", "path": "/spec/tolerations/-", "value": EVERYTHING}])
    for name, more in (("debugging", {}), ("debugging with GPUs", _environment({"value": "all"}))):
        debugging = {"spec": {"ephemeralContainers": [_container("d", **more) | {"resources": {}}]}}
        seen.changes[name] = await _changed(made, "later/ephemeralcontainers", debugging)


async def _try_classes(made: Stage, seen: Seen) -> None:
    async def counted() -> bool:
        return "exceeded quota" in (await _status(made, "research", _spec(), priorityClassName="system-node-critical"))[1]

    await until("the quota is in force", counted)
    for name in ("system-node-critical", "system-cluster-critical", "gpu-inference"):
        seen.of_system_class[name] = await _status(made, "research", _spec(), priorityClassName=name)


async def _play() -> Seen:
    seen = Seen()
    async with stage("generated") as made:
        await _apply(made, RUNTIME_CLASS, seen)
        for name in NAMES:
            everything = list(objects(generated(name)))
            for obj in everything:
                if obj["kind"] in FIRST:
                    await _apply(made, obj, seen)
            for obj in everything:
                await _apply(made, obj, seen, dryRun="All")
        for step in (_prepare, _try_pods, _try_changes, _try_classes):
            await step(made, seen)
    return seen


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


def test_every_object_is_taken_strictly_and_without_a_warning(seen: Seen) -> None:
    assert seen.troubles == {}
    assert seen.taken > sum(len(list(objects(generated(name)))) for name in NAMES)


def test_only_the_pools_teams_get_pods_onto_it(seen: Seen) -> None:
    assert description(TEAMS).pool_teams["notebooks"] == ("research",)
    assert {key for key, status in seen.pods.items() if status == 403} == {("gpu-examples", name) for name in REFUSED}
    assert set(seen.pods.values()) == {201, 403}


def test_kubelets_may_name_their_node_in_pods(seen: Seen) -> None:
    assert seen.by_group == {"system:nodes": 201, "people": 403}


def test_the_expressions_fit_the_types_of_pods(seen: Seen) -> None:
    assert seen.warnings_of_types == {}


def test_changes_add_no_way_onto_the_pool(seen: Seen) -> None:
    assert seen.changes == {
        # Finalizers of a pod that was there before the policy can be removed.
        "label of a pod that tolerates everything": 200,
        "label": 200,
        "toleration": 403,
        "debugging": 200,
        "debugging with GPUs": 403,
    }


def test_teams_have_no_priority_of_the_system(seen: Seen) -> None:
    assert {name: status for name, (status, _) in seen.of_system_class.items()} == {
        "system-node-critical": 403,
        "system-cluster-critical": 403,
        "gpu-inference": 201,
    }
    assert "exceeded quota: no-system-priority" in seen.of_system_class["system-cluster-critical"][1]
