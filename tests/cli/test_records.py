"""``gpuscaler status``, ``why`` and ``replay`` against a running controller, over HTTP."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, kubeconfig, repeat_reads_at_once, served
from tests.control.records.deciding import removal_decision
from tests.objects import pod
from tests.planning import building as on_paper

from gpuscaler import __version__
from gpuscaler.cli import main
from gpuscaler.control.records.events.records import Decision
from gpuscaler.control.records.history import packing
from gpuscaler.control.records.history.history import FILE, StoredDecision, open_history
from gpuscaler.control.records.history.packing import pack_decision
from gpuscaler.control.records.status.reporting import parse_status, status_config_map
from gpuscaler.control.records.status.status import Process, Status
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.portforward import PodPort
from gpuscaler.kube.resources import CONFIG_MAPS, PODS
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Move, Plan, PlannedRemoval
from gpuscaler.planning.state import State

RUN_FILE = """
region: us-east-1
cloud: simulated
simulated: {boot: 300ms, device_plugin_delay: 100ms, capacity_error_delay: 100ms, image_pull: 0s}
http: {address: "127.0.0.1:0"}
pages: {address: "127.0.0.1:0"}
pace: {resync: 200ms}
pools:
  - name: gpu
    types: [g4dn.xlarge]
    zones: [us-east-1a]
