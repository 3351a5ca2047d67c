"""All commands that query a cluster report connection problems in the same way, with the same exit status."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import kubeconfig, repeat_reads_at_once

from gpuscaler.cli import main

COMMANDS = [
    ["status"],
    ["why", "pod", "default/p"],
    ["why", "node", "n"],
    ["replay"],
    ["replay", "20261121T000000-1"],
    ["plan", "--pools", "run.yaml"],
    ["record", "--out", "week.csv"],
    ["run", "--config", "run.yaml"],
    ["run", "--config", "run.yaml", "--dry-run"],
]
RUN = "region: us-east-1\ncloud: simulated\nhttp: {enabled: false}\npools: [{name: a, types: [g5.xlarge], zones: [us-east-1a]}]\n"


@pytest.fixture(params=[401, 403])
def refusing(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A server that rejects every request with the given status, and its URL."""
    status: int = request.param
    reason = {401: "Unauthorized", 403: "Forbidden"}[status]
    answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "bob may not do that", "code": status}

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield status, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def invoke(folder: Path, monkeypatch: pytest.MonkeyPatch, *command: str) -> Result:
    (folder / "run.yaml").write_text(RUN)
    monkeypatch.chdir(folder)
    return CliRunner().invoke(main, [*command, "--kubeconfig", "kubeconfig"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_cluster_that_denies_access_exits_5_with_its_message_and_nothing_is_written(
    command: list[str], refusing: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, url = refusing
    kubeconfig(tmp_path, url)

    done = invoke(tmp_path, monkeypatch, *command)

    assert done.exit_code == 5, done.output
    assert f"{url} (context 'here' of kubeconfig): saw bob may not do that ({status} " in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubeconfig", "run.yaml"]


@pytest.fixture(params=["text/html", "text/plain"])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a web server that knows none of the paths."""

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("content-type", request.param)
            self.end_headers()
            self.wfile.write(b"<html><body><h1>page\nnot found</h1></body></html>" if request.param == "text/html" else b"page not found\n")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("command", [["status"], ["why", "node", "n"], ["plan", "--pools", "run.yaml"], ["doctor"]], ids=" ".join)
def test_a_web_server_is_no_api_server_which_one_sentence_says(
    command: list[str], stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat_reads_at_once(monkeypatch)
    kubeconfig(tmp_path, stranger)

    done = invoke(tmp_path, monkeypatch, *command)

    assert done.exit_code == 3, done.output
    (line,) = [line for line in done.output.splitlines() if "not found" in line]
    assert f"{stranger} (context 'here' of kubeconfig): GET /api/v1/" in line
    assert "saw status 404 with " in line
    assert "expected the JSON of a Kubernetes API server; no Kubernetes API server answers there: check its address" in line
    assert "<" not in line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_context_exits_2_and_lists_existing_ones(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path, "http://127.0.0.1:9")

    done = invoke(tmp_path, monkeypatch, *command, "--context", "there")

    assert done.exit_code == 2
    assert "kubeconfig kubeconfig: saw no context 'there', expected one of 'here'" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kubeconfig", "run.yaml"]
