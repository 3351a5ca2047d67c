"""The generated objects on the embedded API server: it takes all of them, and the pods that follow get machines of the groups from zero."""

import asyncio
import io
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import yaml
from tests.embedded.asking import APPLY, asker, virtual_clock
from tests.generating.corpus import NAMES, description, generated, objects, path_of
from tests.running_cluster import RunningCluster
from tests.virtual_time import VirtualTimeLoop

from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.generating.bundle import files_of, notes_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.kubernetes.workloads.placing import price
from gpuscaler.generating.writing.files import GeneratedFile
from gpuscaler.kube.resources import PODS, WATCHED
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.decoding import Interner, read_items
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State
from gpuscaler.settings import parse_policy

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
#: What kOps and AKS create themselves.
OF_KOPS: Json = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
    "scheduling": {"nodeSelector": {"kops.k8s.io/gpu": "1"}, "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]},
}
OF_AKS: Json = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "managed-csi"},
    "provisioner": "disk.csi.azure.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}
SYSTEM: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}


def of_tool(shape: Description) -> list[Json]:
    return [SYSTEM, *([OF_KOPS] if shape.tool == "kops" else []), *([OF_AKS] if shape.cloud == "azure" else [])]


async def _applied(shape: Description, files: Mapping[str, GeneratedFile]) -> tuple[list[Json], list[Json]]:
    """Apply the files. Returns what the controllers made of them, as the planner watches it, and the pods."""
    world = RunningCluster(EmbeddedCluster(Policy(pools=()), now=virtual_clock, conditions=Conditions()))
    ask = asker(world.cluster.api)
    try:
        for obj in (*of_tool(shape), *objects(files)):
            await ask.ok("PATCH", path_of(obj), obj, media=APPLY, fieldManager="person", fieldValidation="Strict")
        await world.sleep(30)
        seen = []
        for resource in WATCHED:
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            seen += [{**head, **obj} for obj in await world.all(resource)] if not resource.optional else []
        return seen, await world.all(PODS)
    finally:
        await world.close()


@pytest.fixture(scope="module")
def applied() -> dict[str, tuple[list[Json], list[Json]]]:
    """Objects and pods of each description."""

    async def all_of_them() -> dict[str, tuple[list[Json], list[Json]]]:
        return {name: await _applied(description(name), generated(name)) for name in NAMES}

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(all_of_them())


def policy(shape: Description, limits: Mapping[str, Any]) -> Policy:
    """The pools that gpuscaler finds once the groups exist."""

    def pool(group: NodeGroup) -> Json:
        kops = {"kops.k8s.io/gpu": "1"} if shape.tool == "kops" else {}
        spot = ["kubernetes.azure.com/scalesetpriority=spot:NoSchedule"] if (shape.cloud, group.market) == ("azure", "spot") else []
        zone = f"{shape.cluster.region}-{group.zone or 0}" if shape.cloud == "azure" else group.zone
        offering = {"type": group.instance_type.name, "market": group.market, "zone": zone, "price": price(shape, [group])}
        taints = [*map(str, group.taints), *spot]
        return {"name": group.name, "offerings": [offering], "max": group.max, "labels": {**group.labels, **kops}, "taints": taints}

    text = yaml.safe_dump({"region": shape.cluster.region, "pools": [pool(group) for group in shape.groups], "limits": dict(limits)})
    return parse_policy(text)


def planned(shape: Description, files: Mapping[str, GeneratedFile], seen: list[Json], example: str) -> Plan:
    """The plan for a cluster that has only the pods of the example, and no node."""
    limits = yaml.safe_load(files["gpuscaler/values.yaml"].text(explain=False))["config"]["limits"]
    kept = [obj for obj in seen if obj["kind"] != "Pod" or obj["metadata"]["labels"].get("app.kubernetes.io/name") == example]
    whole = {"apiVersion": "v1", "kind": "List", "items": kept}
    read = list(read_items(io.BytesIO(msgspec.json.encode(whole)), Interner(), file=example))
    items = [item for item in read if not isinstance(item, Skipped)]
    assert len(items) == len(read), "the planner understands every object"
    return plan(Cluster.of(items), State(), policy(shape, limits), virtual_clock() + 60)


