"""What ``gpuscaler generate cluster`` writes, on a real API server: it takes every object strictly, and keeps pools of teams for them."""

import asyncio
from collections.abc import Iterator, Mapping
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
POOL = {"key": "gpu-pool", "operator": "Equal", "value": "notebooks", "effect": "NoSchedule"}
OTHER_POOL = {**POOL, "value": "others"}
ANY_VALUE = {"key": "gpu-pool", "operator": "Exists"}
EVERYTHING = {"operator": "Exists"}


@dataclass
class Seen:
    """Refusals and warnings by object, and the status of pods by namespace, toleration and GPUs."""

    troubles: dict[str, str] = field(default_factory=dict)
    taken: int = 0
    pods: dict[tuple[str, str, int], int] = field(default_factory=dict)


async def _send(made: Stage, method: str, path: str, body: Json, **query: str) -> tuple[int, str, Json]:
    """Send ``body``. Returns status, the API server's warnings and its answer."""
    media = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
    asked = Request(method, path, query, {"content-type": media}, msgspec.json.encode(body), 60.0)
    async with made.admin.transport.exchange(asked) as answer:
        content = b"".join([piece async for piece in answer.pieces])
    return answer.status, str(answer.headers.get("warning", "")), msgspec.json.decode(content)


async def _apply(made: Stage, obj: Json, seen: Seen, **more: str) -> None:
    query = {"fieldManager": "person", "fieldValidation": "Strict", "force": "true", **more}
    status, warning, answer = await _send(made, "PATCH", path_of(obj), obj, **query)
    if status not in {200, 201} or warning:
        seen.troubles[path_of(obj)] = f"{status} {warning} {answer.get('message', '')}"
    seen.taken += status in {200, 201}


def _pods() -> Iterator[tuple[str, str, Mapping[str, str], int]]:
    for namespace in ("research", "gpu-examples", "kube-system"):
        for name, toleration in (("pool", POOL), ("other", OTHER_POOL), ("any", ANY_VALUE), ("everything", EVERYTHING)):
            for gpus in (0, 1):
                yield namespace, name, toleration, gpus


async def _status(made: Stage, namespace: str, toleration: Mapping[str, str], gpus: int) -> int:
    limits = {GPU: str(gpus)} if gpus else {}
    container = {
        "name": "c",
        "image": "train:1",
        "resources": {"limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "tolerations": [dict(toleration)], "securityContext": security}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {**spec, "automountServiceAccountToken": False}}
    status, _, _ = await _send(made, "POST", f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    return status


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
        for obj in objects(generated(TEAMS)):
            if obj["kind"].startswith("ValidatingAdmissionPolicy"):
                await _apply(made, obj, seen)

        async def made_accounts() -> bool:
            # Pods are refused in a namespace whose ServiceAccount does not exist yet.
            return all([await _status(made, namespace, OTHER_POOL, 0) == 201 for namespace in ("research", "gpu-examples")])

        await until("pods are admitted", made_accounts)

        async def in_force() -> bool:
            return await _status(made, "gpu-examples", POOL, 1) == 403

        await until("the policy is in force", in_force)
        for namespace, name, toleration, gpus in _pods():
            seen.pods[namespace, name, gpus] = await _status(made, namespace, toleration, gpus)
    return seen


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


def test_every_object_is_taken_strictly_and_without_a_warning(seen: Seen) -> None:
    assert seen.troubles == {}
    assert seen.taken > sum(len(list(objects(generated(name)))) for name in NAMES)


def test_only_the_pools_teams_get_pods_with_gpus_onto_it(seen: Seen) -> None:
    assert description(TEAMS).pool_teams["notebooks"] == ("research",)
    refused = {key for key, status in seen.pods.items() if status == 403}
    assert refused == {
        ("gpu-examples", "pool", 0),
        ("gpu-examples", "pool", 1),
        ("gpu-examples", "any", 0),
        ("gpu-examples", "any", 1),
        # A DaemonSet that tolerates everything and requests no GPU is admitted.
        ("gpu-examples", "everything", 1),
    }
    assert set(seen.pods.values()) == {201, 403}
