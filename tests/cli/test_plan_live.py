"""``gpuscaler plan`` on a live cluster, over HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, kubeconfig, repeat_reads_at_once, served
from tests.cli.test_plan import POOLS, machines, node, pod

from gpuscaler.cli import main
from gpuscaler.control.loop.store import MemoryStore
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.client import Client
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

TWO = """
region: us-east-1
pools:
  - name: big
    offerings: [{type: g.8, market: on-demand, zone: z1, price: 8.0, resources: {cpu: 64, memory: 512Gi, nvidia.com/gpu: 8, pods: 110}}]
  - name: small
    offerings: [{type: g.1, market: on-demand, zone: z1, price: 1.5, resources: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1, pods: 110}}]
"""


def priorities(text: str) -> dict[str, Any]:
    name = {"name": "cluster-autoscaler-priority-expander", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"priorities": text}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as server:
        yield server


def plan(cluster: Served, *more: str) -> Result:
    pools = cluster.kubeconfig.parent / "pools.yaml"
    pools.write_text(POOLS)
    return CliRunner().invoke(main, ["plan", "--pools", str(pools), "--kubeconfig", str(cluster.kubeconfig), *more])


def planned(cluster: Served, *more: str) -> dict[str, Any]:
    done = plan(cluster, "--json", *more)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def refusal(message: str) -> Failure:
    return Failure(403, "Forbidden", f'{message} is forbidden: User "me" cannot list resource "{message}"')


def test_plan_reads_the_pending_pods_of_a_live_cluster(cluster: Served) -> None:
    cluster.load(node("n1", 0), pod("a", 8))

    assert machines(planned(cluster, "--context", "here")) == ["g.8"]
    assert cluster.api.writes == ()


def test_plan_uses_the_priority_config_map_of_the_cluster_and_reports_the_extra_cost(cluster: Served) -> None:
    cluster.load(node("n1", 0), pod("a"), priorities("{50: [big], 10: [small]}"))
    pools = cluster.kubeconfig.parent / "two.yaml"
    pools.write_text(TWO)
    done = CliRunner().invoke(main, ["plan", "--pools", str(pools), "--kubeconfig", str(cluster.kubeconfig), "--json"])

    assert machines(json.loads(done.stdout)) == ["g.8"]
    place = "ConfigMap kube-system/cluster-autoscaler-priority-expander"
    assert f"note: {place} is in force: 50: big; 10: small\n" in done.stderr
    assert f"note: {place}: pool big (priority 50) comes before pool small (priority 10), which is cheaper" in done.stderr
    assert (
        "note: the priorities of pools cost $6.50 per hour in this plan: its machines for pending pods cost $8.00 per hour" in done.stderr
    )


def test_plan_reports_an_invalid_priority_config_map_and_uses_the_priorities_of_the_file(cluster: Served) -> None:
    cluster.load(node("n1", 0), pod("a"), priorities("{50: ["))
    done = plan(cluster, "--json")

    assert machines(json.loads(done.stdout)) == ["g.1"]
    assert "note: ConfigMap kube-system/cluster-autoscaler-priority-expander, priorities:2: not YAML" in done.stderr


def test_add_pods_adds_pods_to_those_of_the_live_cluster(cluster: Served, tmp_path: Path) -> None:
    cluster.load(node("n1", 0))
    (tmp_path / "more.json").write_text(json.dumps(pod("a", 8)))

    assert machines(planned(cluster, "--add-pods", str(tmp_path / "more.json"))) == ["g.8"]


def test_machines_ordered_by_a_controller_are_not_bought_again(cluster: Served) -> None:
    cluster.load(node("n1", 0), pod("a", 8))
    coming = OrderedMachine("o-0", "o", (OfferingKey("gpu", "on-demand", "g.8", "z1"),), price=8.0, asked=1.0)

    async def remember(client: Client) -> None:
        store = MemoryStore(client, namespace="kube-system")
        await store.load()
        await store.save(Memory(ledger=Ledger(coming=(coming,))))

    cluster.ask(remember)
    done = plan(cluster)

    assert done.exit_code == 0, done.output
    assert "Nothing to buy." in done.stdout
    assert "ConfigMap kube-system/gpuscaler-state: 1 machine is on the way" in done.stderr


def test_plan_reports_forbidden_optional_resources_and_plans_without_them(cluster: Served) -> None:
    cluster.load(node("n1", 0), pod("a", 8))
    cluster.api.faults.add(Fault(path="resourceslices", refusal=refusal("resourceslices")))
    cluster.api.faults.add(Fault(path="configmaps", refusal=refusal("configmaps")))

    done = plan(cluster)

    assert done.exit_code == 0
    assert "no permission to read resourceslices.resource.k8s.io: planned without them" in done.stderr
    assert "planned without the controller's ledger" in done.stderr


def test_a_cluster_that_forbids_a_required_resource_exits_5_and_names_it(cluster: Served) -> None:
    cluster.api.faults.add(Fault(path="/pods", refusal=refusal("pods")))

    done = plan(cluster)

    assert done.exit_code == 5
    assert 'cannot list resource "pods"' in done.stderr


def test_a_cluster_that_does_not_answer_exits_3(cluster: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    cluster.kubeconfig.write_text(kubeconfig(tmp_path, "http://127.0.0.1:9").read_text())

    assert plan(cluster).exit_code == 3


def test_an_unknown_context_exits_2_and_lists_the_existing_ones(cluster: Served) -> None:
    done = plan(cluster, "--context", "nowhere")

    assert done.exit_code == 2
    assert "saw no context 'nowhere', expected one of 'here'" in done.stderr
