"""Services that settings name, found through the API server: the cluster's DNS may wait for the machine that is yet to be bought."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.kube.doubles import answer, refusal
from tests.kube.test_client import make_client, sent_requests

from gpuscaler.clouds.aws.api.calls import MissingPackageError
from gpuscaler.control.process import aws
from gpuscaler.control.process.running import ProcessContext, UnusableError
from gpuscaler.kube.services import with_cluster_ip
from gpuscaler.settings.clouds.aws import AwsSettings
from gpuscaler.settings.run_settings import RunSettings


@pytest.mark.parametrize(
    ("url", "address", "expected"),
    [
        ("http://aws.lab.svc:4566/x", "10.0.0.7", "http://10.0.0.7:4566/x"),
        ("http://aws.lab.svc.cluster.local", "10.0.0.7", "http://10.0.0.7"),
        ("http://aws.lab.svc:4566", "fd00::7", "http://[fd00::7]:4566"),
        # Headless, or without a ClusterIP: there is no address.
        ("http://aws.lab.svc:4566", "None", "http://aws.lab.svc:4566"),
        ("http://aws.lab.svc:4566", None, "http://aws.lab.svc:4566"),
    ],
)
async def test_the_name_of_a_service_becomes_its_address(url: str, address: str | None, expected: str) -> None:
    client, transport = make_client(answer(body={"spec": {"clusterIP": address} if address else {}}))

    assert await with_cluster_ip(client, url) == expected
    assert sent_requests(transport) == [("GET", "/api/v1/namespaces/lab/services/aws")]


@pytest.mark.parametrize(
    "url", ["", "https://aws.lab.svc", "http://127.0.0.1:4566", "http://aws.example.com", "http://svc:4566", "http://a.b.svcs"]
)
async def test_other_addresses_and_https_are_not_resolved_through_the_api_server(url: str) -> None:
    client, transport = make_client(answer(body={}))

    assert await with_cluster_ip(client, url) == url
    assert transport.requests == []


async def _make_provider(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[list[str], str]:
    """The endpoints of the calls with ``http://aws.lab.svc:4566`` in the settings, and the result of creating the provider."""
    seen: list[str] = []

    def calls(**arguments: Any) -> None:
        seen.append(arguments["endpoint_url"])
        raise MissingPackageError("no boto3 in this test")

    monkeypatch.setattr(aws, "Calls", calls)
    client, _ = make_client(*answers)
    settings = cast(RunSettings, SimpleNamespace(aws=AwsSettings(endpoint_url="http://aws.lab.svc:4566")))
    with pytest.raises(UnusableError) as ended:
        await aws.make_aws_provider(settings, cast(ProcessContext, SimpleNamespace(client=client, identity="me")))
    return seen, str(ended.value)


async def test_calls_to_an_endpoint_that_is_a_service_go_to_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, _ = await _make_provider(monkeypatch, answer(body={"spec": {"clusterIP": "10.0.0.7"}}))

    assert seen == ["http://10.0.0.7:4566"]


async def test_an_endpoint_with_a_missing_service_is_reported_with_its_settings_key(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, message = await _make_provider(monkeypatch, refusal(404, 'services "aws" not found', reason="NotFound"))

    assert seen == []
    assert message.startswith("aws.endpoint_url: saw http://aws.lab.svc:4566, and ")
    assert 'services "aws" not found' in message
