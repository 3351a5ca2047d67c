"""What-if changes: ``gpuscaler plan`` with more pods, fewer pools, other prices."""

import gzip
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.test_plan import Desktop, machines, node, pod

POOLS = """
region: us-east-1
pools:
  - name: gpu
    offerings:
      - {type: g.8, market: on-demand, zone: z1, price: 8.0, resources: {cpu: 64, memory: 512Gi, nvidia.com/gpu: 8, pods: 110}}
      - {type: g.1, market: on-demand, zone: z1, price: 1.5, resources: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1, pods: 110}}
      - {type: g.1, market: spot, zone: z1, price: 1.2, resources: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1, pods: 110}}
  - name: other
    offerings:
      - {type: h.1, market: reserved, zone: z1, price: 0, resources: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1, pods: 110}}
"""


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    workload = Desktop(tmp_path)
    workload.pools = workload.write("pools.yaml", POOLS)
    return workload


def template(gpus: int) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": "a"}}, "spec": pod("x", gpus)["spec"]}


def test_no_machine_is_planned_in_an_excluded_pool(desktop: Desktop) -> None:
    file = desktop.objects(pod("a"))

    assert machines(desktop.plan(file)) == ["h.1"]
    assert machines(desktop.plan(file, more=("--without-pool", "other"))) == ["g.1"]


def test_a_run_file_can_be_used_as_a_pools_file(desktop: Desktop) -> None:
    desktop.pools = desktop.write("run.yaml", f"{POOLS}cloud: simulated\nlog: {{level: debug}}\n")

    assert machines(desktop.plan(desktop.objects(pod("a")))) == ["h.1"]


def test_prices_of_a_type_or_of_one_of_its_markets_can_be_changed(desktop: Desktop) -> None:
    file, without = desktop.objects(pod("a")), ("--without-pool", "other")

    assert [machine["market"] for machine in desktop.plan(file, more=without)["machines"]] == ["spot"]
    dearer = desktop.plan(file, more=(*without, "--price", "g.1/spot=2"))
    assert [(machine["market"], machine["price_per_hour"]) for machine in dearer["machines"]] == [("on-demand", 1.5)]
    assert machines(desktop.plan(file, more=(*without, "--price", "g.1=20"))) == ["g.8"]


@pytest.mark.parametrize("form", ["text", "ConfigMap"])
def test_priorities_of_a_file_apply_to_plans_from_files(desktop: Desktop, form: str) -> None:
    file, text = desktop.objects(pod("a")), "{50: [gpu], 10: [other]}"
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"priorities": text}}
    changed_file = desktop.write("cm.yaml", text) if form == "text" else desktop.objects(manifest, name="cm.yaml")
    done = desktop.run("--cluster", file, "--pools", desktop.pools, "--priorities", changed_file)

    assert machines(desktop.plan(file)) == ["h.1"]
    assert machines(desktop.plan(file, more=("--priorities", changed_file))) == ["g.1"]
    assert f"note: {changed_file}: pool gpu (priority 50) comes before pool other (priority 10), which is cheaper" in done.stderr
    assert "the priorities of pools cost $1.20 per hour in this plan" in done.stderr


@pytest.mark.parametrize(("text", "message"), [("{50: [gpu", ":2: not YAML"), ("- a", ":1: saw a list, expected a mapping")])
def test_plan_fails_on_unparsable_priorities(desktop: Desktop, text: str, message: str) -> None:
    file = desktop.write("cm.yaml", text)
    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, "--priorities", file)

    assert (done.exit_code, f"{file}{message}" in done.stderr) == (2, True)
    absent = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, "--priorities", file + "x")
    assert (absent.exit_code, "cannot be read" in absent.stderr) == (2, True)


def test_priorities_that_match_no_pool_are_reported_and_change_nothing(desktop: Desktop) -> None:
    file = desktop.write("cm.yaml", "{50: [nothing]}")
    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, "--priorities", file)

    assert f"note: {file}: saw no pattern that matches a pool (gpu, other), expected one" in done.stderr


