"""``gpuscaler doctor --config`` with Azure subscriptions, over HTTP."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscaler.cli import main
from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Endpoint, making, serve

pytestmark = pytest.mark.looptime(False)
CLEAN = Path(__file__).parents[1] / "doctor" / "clean" / "budgets.yaml"
SIZE = "Standard_NC24ads_A100_v4"


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.setenv(name, "99999999-9999-4999-8999-999999999999")
    for name in ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "run.yaml"


def write(run_file: Path, url: str, *pools: str) -> None:
    cluster = "cluster: {name: aks, resource_group: rg}"
    run_file.write_text(
        f"cloud: azure\nazure: {{endpoint_url: '{url}', subscriptions: [{{id: {SUBSCRIPTION}, {cluster}}}]}}\n"
        + (f"pools: [{', '.join(f'{{name: {name}}}' for name in pools)}]\n" if pools else "")
    )


def doctor(run_file: Path) -> Result:
    return CliRunner().invoke(main, ["doctor", "--cluster", str(CLEAN), "--config", str(run_file), "--json"], catch_exceptions=False)


async def test_the_subscriptions_of_the_run_file_are_read_beside_the_files_of_a_cluster(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(now=time.time)
    cluster = making.create_cluster(account, "aks", "rg")
    making.create_pool(account, cluster, "gpu", SIZE, enableAutoScaling=True, minCount=0, maxCount=3)
    serving = await serve(Endpoint(account))
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", serving.url)
    write(run_file, serving.url, "GPU", "gpuspt")
    try:
        result = await asyncio.to_thread(doctor, run_file)
    finally:
        await serving.close()
    document = json.loads(result.output)

    assert result.exit_code == 1
    unknown = [(finding["severity"], finding["field"]) for finding in document["findings"] if finding["id"] == "D1"]
    # The other pool exists: D3 says why it is not adopted.
    assert unknown == [("critical", "pools[gpuspt]"), ("warning", "pools[GPU]")]
    (finding,) = [finding for finding in document["findings"] if finding["id"] == "D3"]
    assert finding["object"] == "AgentPool aks/gpu"
    (command,) = finding["commands"]
    place = "--resource-group rg --cluster-name aks --name gpu"
    assert command == f"az aks nodepool update {place} --disable-cluster-autoscaler --subscription {SUBSCRIPTION}"
    assert not [entry for entry in document["unchecked"] if "azure/" in entry["reason"]]


def test_subscriptions_that_do_not_answer_are_unchecked_and_no_finding(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "http://127.0.0.1:1")
    write(run_file, "http://127.0.0.1:1")
    result = doctor(run_file)
    document = json.loads(result.output)

    assert result.exit_code == 3
    assert not document["findings"]
    unchecked = {entry["id"] for entry in document["unchecked"]}
    assert {"D1", "D3", "D5", "D6", "D16", "D17", "D25", "D47"} <= unchecked
