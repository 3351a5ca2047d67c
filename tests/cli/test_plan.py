"""``gpuscaler plan`` on files: output and exit status."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click.shell_completion
import click.testing
import pytest
import yaml
from tests import objects

from gpuscaler.cli import main

POOLS = """
region: us-east-1
pools:
  - name: gpu
    offerings:
      - {type: g.8, market: on-demand, zone: z1, price: 8.0, resources: {cpu: 64, memory: 512Gi, nvidia.com/gpu: 8, pods: 110}}
      - {type: g.1, market: on-demand, zone: z1, price: 1.5, resources: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1, pods: 110}}
"""
NOW = ("--now", "2026-11-21T12:00:00Z")


def pod(name: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "default", "uid": f"uid-{name}", "creationTimestamp": "2026-11-21T11:00:00Z"}
    return objects.pod(name, gpus, metadata=metadata, status={"phase": "Pending"}, schedulerName="default-scheduler", **spec)


def node(name: str, gpus: int = 8, **labels: str) -> dict[str, Any]:
    metadata = {"uid": name, "creationTimestamp": "2026-11-20T11:00:00Z"}
    return objects.node(name, gpus, labels={"gpuscaler.io/pool": "gpu", **labels}, metadata=metadata, cpu="64", memory="512Gi")


class Desktop:
    """A folder with a pools file, in which commands run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pools = self.write("pools.yaml", POOLS)

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def objects(self, *items: dict[str, Any], name: str = "cluster.yaml") -> str:
        return self.write(name, yaml.safe_dump_all(items))

    def run(self, *arguments: str, stdin: bytes = b"") -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, ["plan", *arguments], input=stdin)

    def plan(self, *files: str, stdin: bytes = b"", more: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the printed JSON plan for cluster files."""
        named = [word for file in files for word in ("--cluster", file)]
        done = self.run(*named, "--pools", self.pools, *NOW, "--json", *more, stdin=stdin)
        assert done.exit_code == 0, done.output
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    return Desktop(tmp_path)


def machines(plan: dict[str, Any]) -> list[str]:
    return [machine["instance_type"] for machine in plan["machines"]]


def test_plan_reads_a_stream_of_yaml_documents(desktop: Desktop) -> None:
    assert machines(desktop.plan(desktop.objects(pod("a"), pod("b")))) == ["g.1", "g.1"]


@pytest.mark.parametrize("form", ["list", "PodList", "documents", "one"])
def test_plan_reads_json_in_every_form_that_kubectl_prints(desktop: Desktop, form: str) -> None:
    item = pod("a")
    bare = {key: value for key, value in item.items() if key not in ("apiVersion", "kind")}
    text = {
        "list": json.dumps({"apiVersion": "v1", "kind": "List", "items": [item]}),
        "PodList": json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [bare]}),
        "documents": json.dumps(item) + "\n" + json.dumps(node("n", 0)),
        "one": json.dumps(item, indent=2),
    }[form]
    assert machines(desktop.plan(desktop.write("cluster.json", text))) == ["g.1"]


def test_plan_reads_a_yaml_list(desktop: Desktop) -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [pod("a"), pod("b")]})
    assert len(machines(desktop.plan(desktop.write("cluster.yaml", text)))) == 2


def test_plan_reads_a_compressed_file(desktop: Desktop) -> None:
    packed = gzip.compress(json.dumps({"kind": "List", "apiVersion": "v1", "items": [pod("a")]}).encode())
    assert machines(desktop.plan(desktop.write("cluster.json.gz", packed))) == ["g.1"]


def test_plan_reads_standard_input_for_a_dash(desktop: Desktop) -> None:
    assert machines(desktop.plan("-", stdin=json.dumps(pod("a")).encode())) == ["g.1"]
    assert machines(desktop.plan("-", stdin=yaml.safe_dump(pod("a")).encode())) == ["g.1"]


def test_plan_combines_several_files_into_one_cluster(desktop: Desktop) -> None:
    planned = desktop.plan(desktop.objects(pod("a"), name="pods.yaml"), desktop.objects(node("n"), name="nodes.yaml"))
    assert planned["placements"] == [{"pod": "default/a", "node": "n"}]
    assert planned["machines"] == []


def test_the_json_of_plan_has_the_documented_keys(desktop: Desktop) -> None:
    gated = pod("gated", schedulingGates=[{"name": "later"}])
    planned = desktop.plan(
        desktop.objects(pod("a"), pod("b", 8), pod("c"), pod("huge", 64), gated, node("n", 1), {"apiVersion": "v1", "kind": "Pod"})
    )
    plan_keys = (
        "machines purchases placements removals cost_per_hour lower_bound_per_hour lower_bound_kind gap unplaced ignored blocked_nodes "
        "set_aside solve_seconds"
    )
    assert set(plan_keys.split()) <= set(planned)
    assert set(planned) - set(plan_keys.split()) <= {"brake", "warnings", "cut"}
    shapes = {
        "machines": "id pool instance_type market zone price_per_hour purpose pods choices opens_after fallbacks",
        "purchases": "pool instance_type market zone count price_per_hour",
        "placements": "pod node",
        "unplaced": "pod reasons",
        "ignored": "pod reason",
        "blocked_nodes": "node blocker detail",
        "set_aside": "object reason",
    }
    for key, names in shapes.items():
        assert planned[key], key
        assert set(planned[key][0]) == set(names.split()), key
    assert set(planned["unplaced"][0]["reasons"][0]) == {"pool", "excluded_by", "detail"}
    assert planned["lower_bound_kind"] in ("pattern-lp", "resource-lp")
    assert isinstance(planned["solve_seconds"], float)
    assert planned["cost_per_hour"] >= planned["lower_bound_per_hour"] > 0


def test_removals_in_the_json_of_plan_have_the_documented_keys(desktop: Desktop) -> None:
    kept = POOLS.replace("- name: gpu", "- name: gpu\n    idle_after: 0s")
    desktop.pools = desktop.write("pools.yaml", kept)
    old = node("n")
    old["metadata"]["creationTimestamp"] = "2026-11-01T00:00:00Z"
    planned = desktop.plan(desktop.objects(old))
    assert [removal["node"] for removal in planned["removals"]] == ["n"]
    assert set(planned["removals"][0]) == {"node", "reason", "moves", "needs", "saving_per_hour"}


def test_plan_does_not_move_a_running_replica_to_capacity_promised_to_a_nominated_one(desktop: Desktop) -> None:
    """A new machine has one free GPU, and two pods fit: the pod it was bought for gets it."""
    set_of = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]
    runs = pod("web-1", 1, nodeName="old") | {"status": {"phase": "Running"}}
    waits = pod("web-2") | {"status": {"phase": "Pending", "nominatedNodeName": "new"}}
    for replica in (runs, waits):
        replica["metadata"]["ownerReferences"] = set_of
        replica["metadata"]["annotations"] = {"gpuscaler.io/disruption": "allow"}
    cluster = desktop.objects(*(node(name, 1, **{"node.kubernetes.io/instance-type": "g.1"}) for name in ("old", "new")), runs, waits)

    planned = desktop.plan(cluster)

    assert planned["removals"] == []
    assert {first["node"]: first["blocker"] for first in planned["blocked_nodes"]} == {"old": "in-use", "new": "needed"}
    assert planned["ignored"] == [{"pod": "default/web-2", "reason": "nominated to node new"}]


def test_planning_the_same_files_twice_gives_the_same_plan(desktop: Desktop) -> None:
    items = [pod(f"p-{n}", 1 + n % 3) for n in range(9)]
    first, second = desktop.plan(desktop.objects(*items)), desktop.plan(desktop.objects(*reversed(items), name="other.yaml"))
    for planned in (first, second):
        del planned["solve_seconds"]
    assert first == second


def test_plan_skips_an_unparsable_object_and_plans_the_rest(desktop: Desktop) -> None:
    odd = pod("odd")
    odd["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "lots"}}
    planned = desktop.plan(desktop.objects(odd, pod("a")))
    assert machines(planned) == ["g.1"]
    (aside,) = planned["set_aside"]
    assert "default/odd" in aside["object"]
    assert "lots" in aside["reason"]


def test_an_unreadable_annotation_is_reported_with_its_object_and_ignored(desktop: Desktop) -> None:
    odd = pod("odd")
    odd["metadata"]["annotations"] = {"gpuscaler.io/spot-wait": "soon"}
    file = desktop.objects(odd, pod("a"))
    planned = desktop.plan(file)
    assert machines(planned) == ["g.1", "g.1"]
    warning = "Pod default/odd: gpuscaler.io/spot-wait: saw a value of 4 characters, expected a duration such as 90s, 10m or 1h30m; ignored"
    assert planned["warnings"] == [warning]
    assert warning in desktop.run("--cluster", file, "--pools", desktop.pools, *NOW).stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"kind": "List", "items": [', ["cluster.json"]),
        (b"a: [1, 2\nb: 3", ["cluster.json", "line"]),
        (b"\xff\xfe\x00", ["cluster.json"]),
        (b"\x1f\x8bnonsense", ["cluster.json"]),
    ],
    ids=["cut JSON", "broken YAML", "no text", "broken gzip"],
)
def test_an_unreadable_file_exits_2_and_is_named(desktop: Desktop, content: bytes, says: list[str]) -> None:
    done = desktop.run("--cluster", desktop.write("cluster.json", content), "--pools", desktop.pools)
    assert done.exit_code == 2
    assert all(word in done.output for word in says), done.output
    assert "Traceback" not in done.output


def test_a_missing_file_exits_2_and_is_named(desktop: Desktop) -> None:
    for arguments in (("--cluster", "nowhere.yaml", "--pools", desktop.pools), ("--cluster", desktop.objects(), "--pools", "nowhere.yaml")):
        done = desktop.run(*arguments)
        assert done.exit_code == 2
        assert "nowhere.yaml" in done.output


def test_a_mistake_in_the_pools_file_exits_2_with_place_seen_and_expected(desktop: Desktop) -> None:
    wrong = desktop.write("pools.yaml", POOLS.replace("price: 8.0", "price: cheap"))
    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", wrong)
    assert done.exit_code == 2
    assert "pools.yaml" in done.output
    assert "pools[0].offerings[0].price" in done.output
    assert "cheap" in done.output
    assert "expected" in done.output


@pytest.mark.parametrize("moment", ["yesterday", "2026-11-21", "2026-11-21T12:00:00", "12:00Z", ""])
def test_an_invalid_time_or_one_without_an_offset_is_rejected(desktop: Desktop, moment: str) -> None:
    done = desktop.run("--cluster", desktop.objects(), "--pools", desktop.pools, "--now", moment)
    assert done.exit_code == 2
    assert f"--now: saw {moment!r}, expected a time with an offset such as 2026-11-21T12:00:00Z" in done.output


@pytest.mark.parametrize("moment", ["2026-11-21T11:00:30Z", "2026-11-21T12:00:30+01:00", "2026-11-21T11:00:30.5Z"])
def test_plan_uses_the_time_of_the_option(desktop: Desktop, moment: str) -> None:
    delayed = pod("a")
    delayed["metadata"]["annotations"] = {"cluster-autoscaler.kubernetes.io/pod-scale-up-delay": "60s"}
    file = desktop.objects(delayed)
    done = desktop.run("--cluster", file, "--pools", desktop.pools, "--json", "--now", moment)
    assert json.loads(done.stdout)["ignored"] == [{"pod": "default/a", "reason": "waits for its pod-scale-up-delay of 60 s"}]
    assert machines(desktop.plan(file)) == ["g.1"]


@pytest.mark.parametrize("arguments", [(), ("--cluster", "x"), ("--cluster", "x", "--pools", "x", "--jsn")])
def test_a_call_with_missing_or_unknown_arguments_exits_2(desktop: Desktop, arguments: tuple[str, ...]) -> None:
    done = desktop.run(*arguments)
    assert done.exit_code == 2
    assert "Usage:" in done.output


def test_the_text_shows_purchases_fitting_pods_and_reasons_for_the_rest(desktop: Desktop) -> None:
    gated = pod("gated", schedulingGates=[{"name": "later"}])
    file = desktop.objects(pod("a"), pod("b", 8), pod("huge", 64), gated, node("n", 1))
    done = desktop.run("--cluster", file, "--pools", desktop.pools, *NOW)
    assert done.exit_code == 0
    for words in (
        "1 node, 4 pods, 3 pending.",
        "g.8",
        "$8.00/h",
        "For pending pods: $8.00 per hour.",
        "n: 1 pod",
        "Not placed: 1 pod.",
        "default/huge",
        "pool gpu: resource: g.8 in z1: 64 nvidia.com/gpu requested, an empty machine has 8",
        "default/gated: has scheduling gates: later",
        "Nodes that stay",
    ):
        assert words in done.stdout, words


@pytest.mark.parametrize("key", ["topology.ebs.csi.aws.com/zone", "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"])
def test_for_a_pod_with_an_existing_volume_a_machine_is_bought_in_the_volumes_zone(desktop: Desktop, key: str) -> None:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": ["us-east-1b"]}]}]
    disk = {"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    of_claim = {"claimRef": {"namespace": "default", "name": "data", "uid": "data"}}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"}, "spec": {**disk, **of_claim}}
    bound = {"name": "data", "namespace": "default", "uid": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": bound, "spec": {"volumeName": "pv-1"}}
    waiting = pod("train", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    pools = "pools: [{name: gpu, types: [g5.xlarge], zones: [us-east-1a, us-east-1b]}]"
    done = desktop.run("--cluster", desktop.objects(waiting, volume, claim), "--pools", desktop.write("a.yaml", pools), *NOW, "--json")
    assert [machine["zone"] for machine in json.loads(done.stdout)["machines"]] == ["us-east-1b"]


def test_the_text_shows_where_the_cloud_chooses_and_which_machines_open_after_others(desktop: Desktop) -> None:
    pools = desktop.write("cloud.yaml", POOLS.replace("- name: gpu", "- name: gpu\n    chooser: cloud"))
    done = desktop.run("--cluster", desktop.objects(pod("a")), "--pools", pools, *NOW)
    assert (
        "In pool gpu the cloud chooses among 2 offerings at $1.500 to $8.000 per hour; the table shows the most expensive." in done.stdout
    )
    term = {"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "a"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    liked, follower = pod("a", 8), pod("b", 8, affinity=near)
    liked["metadata"]["labels"] = {"app": "a"}
    done = desktop.run("--cluster", desktop.objects(liked, follower), "--pools", desktop.pools, *NOW)
    assert "1 of the machines opens only after others, whose pods theirs have affinity to." in done.stdout


def test_plan_says_that_a_cluster_needs_nothing(desktop: Desktop) -> None:
    done = desktop.run("--cluster", desktop.objects(node("n")), "--pools", desktop.pools, *NOW)
    assert done.exit_code == 0
    assert "Nothing to buy." in done.stdout


def test_plan_in_a_pipe_prints_no_control_characters_and_cuts_no_lines(desktop: Desktop) -> None:
    long_name = "a-pod-with-a-name-that-is-far-longer-than-any-terminal-is-wide-" * 3
    file = desktop.objects(pod(long_name, 64), pod("a"))
    command = [sys.executable, "-c", "from gpuscaler.cli import run; run()", "plan", "--cluster", file, "--pools", desktop.pools, *NOW]
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**environment, "TERM": "xterm", "COLUMNS": "40"})
    assert "\x1b" not in done.stdout
    assert long_name in done.stdout
    assert "on-demand" in done.stdout
    assert done.stderr == ""


def test_control_characters_in_names_never_reach_the_terminal(desktop: Desktop) -> None:
    file = desktop.objects(pod("a\x1b[2J[red]", 64), node("n\x07"))
    done = desktop.run("--cluster", file, "--pools", desktop.pools, *NOW)
    assert done.stdout.isascii()
    assert "  default/a\\x1b[2J[red]\n" in done.stdout
    assert "  n\\x07: " in done.stdout


def gpuscaler(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the console script in a separate process."""
    command = [sys.executable, "-c", "from gpuscaler.cli import run; run()", *arguments]
    return subprocess.run(command, text=True, check=False, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["tables", "JSON"])
def test_a_full_disk_is_reported_and_exits_2(desktop: Desktop, form: tuple[str, ...]) -> None:
    # With PYTHONUNBUFFERED the interpreter has nothing left to flush at exit.
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = gpuscaler("plan", "--cluster", desktop.objects(pod("a")), "--pools", desktop.pools, *form, stdout=full, env=buffered)
    assert done.returncode == 2
    assert done.stderr == "saw No space left on device, expected a place with room for the result; free space, or write elsewhere\n"


@pytest.mark.parametrize("option", ["--cluster", "--pools", "--proof"])
def test_shell_completion_completes_file_arguments(option: str) -> None:
    shell = click.shell_completion.BashComplete(main, {}, "gpuscaler", "_GPUSCALER_COMPLETE")
    assert [completion_item.type for completion_item in shell.get_completions(["plan", option], "")] == ["file"]