@pytest.mark.parametrize("kind", ["Deployment", "Job", "StatefulSet"])
def test_a_manifest_in_place_of_a_cluster_dump_gives_a_hint_to_use_add_pods(desktop: Desktop, kind: str) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template(1)}
    file = desktop.objects({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "train"}, "spec": spec}, name="train.yaml")
    hint = f"note: {file}: saw {kind} train and no pods, expected pods, because plans are made for pods; --add-pods {file} creates them\n"

    assert hint in desktop.run("--cluster", file, "--pools", desktop.pools).stderr
    assert hint in desktop.run("--cluster", desktop.objects(node("n1")), "--cluster", file, "--pools", desktop.pools).stderr
    assert (
        "note:" not in desktop.run("--cluster", desktop.objects(node("n1"), pod("a")), "--cluster", file, "--pools", desktop.pools).stderr
    )


def test_plan_reports_a_file_without_objects_to_plan_for(desktop: Desktop) -> None:
    file = desktop.objects({"apiVersion": "eksctl.io/v1alpha5", "kind": "ClusterConfig", "metadata": {"name": "gaia"}})
    done = desktop.run("--cluster", file, "--pools", desktop.pools)

    assert f"note: {file}: saw ClusterConfig gaia, expected nodes and pods, as kubectl get nodes,pods" in done.stderr
    assert done.exit_code == 0
    assert "note:" not in desktop.run("--cluster", desktop.objects(node("n1"), name="nodes.yaml"), "--pools", desktop.pools).stderr


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (POOLS.encode(), "document 0 (line 1): kind: saw nothing"),
        (f"cloud: simulated\n{POOLS}".encode(), "document 0 (line 1): kind: saw nothing"),
        (b"job_id,submit_s\ntrain-1,0\n", "document 0 (line 1): saw text"),
        (b'{"pools": []}', "object 0: kind: saw nothing"),
        (b"[1, 2]", "[0]: object: saw 1"),
        (b"a: 1\na: 2\n", "document 0 (line 1): saw the key 'a' twice (line 2 of the document)"),
    ],
    ids=["a pools file", "a run file", "a trace of jobs", "JSON", "numbers", "not readable"],
)
def test_a_cluster_file_without_kubernetes_objects_exits_2_before_any_plan(desktop: Desktop, content: bytes, seen: str) -> None:
    file = desktop.write("cluster.file", content)
    real = desktop.objects(node("n1"), pod("a"))
    expected = "expected nodes and pods, as kubectl get nodes,pods --all-namespaces -o yaml prints them; a pools file"

    for cluster in (("--cluster", file), ("--cluster", real, "--cluster", file)):
        done = desktop.run(*cluster, "--pools", desktop.pools)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"{file}: saw no Kubernetes object ({seen}), {expected} or run file belongs to --pools" in done.stderr
    done = desktop.run("--cluster", "-", "--pools", desktop.pools, stdin=content)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"standard input: saw no Kubernetes object ({seen}), " in done.stderr


@pytest.mark.parametrize("content", [b"# nothing\n", b"null\n", b"---\n---\n"])
def test_a_cluster_file_of_empty_documents_exits_2_as_an_empty_file_does(desktop: Desktop, content: bytes) -> None:
    file = desktop.write("cluster.yaml", content)
    done = desktop.run("--cluster", file, "--pools", desktop.pools)

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{file}: saw no object, expected Kubernetes objects; for an empty cluster kubectl prints a List without items" in done.stderr


def test_a_cluster_file_with_one_object_is_planned_for_although_another_is_none(desktop: Desktop) -> None:
    done = desktop.run("--cluster", desktop.objects({"a": 1}, pod("a")), "--pools", desktop.pools)

    assert done.exit_code == 0
    assert "document 0 (line 1): kind: saw nothing, expected the kind of the object" in done.stdout


