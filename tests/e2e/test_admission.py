"""The chart's ValidatingAdmissionPolicies on a real API server: the controller's account can write what it needs, and nothing else."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import yaml
from tests.e2e.objects import deployment, pod, pod_spec
from tests.e2e.stage import CLOUD, NAMESPACE, ROLES, Json, Stage, client, stage, until

from gpuscaler.control.loop.cluster_writes import ClusterWriter
from gpuscaler.embedded.nodes.providers import naming_in
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Forbidden
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import CONFIG_MAPS, DAEMON_SETS, LEASES, NODES, PODS, Resource
from gpuscaler.lifecycle.actions import Act, Checkpoint, Close, Discourage, Exclude, Label, Lift, Mark, Nominate, OpenWindow, Unmark
from gpuscaler.lifecycle.node_marks.soft_taints import SOFT_TAINTS

pytestmark = pytest.mark.e2e

_GROUP = "admissionregistration.k8s.io"
POLICIES = Resource(_GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
BINDINGS = Resource(_GROUP, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False)
WORK, POOL = "work", "gpu"
#: The text of a policy's refusal, and the prefix of node names of the simulated cloud.
DENIED, PLAYED = "denied request", naming_in(NAMESPACE).prefix
THEIRS = {"key": "team", "value": "red", "effect": "NoSchedule"}
EXCLUDE = "node.kubernetes.io/exclude-from-external-load-balancers"
#: Patches that RBAC allows to an account that may patch nodes and the status of pods, and that the policies must refuse.
ON_NODES: dict[str, Json] = {
    "a label of others": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "a label of others taken away": {"metadata": {"labels": {"team": None}}},
    "a label of others changed": {"metadata": {"labels": {"team": "blue"}}},
    "the exclusion of others": {"metadata": {"labels": {EXCLUDE: "true"}}},
    "an annotation": {"metadata": {"annotations": {"gpuscaler.io/x": "y"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/keep"]}},
    "unschedulable": {"spec": {"unschedulable": True}},
    "the machine": {"spec": {"providerID": "aws:///us-east-1a/i-0"}},
    "all taints away": {"spec": {"taints": None}},
    "a taint of others": {"spec": {"taints": [THEIRS, {"key": "x", "effect": "NoSchedule"}]}},
    "a taint that evicts": {"spec": {"taints": [THEIRS, {"key": "gpuscaler.io/leaving", "effect": "NoExecute"}]}},
}
#: Patches of a node that a person has cordoned.
ON_CORDONED: dict[str, Json] = {
    "a cordon taken off": {"spec": {"unschedulable": None}},
    "a cordon made ours": {"spec": {"taints": [THEIRS, {"key": "gpuscaler.io/arriving", "effect": "PreferNoSchedule"}]}},
}
ON_PODS: dict[str, Json] = {
    "an address": {"status": {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]}},
    "a phase": {"status": {"phase": "Failed"}},
    "a condition": {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    "a label": {"metadata": {"labels": {"app": "other"}}},
    "an annotation of others": {"metadata": {"annotations": {"example.com/x": "y"}}},
    "an annotation for us": {"metadata": {"annotations": {"gpuscaler.io/gang": "other"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/keep"]}},
}


class Seen(msgspec.Struct):
    """The result of each attempt, by its name: empty, or the API server's error."""

    acts: list[str]
    nodes: dict[str, str]
    pods: dict[str, str]
    others: dict[str, str]
    others_admitted: dict[str, str]
    by_admin: str
    log: str


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(_play())