@pytest.mark.parametrize("name", NAMES)
def test_each_example_gets_machines_of_its_groups_from_zero(applied: Mapping[str, Any], name: str) -> None:
    shape, files = description(name), generated(name)
    seen, pods = applied[name]
    counts = Counter(pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods)
    assert set(counts) == set(shape.workloads), "each example has pods"
    for example, count in counts.items():
        # An autoscaler sets the number of replicas later; without a file's number there is one.
        made = planned(shape, files, seen, example)
        assert not made.unplaced, (example, made.unplaced)
        assert sum(len(machine.pods) for machine in made.machines) == count, (example, made)
        assert all(machine.pool in {group.name for group in shape.groups} for machine in made.machines)


@pytest.mark.parametrize("name", NAMES)
def test_each_example_alone_fits_the_quota_of_its_namespace(applied: Mapping[str, Any], name: str) -> None:
    files = list(objects(generated(name)))
    hard = [(obj["metadata"]["namespace"], obj["spec"]["hard"]) for obj in files if obj["kind"] == "ResourceQuota"]
    quotas = {namespace: int(of[f"requests.{GPU}"]) for namespace, of in hard if f"requests.{GPU}" in of}
    most = {obj["metadata"]["namespace"]: obj["spec"]["maxReplicas"] for obj in files if obj["kind"] == "HorizontalPodAutoscaler"}
    used = Counter[tuple[str, str]]()
    for pod in applied[name][1]:
        example, namespace = pod["metadata"]["labels"]["app.kubernetes.io/name"], pod["metadata"]["namespace"]
        used[example, namespace] += int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])
    used |= Counter({("inference", namespace): replicas for namespace, replicas in most.items()})
    assert {key: gpus for key, gpus in used.items() if gpus > quotas.get(key[1], math.inf)} == {}


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_admitted_by_the_restricted_standard_and_have_pinned_images(applied: Mapping[str, Any], name: str) -> None:
    for pod in applied[name][1]:
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert not spec["automountServiceAccountToken"]
        assert "@sha256:" in container["image"] or container["image"].rpartition(":")[2] not in {container["image"], "latest"}


@pytest.mark.parametrize("example", ["training", "gang"])
def test_programs_are_python_and_fit_their_volumes(example: str) -> None:
    config_map, *_, job = yaml.safe_load_all(generated("s1-eksctl")[f"workloads/{example}.yaml"].text(explain=True))
    (name,) = config_map["data"]
    compile(config_map["data"][name], name, "exec")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert f"/program/{name}" in " ".join(container["command"])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]}


SMALLEST = """
cloud: aws
cluster: {name: research, region: us-east-1}
gpu_pools:
- {name: small, types: [g5.xlarge], markets: [on-demand], zones: [us-east-1a]}
- {name: big, types: [g5.48xlarge], markets: [on-demand], zones: [us-east-1a], teams: [vision]}
teams:
- {name: vision, gpus: GPUS}
- {name: language, gpus: 0}
controller: {gpus: LIMIT}
"""