@pytest.mark.parametrize(
    "content",
    [b"[]", gzip.compress(b"apiVersion: v1\nkind: List\nitems: []\n", mtime=0), b"kind: List\napiVersion: v1\nitems: []\n"],
    ids=["JSON", "gzip", "YAML"],
)
def test_an_empty_cluster_dump_gives_no_hint(desktop: Desktop, content: bytes) -> None:
    done = desktop.run("--cluster", desktop.write("cluster.yaml", content), "--pools", desktop.pools)

    assert (done.exit_code, "Nothing to buy." in done.stdout, "note:" in done.stderr) == (0, True, False)


def test_added_pods_are_pending_in_addition_to_existing_ones(desktop: Desktop) -> None:
    running = {**pod("b", 8, nodeName="n1"), "status": {"phase": "Running"}}
    file = desktop.objects(node("n1"), {**pod("a", 8, nodeName="n1"), "status": {"phase": "Running"}})

    assert machines(desktop.plan(file)) == []
    assert machines(desktop.plan(file, more=("--add-pods", desktop.objects(running, name="more.yaml")))) == ["g.8"]


@pytest.mark.parametrize(
    ("kind", "count"), [("Job", {"parallelism": 3}), ("Deployment", {"replicas": 3}), ("StatefulSet", {"replicas": 3})]
)
def test_adding_a_workload_adds_the_pods_that_it_creates(desktop: Desktop, kind: str, count: dict[str, int]) -> None:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {"selector": {"matchLabels": {"app": "a"}}}
    workload = {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": {**count, **selector, "template": template(8)}}

    plan = desktop.plan(desktop.objects(node("n1", 0)), more=("--add-pods", desktop.objects(workload, name="more.yaml")))

    assert machines(plan) == ["g.8"] * 3
    assert sorted(name for machine in plan["machines"] for name in machine["pods"]) == ["default/w-0", "default/w-1", "default/w-2"]


def test_add_pods_reads_the_objects_of_a_json_list(desktop: Desktop) -> None:
    items = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [pod("a", 8), pod("b", 8)]}, default_flow_style=True)

    plan = desktop.plan(desktop.objects(node("n1", 0)), more=("--add-pods", desktop.write("more.json", items)))

    assert machines(plan) == ["g.8", "g.8"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--without-pool", "gqu"), "saw 'gqu', expected a pool of the file: did you mean gpu?"),
        (("--without-pool", "gpu", "--without-pool", "other"), "expected at least one that remains"),
        (("--price", "g.1"), "expected TYPE=USD such as"),
        (("--price", "g.1=-1"), "expected TYPE=USD such as"),
        (("--price", "g.1=inf"), "expected TYPE=USD such as"),
        (("--price", "g.2=1"), "saw 'g.2', expected an instance type of the file: did you mean g."),
        (("--price", "h.1=1"), "saw 'h.1', expected an instance type of the file"),
        (("--price", "g.8/spot=1"), "expected an instance type of the file"),
        (("--context", "x"), "saw --cluster together with --kubeconfig or --context"),
    ],
)
def test_an_impossible_change_exits_2_and_lists_the_possible_ones(desktop: Desktop, arguments: tuple[str, ...], says: str) -> None:
    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, *arguments)

    assert done.exit_code == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (yaml.safe_dump(pod("a")), "Pod default/a: a pod with that name already exists in the cluster"),
        (yaml.safe_dump_all([pod("b"), pod("b")]), "Pod default/b: a pod with that name already exists in the files"),
        ("a: [", "saw neither YAML nor JSON"),
        ("- 1", "saw an object without kind and metadata"),
        ("kind: Job\nmetadata: {name: j}\nspec: {parallelism: 2}", "Job default/j: saw no template or no usable count"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: c}\nspec: {containers: 5}", "more.yaml: Pod default/c: "),
    ],
)
def test_an_unusable_file_of_pods_exits_2_and_names_the_object(desktop: Desktop, content: str, says: str) -> None:
    more = desktop.write("more.yaml", content)

    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, "--add-pods", more)

    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_a_missing_file_of_pods_exits_2(desktop: Desktop) -> None:
    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, "--add-pods", "nowhere.yaml")

    assert (done.exit_code, done.stderr) == (
        2,
        "nowhere.yaml: saw No such file or directory, expected a readable file with Kubernetes objects\n",
    )