async def _play() -> Seen:
    async with stage("admission") as made, made.kubelets(lambda node: not naming_in(NAMESPACE).is_ours(node.provider_id)):
        await made.install()
        for resource, body in _policies():
            await made.apply(resource, body)
        await made.namespace(WORK)
        await made.admin.create(NODES, _node("theirs"))
        await made.create(pod("waits", "nowhere"), WORK)
        async with _account(made) as account:
            await _in_force(account)
            log = await _scales(made)
            acts = await _acts(made, account)
            nodes = {name: await _error_text(account.merge_patch(NODES, "theirs", patch)) for name, patch in ON_NODES.items()}
            pods = {
                name: await _error_text(account.merge_patch(PODS, "waits", patch, namespace=WORK, subresource="status"))
                for name, patch in ON_PODS.items()
            }
            others = {name: await _error_text(act()) for name, act in _elsewhere(account).items()}
            admitted = {name: await _error_text(act()) for name, act in _own_writes(account).items()}
            by_admin = await _error_text(made.admin.merge_patch(NODES, "theirs", ON_NODES["unschedulable"]))
            nodes |= {name: await _error_text(account.merge_patch(NODES, "theirs", patch)) for name, patch in ON_CORDONED.items()}
        return Seen(acts, nodes, pods, others, admitted, by_admin, log)


async def _in_force(account: Client) -> None:
    """Wait until the API server enforces each policy. Each probe makes a new change, because earlier ones may have been admitted."""
    tried = itertools.count()

    async def held() -> bool:
        name = f"probe-{next(tried)}"
        probes = [
            account.merge_patch(NODES, "theirs", {"metadata": {"annotations": {name: "x"}}}),
            account.merge_patch(PODS, "waits", {"metadata": {"annotations": {name: "x"}}}, namespace=WORK, subresource="status"),
            account.create(NODES, _node(name)),
            account.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace=NAMESPACE),
            account.create(LEASES, {"metadata": {"name": name}}, namespace=NAMESPACE),
        ]
        return all([await _refused(probe) for probe in probes])

    await until("the policies hold", held, 90)


def _policies() -> Iterator[tuple[Resource, Json]]:
    by_kind = {resource.kind: resource for resource in (POLICIES, BINDINGS)}
    for obj in yaml.safe_load_all(ROLES.read_text(encoding="utf-8")):
        if obj and obj["kind"] in by_kind:
            yield by_kind[obj["kind"]], obj


def _node(name: str) -> Json:
    metadata = {"name": name, "labels": {"team": "red"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [THEIRS]}}


@asynccontextmanager
async def _account(made: Stage) -> AsyncIterator[Client]:
    """A client with the controller's account."""
    async with HttpTransport(from_kubeconfig([await made.kubeconfig()], environ={})) as transport:
        yield client(transport)


async def _error_text(call: Awaitable[Any]) -> str:
    try:
        await call
    except ApiError as error:
        return str(error)
    return ""


async def _refused(call: Awaitable[Any]) -> bool:
    try:
        await call
    except Forbidden as error:
        return DENIED in str(error)
    return False


async def _scales(made: Stage) -> str:
    """Run a controller that buys a machine for a pod, simulates its node and removes the machine; returns its log."""
    pools: list[Json] = [{"name": POOL, "types": ["g4dn.xlarge"]}]
    controller = made.start(made.run_file("run", pools, cloud={**CLOUD, "kubelet": True}), await made.kubeconfig())
    await made.create(deployment("serve", 1, pod_spec(POOL)), WORK)
    await made.bound(WORK, 1)
    await made.scale("Deployment", "serve", WORK, 0)
    await made.empty(POOL)
    assert await controller.end() == 0
    return controller.log.read_text()


