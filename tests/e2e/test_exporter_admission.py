"""The chart's policy for the exporter on a real API server: with a pod's own token it annotates its own node, and does nothing else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import yaml
from tests.charts.rendering import render
from tests.e2e.stage import KINDS, NAMESPACE, Json, Stage, client, stage, until
from tests.e2e.test_admission import BINDINGS, POLICIES

from gpuscaler.exporter.scheduled_events.own_node import OwnNode
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import NODES, PODS, SERVICE_ACCOUNTS
from gpuscaler.model.scheduled_events import LONGEST_VALUE, SCHEDULED_EVENT

pytestmark = pytest.mark.e2e

ACCOUNT, DENIED = "gpuscaler-exporter", "denied request"
MINE, OTHER = "aks-gpu-12345678-vmss000000", "aks-gpu-12345678-vmss000001"
VALUE = '{"kind":"Preempt","id":"e-1","at":"2027-01-15T08:00:30Z","description":""}'
#: Patches that RBAC allows to an account that may patch nodes, and that the policy must refuse.
OTHER_CHANGES: Mapping[str, Json] = {
    "a label": {"metadata": {"labels": {"team": "blue"}}},
    "another annotation": {"metadata": {"annotations": {"example.com/x": "y"}}},
    "another annotation of gpuscaler": {"metadata": {"annotations": {"gpuscaler.io/x": "y"}}},
    "an annotation of others taken away": {"metadata": {"annotations": {"theirs": None}}},
    "an annotation of others beside its own": {"metadata": {"annotations": {SCHEDULED_EVENT: VALUE, "theirs": "z"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/keep"]}},
    "a taint": {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}},
    "a cordon": {"spec": {"unschedulable": True}},
    "the machine": {"spec": {"providerID": "azure:///x"}},
    "a value that is too long": {"metadata": {"annotations": {SCHEDULED_EVENT: "x" * (LONGEST_VALUE + 1)}}},
}


class Seen(msgspec.Struct):
    """The result of each attempt, by its name: empty, or the API server's error."""

    own: list[str]
    changes: dict[str, str]
    elsewhere: str
    unbound: str
    by_admin: str


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


async def _play() -> Seen:
    async with stage("exporter-admission") as made:
        await made.namespace(NAMESPACE)
        await _install(made)
        for name in (MINE, OTHER):
            metadata = {"name": name, "annotations": {"theirs": "x"}}
            await made.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}})
        spec = {"nodeName": MINE, "serviceAccountName": ACCOUNT, "containers": [{"name": "exporter", "image": "none"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "exporter"}, "spec": spec}
        created = msgspec.json.decode(await made.admin.create(PODS, pod, namespace=NAMESPACE))
        reference = {"apiVersion": "v1", "kind": "Pod", "name": "exporter", "uid": created["metadata"]["uid"]}
        async with _account(made, {"boundObjectRef": reference}) as account, _account(made, {}) as unbound:
            await _in_force(account)
            own = [await _error_text(OwnNode(account, MINE).annotate(value)) for value in (VALUE, VALUE, None, None)]
            changes = {name: await _error_text(account.merge_patch(NODES, MINE, patch)) for name, patch in OTHER_CHANGES.items()}
            elsewhere = await _error_text(OwnNode(account, OTHER).annotate(VALUE))
            without_pod = await _error_text(OwnNode(unbound, MINE).annotate(VALUE))
            by_admin = await _error_text(made.admin.merge_patch(NODES, OTHER, OTHER_CHANGES["a label"]))
        return Seen(own, changes, elsewhere, without_pod, by_admin)


async def _install(made: Stage) -> None:
    """Apply the exporter's account, role and policy as the chart renders them."""
    kinds = {**KINDS, POLICIES.kind: POLICIES, BINDINGS.kind: BINDINGS}
    values = {"controller": {"enabled": False}, "exporter": {"enabled": True, "scheduledEvents": {"enabled": True}}}
    for body in render(values, namespace=NAMESPACE).values():
        if body["kind"] in kinds:
            await made.apply(kinds[body["kind"]], body)


@asynccontextmanager
async def _account(made: Stage, bound: Json) -> AsyncIterator[Client]:
    """A client with a token of the exporter's account, bound to its pod or to nothing."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600, **bound}}
    answer = await made.admin.create(SERVICE_ACCOUNTS, request, namespace=NAMESPACE, name=ACCOUNT, subresource="token")
    path = made.folder / f"exporter-{len(bound)}.kubeconfig"
    path.write_text(yaml.safe_dump(made.plane.config(token=msgspec.json.decode(answer)["status"]["token"])))
    async with HttpTransport(from_kubeconfig([path], environ={})) as transport:
        yield client(transport)


async def _in_force(account: Client) -> None:
    """Wait until the role is granted and the policy enforced."""

    async def held() -> bool:
        own = await _error_text(OwnNode(account, MINE).annotate(None))
        return own == "" and DENIED in await _error_text(OwnNode(account, OTHER).annotate(VALUE))

    await until("the policy holds", held, 90)


async def _error_text(call: Awaitable[Any]) -> str:
    try:
        await call
    except ApiError as error:
        return str(error)
    return ""


def test_the_exporter_writes_and_removes_the_annotation_of_the_node_that_its_pod_runs_on(seen: Seen) -> None:
    assert seen.own == ["", "", "", ""]


@pytest.mark.parametrize("what", OTHER_CHANGES)
def test_no_other_change_of_its_node_is_admitted(seen: Seen, what: str) -> None:
    assert DENIED in seen.changes[what]


def test_no_other_node_can_be_annotated_and_none_with_a_token_that_belongs_to_no_pod(seen: Seen) -> None:
    for text in (seen.elsewhere, seen.unbound):
        assert DENIED in text
        assert "only the node that its pod runs on" in text


def test_the_policy_does_not_apply_to_other_users(seen: Seen) -> None:
    assert seen.by_admin == ""
