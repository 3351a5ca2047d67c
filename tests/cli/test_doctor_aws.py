"""``gpuscaler doctor --config`` with an AWS account, over HTTP."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

from gpuscaler.cli import main
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.server import serve

pytestmark = pytest.mark.looptime(False)
CLEAN = Path(__file__).parents[1] / "doctor" / "clean" / "budgets.yaml"


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return tmp_path / "run.yaml"


def write(run_file: Path, url: str) -> None:
    run_file.write_text(f"cloud: aws\naws: {{cluster: research, regions: [us-east-1], endpoint_url: '{url}'}}\n")


def doctor(run_file: Path) -> Result:
    return CliRunner().invoke(main, ["doctor", "--cluster", str(CLEAN), "--config", str(run_file), "--json"], catch_exceptions=False)


async def test_the_account_of_the_run_file_is_read_beside_the_files_of_a_cluster(run_file: Path) -> None:
    endpoint = Endpoint(Account(now=time.time))
    serving = await serve(endpoint)
    write(run_file, serving.url)
    try:
        result = await asyncio.to_thread(doctor, run_file)
    finally:
        await serving.close()
    document = json.loads(result.output)

    assert result.exit_code == 1
    assert [(finding["id"], finding["object"]) for finding in document["findings"]] == [("D1", "run file")]
    # The simulated account has no IAM.
    reasons = {entry["id"]: entry["reason"] for entry in document["unchecked"]}
    assert "aws/Right could not be read" in reasons["D29"]


def test_an_account_that_does_not_answer_is_unchecked_and_no_finding(run_file: Path) -> None:
    write(run_file, "http://127.0.0.1:1")
    result = doctor(run_file)
    document = json.loads(result.output)

    assert result.exit_code == 3
    assert not document["findings"]
    unchecked = {entry["id"] for entry in document["unchecked"]}
    assert {"D1", "D4", "D5", "D7", "D8", "D16", "D17", "D25", "D29", "D33"} <= unchecked