@pytest.mark.parametrize(
    ("gpus", "limit", "expected"),
    [
        # Large examples on the large machines of the team, as far as its quota goes; the gang's machines would be beyond the limit. Each
        # example is tried alone, so that none has to leave room for another.
        ("8", "8", dict.fromkeys(("training", "gang", "notebook", "inference"), "vision")),
        ("32", "64", {"training": "vision", "gang": "vision", "notebook": "vision", "inference": "vision"}),
        # No pod of the team: its quota is 0. Nothing is left out, since the small pool is for everyone.
        ("0", "64", dict.fromkeys(("training", "gang", "notebook", "inference"), "gpu-examples")),
        # No machine is within the limit.
        ("8", "0", {}),
        # A gang needs two machines.
        ("8", "1", {"training": "vision", "notebook": "vision"}),
    ],
)
def test_examples_keep_to_quotas_limits_and_pools_of_teams(gpus: str, limit: str, expected: Mapping[str, str]) -> None:
    shape = read_description(SMALLEST.replace("GPUS", gpus).replace("LIMIT", limit))
    files = {file.path: file for file in files_of(shape)}
    found, tolerated = {}, dict[str, set[str]]()
    for obj in objects(files):
        for toleration in obj.get("spec", {}).get("template", {}).get("spec", {}).get("tolerations", ()):
            tolerated.setdefault(obj["metadata"]["namespace"], set()).add(toleration["key"])
    assert "gpu-pool" not in tolerated.get("gpu-examples", ()), "the pool of the team is for its namespace only"
    for path, file in files.items():
        if path.startswith("workloads/"):
            found[path.removeprefix("workloads/").removesuffix(".yaml")] = {
                obj["metadata"]["namespace"] for obj in yaml.safe_load_all(file.text(explain=False))
            }
    assert found == {name: {namespace} for name, namespace in expected.items()}


@pytest.mark.parametrize(
    ("types", "cloud", "region"), [("g5g.xlarge", "aws", "us-east-1"), ("Standard_ND96isr_MI300X_v5", "azure", "eastus")]
)
def test_no_example_where_its_image_does_not_run(types: str, cloud: str, region: str) -> None:
    text = (
        f"cloud: {cloud}\ncluster: {{name: a, region: {region}}}\nteams: [{{name: t, gpus: 8}}]\ngpu_pools: [{{name: a, types: [{types}]}}]"
    )
    shape = read_description(text)
    files = {file.path: file for file in files_of(shape)}
    assert not [path for path in files if path.startswith("workloads/")]
    assert "The example training is left out" in files["README.md"].text(explain=False)
    (quota,) = (obj for obj in objects(files) if obj["kind"] == "ResourceQuota" and obj["metadata"]["name"] == "gpus")
    maker = "nvidia" if cloud == "aws" else "amd"
    assert quota["spec"]["hard"] == {f"requests.{maker}.com/gpu": "8"}
    assert len([obj for obj in objects(files) if obj["kind"] == "DaemonSet"]) == (maker == "nvidia")


def test_only_pods_of_the_pools_teams_tolerate_its_taint() -> None:
    files = generated("s4-terraform")
    for obj in objects(files):
        template = obj.get("spec", {}).get("template")
        if template is not None and obj["kind"] != "DaemonSet":
            taints = {toleration["key"] for toleration in template["spec"].get("tolerations", ())}
            assert obj["metadata"]["namespace"] == "research" or "gpu-pool" not in taints, obj
    (plugin,) = (obj for obj in objects(files) if obj["kind"] == "DaemonSet")
    assert {item["key"] for item in plugin["spec"]["template"]["spec"]["tolerations"]} == {GPU, "gpu-pool", "gpuscaler.io/arriving"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"controller": {"dollars_per_hour": 20}},
            "Pool big: controller.dollars_per_hour is 20, and it needs 2 machines, for about 33 dol",
        ),
        ({}, "Pool big: the quota of team vision is 8 GPUs, and it asks for 16."),
        ({"controller": {"gpus": 8}}, "Pool big: controller.gpus is 8, and it needs 2 machines with 16 GPUs together."),
        ({"gpu_pools": [{"max": 1}]}, "Pool big: max of a group is 1, and it needs 2 machines."),
        ({"gpu_pools": [{"types": ["g5g.xlarge"]}]}, "No pool has GPUs of NVIDIA in machines with x86 processors."),
    ],
)
def test_what_leaves_a_gang_out_is_named(changed: Mapping[str, Any], said: str) -> None:
    text = yaml.safe_load(SMALLEST.replace("GPUS", "8").replace("LIMIT", "64"))
    pools = [{**text["gpu_pools"][1], **pool} for pool in changed.get("gpu_pools", [{}])]
    shape = read_description(yaml.safe_dump({**text, **changed, "gpu_pools": pools, "workloads": ["gang"]}))
    (note,) = (note for note in notes_of(shape) if "left out" in note)
    assert note.startswith(f"The example gang is left out. {said}")