async def _acts(made: Stage, account: Client) -> list[str]:
    """Try each kind of write to a node or pod by itself; returns the errors."""
    waiting = await made.find(PODS, "waits", WORK)
    assert waiting is not None
    name, uid = f"{WORK}/waits", waiting["metadata"]["uid"]
    soft = tuple(sorted(taint.key for taint in SOFT_TAINTS))
    acts: list[Act] = [
        Close("theirs", "arrives"),
        OpenWindow("theirs", "lacks a DaemonSet"),
        Close("theirs", "kept", kept=True),
        OpenWindow("theirs", "lacks a DaemonSet", kept=True),
        Lift("theirs", "opens"),
        Nominate(name, uid, "theirs"),
        Nominate(name, uid, ""),
        Checkpoint(name, uid, "theirs", at=1.0, seconds=60),
        Label("theirs", POOL, "listed"),
        Discourage("theirs", soft, "idle"),
        Discourage("theirs", (), "used"),
        Mark("theirs", "idle"),
        Exclude("theirs", "idle"),
        Unmark("theirs", "stays"),
    ]
    outcomes = [await ClusterWriter(account).carry_out([act]) for act in acts]
    return [f"{act}: {outcome.detail}" for act, (outcome,) in zip(acts, outcomes, strict=True) if outcome.detail]


def _elsewhere(account: Client) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Writes that RBAC allows to an account with the simulated cloud, because RBAC cannot restrict the names of created objects."""

    def plugin(**spec: Any) -> Json:
        container = {"name": "c", "image": "i", **spec.pop("container", {})}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container], **spec}}
        return {"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}

    def daemon(**spec: Any) -> Callable[[], Awaitable[Any]]:
        return lambda: account.create(DAEMON_SETS, plugin(**spec), namespace="kube-system")

    return {
        "a node": lambda: account.create(NODES, _node("another")),
        "the status of a node": lambda: account.merge_patch(
            NODES, "theirs", {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, subresource="status"
        ),
        "a ConfigMap": lambda: account.create(CONFIG_MAPS, {"metadata": {"name": "other"}}, namespace=NAMESPACE),
        "a Lease": lambda: account.create(LEASES, {"metadata": {"name": "other"}}, namespace=NAMESPACE),
        "a kubelet's Lease": lambda: account.create(LEASES, {"metadata": {"name": "theirs"}}, namespace="kube-node-lease"),
        "a DaemonSet with a folder of its host": daemon(volumes=[{"name": "root", "hostPath": {"path": "/"}}]),
        "a DaemonSet with an account": daemon(serviceAccountName="namespace-controller"),
        "a DaemonSet in the host's network": daemon(hostNetwork=True),
        "a DaemonSet with privileges": daemon(container={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
    }


def _own_writes(account: Client) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "a node of its own": lambda: account.create(NODES, _node(f"{PLAYED}x")),
        "the Lease of a kubelet of its own": lambda: account.create(
            LEASES, {"metadata": {"name": f"{PLAYED}y"}}, namespace="kube-node-lease"
        ),
    }


def test_no_request_of_a_controller_that_scales_up_and_down_is_refused(seen: Seen) -> None:
    assert DENIED not in seen.log
    assert "is forbidden" not in seen.log
    assert '"kind": "opened"' in seen.log


def test_every_write_to_nodes_and_pods_that_the_controller_makes_is_admitted(seen: Seen) -> None:
    assert seen.acts == []
    assert seen.others_admitted == dict.fromkeys(seen.others_admitted, "")


@pytest.mark.parametrize("what", [*ON_NODES, *ON_CORDONED])
def test_no_other_change_of_a_node_is_admitted(seen: Seen, what: str) -> None:
    assert DENIED in seen.nodes[what]
    assert any(
        words in seen.nodes[what] for words in ("only gpuscaler's taints", "gpuscaler.io/…", "may cordon or uncordon", "a user's cordon")
    )


@pytest.mark.parametrize("what", ON_PODS)
def test_no_other_change_of_a_pod_is_admitted(seen: Seen, what: str) -> None:
    assert DENIED in seen.pods[what]
    assert "may change only" in seen.pods[what]


def test_writes_to_other_objects_are_refused_though_rbac_allows_any_name(seen: Seen) -> None:
    assert {name: DENIED in message for name, message in seen.others.items()} == dict.fromkeys(seen.others, True), seen.others


def test_the_policies_do_not_apply_to_other_users(seen: Seen) -> None:
    assert seen.by_admin == ""
