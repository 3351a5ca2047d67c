"""``gpuscaler doctor --send-test-message``: which options go together, its exit statuses and its output."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, served

from gpuscaler.cli import main
from gpuscaler.control.records.status.reporting import status_config_map
from gpuscaler.control.records.status.status import Process, Status

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

QUEUE = "http://127.0.0.1:1/queue/us-east-1/123456789012/gpuscaler"
AWS = "cloud: aws\naws: {cluster: research, regions: [us-east-1], endpoint_url: 'http://127.0.0.1:1'"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with served(tmp_path) as server:
        yield server


def run_file(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def doctor(*words: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--send-test-message", *words], catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "words", "error"),
    [
        ("", (), "saw --send-test-message without --config"),
        ("cloud: simulated\nregion: us-east-1\npools: [{name: gpu, types: [g5.xlarge]}]\n", (), "expected cloud: aws"),
        (f"{AWS}}}\n", (), "aws.queue_url: saw no queue, expected an SQS queue that gets the notices of EC2; nothing was sent"),
        (f"{AWS}}}\n", ("--smoke",), "saw --smoke together with --send-test-message"),
        (f"{AWS}}}\n", ("--cluster", "-"), "saw --send-test-message together with --cluster"),
        (f"{AWS}}}\n", ("--sarif",), "saw --send-test-message together with --sarif"),
        (f"{AWS}}}\n", ("--html", "x.html"), "saw --send-test-message together with --html"),
    ],
)
def test_what_is_missing_or_does_not_go_together_is_bad_input(tmp_path: Path, text: str, words: tuple[str, ...], error: str) -> None:
    done = doctor(*(("--config", run_file(tmp_path, text)) if text else ()), *words)

    assert done.exit_code == 2
    assert error in done.output


def test_without_a_controller_it_exits_1_and_says_that_nothing_was_sent(cluster: Served, tmp_path: Path) -> None:
    config = run_file(tmp_path, f"{AWS}, queue_url: '{QUEUE}'}}\n")
    done = doctor("--kubeconfig", str(cluster.kubeconfig), "--config", config)

    assert done.exit_code == 1
    assert "no controller runs: ConfigMap kube-system/gpuscaler-status: saw none" in done.stderr
    assert "nothing was sent" in done.stderr


def test_a_queue_that_does_not_answer_exits_3_and_proves_nothing(cluster: Served, tmp_path: Path) -> None:
    cluster.load(status_config_map(Status(at=time.time(), leader=Process("one", "0")), "kube-system"))
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "gpuscaler", "namespace": "kube-system"}}
    cluster.load({**lease, "spec": {"holderIdentity": "one"}})
    config = run_file(tmp_path, f"{AWS}, queue_url: '{QUEUE}'}}\n")
    done = doctor("--kubeconfig", str(cluster.kubeconfig), "--config", config, "--json")
    document = json.loads(done.stdout)

    assert done.exit_code == 3
    assert (document["received"], document["proved"], document["left"]) == (False, [], "")
    assert "the message could not be sent: sqs in us-east-1" in document["text"]