"""


HERE, AT = socket.gethostname(), "with its pages at http://"
SSH = "ssh -L 8081:127.0.0.1:8081 elsewhere"


@dataclass
class LedCluster:
    """A cluster with a leading controller, with pages at ``url`` and metrics at ``metrics``; it appears as the pod ``leader``."""

    cluster: Served
    url: str
    metrics: str
    log: list[str]


async def read(client: Client) -> Status | None:
    try:
        return parse_status(await client.get(CONFIG_MAPS, "gpuscaler-status", namespace="kube-system"))
    except NotFound:
        return None


async def bound(client: Client) -> bool:
    pods = {pod["metadata"]["name"]: pod for pod in map(msgspec.json.decode, await client.list_all(PODS))}
    return bool(pods["train"]["spec"].get("nodeName"))


@contextmanager
def running(folder: Path) -> Iterator[LedCluster]:
    """One pod runs, another one cannot be scheduled."""
    with served(folder) as cluster:
        (folder / "run.yaml").write_text(RUN_FILE)

        async def submit(client: Client) -> None:
            await client.create(PODS, pod("train"), namespace="default")
            await client.create(PODS, pod("huge", 8), namespace="default")

        cluster.ask(submit)
        # The status is written often here, so that the tests do not have to wait for ten seconds.
        often = "from gpuscaler.control.records.status import reporting; reporting.CHANGED_SECONDS, reporting.STEP_SECONDS = 0.2, 0.1"
        command = [sys.executable, "-c", f"{often}; from gpuscaler.cli import run; run()", "run"]
        command += ["--config", str(folder / "run.yaml"), "--kubeconfig", str(cluster.kubeconfig)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                log, urls = [], []
                for line in process.stderr:
                    log.append(line)
                    if "serves" in line:
                        urls.append(f"http://127.0.0.1:{msgspec.json.decode(line)['port']}")
                    if len(urls) == 2:
                        break
                cluster.until(bound, within=40)
                yield LedCluster(cluster, urls[1], urls[0], log)
                process.send_signal(signal.SIGTERM)
                rest, _ = "", process.wait(20)
                log += [rest, *process.stderr.readlines()]
            finally:
                process.kill()


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedCluster]:
    with running(tmp_path_factory.mktemp("led")) as led:
        yield led


def ask(led: LedCluster | Served, *command: str) -> Result:
    cluster = led.cluster if isinstance(led, LedCluster) else led
    return CliRunner().invoke(main, [command[0], "--kubeconfig", str(cluster.kubeconfig), *command[1:]])


def wait_for_status(led: LedCluster) -> Status:
    """Return the status once it contains the running machine."""

    async def shows(client: Client) -> Status | None:
        status = await read(client)
        return status if status is not None and status.pools and status.pools[0].used and status.waiting else None

    status = led.cluster.until(shows, within=40)
    assert status is not None
    return status


def test_status_shows_pools_and_pending_pods_with_reasons(led: LedCluster) -> None:
    wait_for_status(led)
    done = ask(led, "status")

    assert done.exit_code == 0, done.output
    assert re.search(r"^Written \d+s ago by \S+ \(gpuscaler ", done.output)
    assert "1 machine in 1 pool at $" in done.output
    assert re.search(r"^Last reconciled \d+s ago: 1 node and \d+ pods; planned \d+s ago\. Its pages are at ", done.output, re.MULTILINE)
    assert (
        "Machines:\n  gpu: 1 x spot g4dn.xlarge open\n" in done.output
        or "Machines:\n  gpu: 1 x on-demand g4dn.xlarge open\n" in done.output
    )
    assert re.search(r"^gpu +1 +0 +0 +0 +- +1 +1 +0\.\d\d$", done.output, re.MULTILINE)
    assert "1 x default/huge: no machine of any pool fits it: pool gpu: " in done.output
    assert re.search(r"ago  unplaced +no machine of any pool fits default/huge: pool gpu: ", done.output)
    assert "8 nvidia.com/gpu requested" in done.output
    assert re.search(r"^Limits: dollars_per_hour \$0\.\d\d of \$100\.$", done.output, re.MULTILINE)


def test_status_as_json_equals_what_the_leader_wrote(led: LedCluster) -> None:
    wait_for_status(led)
    done = ask(led, "status", "--json")

    assert msgspec.json.decode(done.output, type=Status).unplaced == 1
    document = msgspec.json.decode(done.output)
    assert (document["old"], document["metrics_api"]) == (False, [])
    assert document["pools"][0]["leaving"] == 0


def test_why_queries_the_leader_at_an_address(led: LedCluster) -> None:
    stuck, runs = ask(led, "why", "pod", "default/huge", "--leader", led.url), ask(led, "why", "pod", "train", "--leader", led.url)

    assert (stuck.exit_code, runs.exit_code) == (0, 0)
    assert "no machine of any pool fits it:\n    pool gpu: resource: " in stuck.output
    assert "it is on node sim-" in runs.output
    assert re.search(
        r"ago  ordered          g4dn\.xlarge \S+ in us-east-1a ordered: ready in about .*  \[\d{8}T\d{6}-\d+\]$", runs.output, re.MULTILINE
    )


def led_by(led: LedCluster, leader: Process) -> None:
    """Write a status with ``leader`` into the namespace default."""
    status = msgspec.structs.replace(wait_for_status(led), leader=leader)

    async def write(client: Client) -> None:
        with suppress(NotFound):
            await client.delete(CONFIG_MAPS, "gpuscaler-status", namespace="default")
        await client.create(CONFIG_MAPS, status_config_map(status, "default"), namespace="default")

    led.cluster.ask(write)


def test_why_and_replay_use_a_forwarded_port_of_the_leader_and_name_a_missing_permission(led: LedCluster) -> None:
    async def play(client: Client) -> None:
        await client.create(PODS, {**pod("leader", 0), "apiVersion": "v1"}, namespace="kube-system")

    led.cluster.ask(play)
    led.cluster.until(lambda client: on_a_node(client, "leader"))
    target = PodPort(namespace="kube-system", pod="leader", port=8081)
    led.cluster.api.forwards.register(target, int(led.url.rpartition(":")[2]))
    led_by(led, Process("me", "0", "leader", "kube-system", 8081, "127.0.0.1"))

    done, listed = ask(led, "why", "pod", "train", "--namespace", "default"), ask(led, "replay", "--namespace", "default")

    assert (done.exit_code, listed.exit_code) == (0, 0), done.output + listed.output
    assert "it is on node sim-" in done.output
    assert "cannot be queried" not in done.output
    assert "buys 1 machine" in listed.output

    words = 'pods "leader" is forbidden: User "me" cannot create resource "pods/portforward"'
    led.cluster.api.faults.add(Fault(path="/pods/leader/portforward", refusal=Failure(403, "Forbidden", words)))
    done, listed = ask(led, "why", "pod", "train", "--namespace", "default"), ask(led, "replay", "--namespace", "default")
    led.cluster.api.faults.clear()

    assert (done.exit_code, listed.exit_code) == (0, 3), done.output + listed.output
    assert f"The leader cannot be queried ({words} (403 Forbidden); expected get and create on pods/portforward" in done.output
    assert "TriggeredScaleUp" in done.output
    assert "get and create on pods/portforward in namespace kube-system" in listed.output


async def on_a_node(client: Client, name: str) -> bool:
    answers = msgspec.json.decode(await client.get(PODS, name, namespace="kube-system"))
    return bool(answers["spec"].get("nodeName"))


def test_why_queries_a_leader_outside_of_a_pod_on_this_machine_directly(led: LedCluster) -> None:
    wait_for_status(led)
    done = ask(led, "why", "pod", "train")

    assert done.exit_code == 0, done.output
    assert "it is on node sim-" in done.output
    assert "cannot be queried" not in done.output


@pytest.mark.parametrize(
    ("leader", "said"),
    [
        (
            Process("me", "0", port=8081, address="127.0.0.1", host="elsewhere"),
            f"runs outside of a pod on elsewhere, {AT}127.0.0.1:8081; run the command there, or forward the port to this machine ({SSH})",
        ),
        (Process("me", "0", port=80, address="203.0.113.1", host=HERE), f"{AT}203.0.113.1:80; run the command there"),
        (Process("me", "0", port=1, address="127.0.0.1", host=HERE), "cannot connect to 127.0.0.1:1"),
        (Process("me", "0", "gone", "kube-system", 8081, "127.0.0.1"), 'its pages cannot be forwarded: pods "gone" not found'),
        (Process("me", "0"), "leader me: serves no pages (pages.enabled is false)"),
    ],
    ids=["on another machine", "at an address of another machine", "that has ended", "whose pod has ended", "without pages"],
)
def test_why_answers_from_events_and_says_so_if_the_leader_is_unreachable(led: LedCluster, leader: Process, said: str) -> None:
    led_by(led, leader)
    done = ask(led, "why", "pod", "train", "--namespace", "default")

    assert done.exit_code == 0, done.output
    assert said in done.output
    assert re.search(r"ago  TriggeredScaleUp  g4dn\.xlarge \S+ in us-east-1a ordered: ready in about", done.output)


def test_a_token_is_not_sent_to_a_leader_without_tls(led: LedCluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    done = ask(led, "why", "pod", "train", "--leader", led.url, "--leader-token-file", str(tmp_path / "token"))

    assert f"saw {led.url} with --leader-token-file, expected https://" in done.output


@pytest.mark.parametrize("name", ["a/b/c", "/b", "a/", ""])
def test_why_without_a_valid_name_explains_how_to_name_a_pod(name: str) -> None:
    done = CliRunner().invoke(main, ["why", "pod", name])

    assert done.exit_code == 2
    assert f"saw {name!r}, expected NAMESPACE/NAME" in done.output


def test_why_reports_if_nothing_is_known(led: LedCluster) -> None:
    done = ask(led, "why", "node", "missing", "--leader", led.url)

    assert (done.exit_code, done.output) == (2, "node missing:\n  there is no such node now\n")


def test_replay_lists_decisions_and_recomputes_one_of_them(led: LedCluster, tmp_path: Path) -> None:
    listed = ask(led, "replay", "--leader", led.url)
    name = listed.output.split()[0]
    done = ask(led, "replay", name, "--leader", led.url, "--save", str(tmp_path / "inputs"))
    again = CliRunner().invoke(main, ["replay", "--inputs", str(tmp_path / "inputs")])

    assert re.fullmatch(r"\d{8}T\d{6}-\d+", name)
    assert done.exit_code == 0, done.output
    assert f"Decision {name}: buys 1 machine at $" in done.output
    assert done.output.endswith("Planned again: identical.\n")
    assert again.output == done.output


def test_replay_of_a_decision_that_is_not_recorded_says_so(led: LedCluster) -> None:
    done = ask(led, "replay", "19990101T000000-1", "--leader", led.url)

    assert done.exit_code == 2
    assert "decision 19990101T000000-1: saw no decision with that id" in done.output


def test_run_serves_health_and_metrics_pages(led: LedCluster) -> None:
    async def get() -> dict[str, tuple[int, str]]:
        async with aiohttp.ClientSession() as session:
            answers = {}
            for path in ("healthz", "readyz", "metrics"):
                async with session.get(f"{led.metrics}/{path}") as answer:
                    answers[path] = (answer.status, await answer.text())
            return answers

    pages = asyncio.run(get())
    assert pages["healthz"] == (200, "[+]loop ok\nok\n")
    assert pages["readyz"] == (200, "[+]loop ok\n[+]synced ok\nok\n")
    assert "gpuscaler_leader 1.0" in pages["metrics"][1]
    assert "gpuscaler_loop_lag_seconds_bucket" in pages["metrics"][1]


def test_metrics_and_health_share_an_address_and_pages_about_pods_have_another(led: LedCluster) -> None:
    async def get(url: str) -> int:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status

    document = ("status", "why/pod/default/train", "why/node/n", "decisions", "decisions/x", "decisions/x/inputs")
    assert {asyncio.run(get(f"{led.metrics}/{path}")) for path in document} == {404}
    assert asyncio.run(get(f"{led.url}/status")) == 200
    assert {asyncio.run(get(f"{led.url}/{path}")) for path in ("metrics", "healthz", "readyz")} == {404}


def test_a_web_site_with_a_name_that_resolves_to_this_machine_cannot_read_pages(led: LedCluster) -> None:
    async def get(host: str) -> int:
        async with aiohttp.ClientSession() as session, session.get(f"{led.url}/status", headers={"Host": host}) as answer:
            return answer.status

    others = ("rebound.example", "rebound.example:8081", "127.0.0.1.rebound.example", "10.0.0.1", "[")
    assert {asyncio.run(get(host)) for host in others} == {403}
    assert {asyncio.run(get(host)) for host in ("localhost", "[::1]:8081", "127.9.9.9")} == {200}


def test_every_line_of_the_log_is_json_with_a_time_a_level_and_a_message(led: LedCluster) -> None:
    lines = [msgspec.json.decode(line, type=dict[str, object]) for line in led.log]

    assert lines
    assert all({"time", "level", "message"} <= line.keys() for line in lines)


def test_without_a_written_status_gpuscaler_counts_as_not_installed(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        status, why, replay = ask(cluster, "status"), ask(cluster, "why", "pod", "x"), ask(cluster, "replay")

    assert (status.exit_code, replay.exit_code, why.exit_code) == (4, 4, 4)
    assert "ConfigMap kube-system/gpuscaler-status: saw none, expected the status of a controller" in status.output
    assert "there is no Event of gpuscaler about it" in why.output


def test_without_permission_for_the_status_it_is_named_and_why_uses_events(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        cluster.load({**pod("x"), "apiVersion": "v1", "kind": "Pod"})
        words = 'configmaps "gpuscaler-status" is forbidden: User "me" cannot get resource "configmaps" in the namespace "kube-system"'
        cluster.api.faults.add(Fault(path="configmaps", refusal=Failure(403, "Forbidden", words)))
        status, why, replay = ask(cluster, "status"), ask(cluster, "why", "pod", "x"), ask(cluster, "replay")
        cluster.api.faults.add(Fault(path="events", refusal=Failure(403, "Forbidden", "events is forbidden")))
        silent = ask(cluster, "why", "pod", "x")

    assert (status.exit_code, replay.exit_code, silent.exit_code) == (5, 5, 5)
    assert f"saw {words} (403 Forbidden), expected permission for it" in status.output
    assert why.exit_code == 0
    assert f"The leader cannot be queried ({words}" in why.output


@pytest.mark.parametrize(("status", "kind"), [(200, "text/html"), (404, "text/plain")])
def test_a_server_that_is_not_an_api_server_counts_as_unreachable(
    status: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_reads_at_once(monkeypatch)

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(b"page not found")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        path = kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}")
        done = [CliRunner().invoke(main, [*command, "--kubeconfig", str(path)]) for command in (["status"], ["why", "pod", "x"])]
        server.shutdown()
        thread.join()

    assert [result.exit_code for result in done] == [3, 3], [result.output for result in done]
    assert all(result.output.count(f"http://127.0.0.1:{server.server_port} (context 'here' of {path})") == 1 for result in done)


def test_status_reports_an_old_status_as_outdated(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:

        async def write(client: Client) -> None:
            old = Status(time.time() - 3600, Process("me", "0.1"))
            await client.create(CONFIG_MAPS, status_config_map(old, "kube-system"), namespace="kube-system")

        cluster.ask(write)
        done = ask(cluster, "status")

    assert done.exit_code == 0
    assert "Written 1h ago by me (gpuscaler 0.1).\nThe status is outdated: " in done.output


@pytest.mark.parametrize(("data", "said"), [({}, "saw no key status.json"), ({"status.json": "[]"}, "saw a status that cannot be read")])
def test_status_reports_a_status_config_map_that_gpuscaler_did_not_write(tmp_path: Path, data: dict[str, str], said: str) -> None:
    with served(tmp_path) as cluster:

        async def write(client: Client) -> None:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpuscaler-status"}, "data": data}
            await client.create(CONFIG_MAPS, body, namespace="kube-system")

        cluster.ask(write)
        done = ask(cluster, "status")

    assert done.exit_code == 2
    assert f"ConfigMap kube-system/gpuscaler-status: {said}" in done.output


def test_a_cluster_that_does_not_answer_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_reads_at_once(monkeypatch)
    path = kubeconfig(tmp_path, "http://127.0.0.1:9")
    for command in (["status"], ["replay", "x"]):
        done = CliRunner().invoke(main, [command[0], "--kubeconfig", str(path), *command[1:]])
        assert done.exit_code == 3, done.output


def test_replay_reads_a_history_file_and_reports_differences(tmp_path: Path) -> None:
    history, _ = open_history(str(tmp_path), decisions=10, most_bytes=10_000_000)
    some = removal_decision()
    other = Decision("d-2", some.at, some.text, some.cluster, some.state, some.policy, Plan())
    history.add(
        [], [StoredDecision(decision.id, decision.at, decision.text, decision.plan, pack_decision(decision)) for decision in (some, other)]
    )
    history.close()
    file = str(tmp_path / FILE)

    listed, same, different, unknown = (
        CliRunner().invoke(main, ["replay", *more, "--history", file]) for more in ([], ["d-1"], ["d-2"], ["d-3"])
    )

    assert [line.split()[0] for line in listed.output.splitlines()] == ["d-2", "d-1"]
    assert (same.exit_code, same.output.splitlines()[-1]) == (0, "Planned again: identical.")
    assert different.exit_code == 1
    assert "Planned again: different.\n  removals: new, not recorded: " in different.output
    assert unknown.exit_code == 2


def test_replay_of_an_old_decision_that_used_places_of_nominated_pods_plans_no_removal(tmp_path: Path) -> None:
    """A recorded decision that moved running pods to the places of nominated ones: three of seven replicas."""
    card = on_paper.offering()
    items: list[Item] = [on_paper.node(f"old-{number}", card) for number in range(7)]
    items += [on_paper.node(f"new-{number}", card) for number in range(3)]
    items += [on_paper.pod(f"runs-{number}", on=f"old-{number}", options={"disruption": "allow"}) for number in range(7)]
    items += [on_paper.pod(f"waits-{number}", nominated_node=f"new-{number}") for number in range(3)]
    moved = tuple(PlannedRemoval(f"old-{number}", "", (Move(f"default/runs-{number}", f"new-{number}"),)) for number in range(3))
    policy = Policy((on_paper.pool(card),))
    recorded = Decision("d-1", on_paper.NOW, "gives back 3 nodes", Cluster.of(items), State(), policy, Plan(removals=moved))
    (tmp_path / "inputs").write_bytes(pack_decision(recorded))

    done = CliRunner().invoke(main, ["replay", "--inputs", str(tmp_path / "inputs"), "--json"])

    document = json.loads(done.stdout)
    assert (done.exit_code, document["removals"]) == (1, [])
    assert {entry["blocker"] for entry in document["blocked_nodes"]} == {"in-use", "needed"}


def test_replay_names_a_file_that_it_cannot_save_to(tmp_path: Path) -> None:
    (tmp_path / "inputs").write_bytes(pack_decision(removal_decision()))
    missing = tmp_path / "no" / "such"
    done = CliRunner().invoke(main, ["replay", "--inputs", str(tmp_path / "inputs"), "--save", str(missing)])

    assert done.exit_code == 2
    assert f"{missing}: saw No such file or directory, expected a file that can be written (--save)" in done.output


def test_replay_reports_the_version_that_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = removal_decision()
    monkeypatch.setattr(packing, "__version__", "0.0.1")
    (tmp_path / "inputs").write_bytes(pack_decision(Decision("d-1", some.at, some.text, some.cluster, some.state, some.policy, Plan())))
    done = CliRunner().invoke(main, ["replay", "--inputs", str(tmp_path / "inputs")])

    assert done.exit_code == 1
    assert f"Planned again: different. It was planned by gpuscaler 0.0.1, this is {__version__}." in done.output


@pytest.mark.parametrize("option", ["--history", "--inputs"])
def test_replay_of_an_invalid_file_reports_what_was_expected(tmp_path: Path, option: str) -> None:
    (tmp_path / "odd").write_text("odd" * 100)
    for name, said in (("nothing", "saw No such file"), ("odd", "expected the")):
        done = CliRunner().invoke(main, ["replay", "x", option, str(tmp_path / name)])
        assert (done.exit_code, said in done.output) == (2, True), done.output


def test_status_shows_the_state_of_the_metrics_api_with_and_without_a_controller(tmp_path: Path) -> None:
    why = "endpoints for service/gpuscaler-metrics have no addresses"

    class Plane(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if name == "v1beta2.custom.metrics.k8s.io":
                service = {"name": "gpuscaler-metrics", "namespace": "gpu"}
                condition = {"type": "Available", "status": "False", "message": why}
                spec = {"group": "custom.metrics.k8s.io", "version": "v1beta2", "service": service}
                self.say(200, {"spec": spec, "status": {"conditions": [condition]}})
            else:
                self.say(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.say(201, {"status": {"allowed": False}})

        def say(self, code: int, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Plane) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        path = kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}")
        done = CliRunner().invoke(main, ["status", "--kubeconfig", str(path)])
        as_json = CliRunner().invoke(main, ["status", "--kubeconfig", str(path), "--json"])
        server.shutdown()

    assert (done.exit_code, as_json.exit_code) == (4, 4)
    (pod,) = msgspec.json.decode(as_json.stdout)["metrics_api"]
    assert (pod["service"], pod["apis"]) == ("gpu/gpuscaler-metrics", ["custom.metrics.k8s.io/v1beta2"])
    assert pod["problems"] == [f"it does not answer the API server: {why}"]
    expected = f"custom.metrics.k8s.io/v1beta2 by Service gpu/gpuscaler-metrics: it does not answer the API server: {why}"
    assert f"Metrics API:\n  {expected}\n" in done.output
    assert "expected the status of a controller" in done.output
