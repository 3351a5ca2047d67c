"""Faults of calls: throttling, missing permissions, outages, broken connections; and the control path that requests them."""

import asyncio
import json
import time
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError
from tests.embedded.aws.conftest import MODELS, Aws, plain_client
from tests.embedded.aws.making import activity_messages, code, group_of, instance_ids, make_group

from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.serving.endpoint import Endpoint
from gpuscaler.embedded.aws.serving.faults import Fault, denied, outage, throttled
from gpuscaler.embedded.aws.serving.server import serve


def test_throttling_errors_have_the_code_of_each_service_and_optionally_a_retry_time(aws: Aws) -> None:
    aws.endpoint.faults.all.append(throttled("Describe*", retry_after=7, times=2))
    with pytest.raises(ClientError) as refused:
        aws.client("autoscaling").describe_auto_scaling_groups()
    assert code(refused) == "Throttling"
    assert refused.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"
    with pytest.raises(ClientError) as refused:
        aws.client("ec2").describe_subnets()
    assert code(refused) == "RequestLimitExceeded"
    assert aws.client("ec2").describe_subnets()["Subnets"]
    assert aws.endpoint.calls["ec2", "DescribeSubnets", "RequestLimitExceeded"] == 1


def test_an_access_denied_error_names_the_missing_action(aws: Aws) -> None:
    scaling = make_group(aws)
    aws.endpoint.faults.all += [denied("SetDesiredCapacity"), denied("DescribeSpotPriceHistory")]
    with pytest.raises(ClientError, match="is not authorized to perform: autoscaling:SetDesiredCapacity") as refused:
        scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=1)
    assert code(refused) == "AccessDenied"
    with pytest.raises(ClientError, match="ec2:DescribeSpotPriceHistory") as refused:
        aws.client("ec2").describe_spot_price_history()
    assert code(refused) == "UnauthorizedOperation"


def test_an_outage_can_affect_a_single_region(make_aws: Any) -> None:
    aws = make_aws(regions=("us-east-1", "eu-west-1"))
    aws.endpoint.faults.all.append(outage("autoscaling", region="eu-west-1"))
    with pytest.raises(ClientError) as refused:
        aws.client("autoscaling", "eu-west-1").describe_auto_scaling_groups()
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert aws.client("autoscaling", "us-east-1").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert aws.client("ec2", "eu-west-1").describe_subnets()["Subnets"]


@pytest.mark.parametrize(("sever", "took_effect"), [("before", 0), ("after", 2)])
def test_a_call_whose_connection_broke_may_have_taken_effect(aws: Aws, sever: Any, took_effect: int) -> None:
    scaling = make_group(aws)
    aws.endpoint.faults.all.append(Fault(operation="LaunchInstances", sever=sever, times=1))
    asked = {"AutoScalingGroupName": "gpus", "RequestedCapacity": 2, "ClientToken": "once"}
    with pytest.raises(ConnectionClosedError):
        scaling.launch_instances(**asked)
    assert len(instance_ids(scaling)) == took_effect
    scaling.launch_instances(**asked)
    assert (len(instance_ids(scaling)), group_of(scaling)["DesiredCapacity"]) == (2, 2)


async def test_faults_and_capacity_are_set_over_http_and_delays_are_kept() -> None:
    endpoint = Endpoint(Account(now=time.time), MODELS)
    serving = await serve(endpoint)

    def control(method: str, what: str, body: dict[str, Any] | None = None) -> Any:
        asked = urllib.request.Request(f"{serving.url}/_control/{what}", json.dumps(body or {}).encode(), method=method)
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return json.load(answer)

    def ask() -> None:
        client = plain_client("ec2", serving.url)
        try:
            control("PUT", "faults", {"operation": "DescribeSubnets", "delay": 0.3, "times": 1})
            began = time.monotonic()
            client.describe_subnets()
            assert time.monotonic() - began >= 0.3
            control("PUT", "faults", {"operation": "DescribeSubnets", "code": "Throttling"})
            with pytest.raises(ClientError):
                client.describe_subnets()
            assert control("DELETE", "faults") == []
            assert len(client.describe_subnets()["Subnets"]) == 3
            capacity = control("PUT", "capacity", {"market": "spot", "zone": "us-east-1a", "machines": 0})
            assert capacity == {"us-east-1": [{"market": "spot", "instance_type": "", "zone": "us-east-1a", "machines": 0}]}
            assert control("PUT", "troubles", {"code": "Unsupported", "times": 1})["us-east-1"][0]["code"] == "Unsupported"
            assert control("PUT", "conditions", {"spelling": "guide", "ebs_csi": False})["us-east-1"]["spelling"] == "guide"
            assert control("DELETE", "conditions")["us-east-1"]["spelling"] == "reference"
            with pytest.raises(urllib.error.HTTPError) as refused:
                control("PUT", "conditions", {"boot": "1s"})
            assert (refused.value.code, b"spelling" in refused.value.read()) == (400, True)
            refused.value.close()
            with pytest.raises(urllib.error.HTTPError) as refused:
                control("PUT", "faults", {"operations": "typo"})
            assert (refused.value.code, b"operations" in refused.value.read()) == (400, True)
            refused.value.close()
        finally:
            client.close()

    try:
        await asyncio.to_thread(ask)
    finally:
        await serving.close()


async def test_a_long_poll_returns_when_a_message_arrives() -> None:
    account = Account(now=time.time)
    serving = await serve(Endpoint(account, MODELS))
    made, loop = asyncio.Event(), asyncio.get_running_loop()

    def ask() -> float:
        client = plain_client("sqs", serving.url)
        try:
            url = client.create_queue(QueueName="jobs")["QueueUrl"]
            loop.call_soon_threadsafe(made.set)
            began = time.monotonic()
            assert "Messages" not in client.receive_message(QueueUrl=url, WaitTimeSeconds=0)
            (message,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
            assert message["Body"] == "late"
            return time.monotonic() - began
        finally:
            client.close()

    try:
        asking = asyncio.create_task(asyncio.to_thread(ask))
        await asyncio.wait_for(made.wait(), 10)
        await asyncio.sleep(0.3)
        account.region("us-east-1").queues["jobs"].send("late", ident="m-1", now=time.time())
        assert await asking < 15
    finally:
        await serving.close()


def test_an_unsigned_or_invalid_request_is_refused(aws: Aws) -> None:
    from gpuscaler.embedded.aws.wire.reading import Request

    assert aws.endpoint.handle(Request("POST", "/", {}, b"Action=DescribeTags")).status == 403
    scope = "AWS4-HMAC-SHA256 Credential=x/20260921/us-east-1/{}/aws4_request"

    def post(service: str, body: bytes) -> tuple[int, bytes]:
        answer = aws.endpoint.handle(Request("POST", "/", {"authorization": scope.format(service)}, body))
        return answer.status, answer.body

    for service, body, words in (
        ("s3", b"", b"expected one of autoscaling"),
        ("autoscaling", b"Action=Nothing", b"InvalidAction"),
        ("autoscaling", b"Action=DescribeTags&MaxRecords=many", b"MalformedInput"),
        ("autoscaling", b"Action=DescribeTags&Wrong=1", b"Wrong is not recognized"),
        ("autoscaling", b"Action=SetDesiredCapacity&AutoScalingGroupName=x", b"DesiredCapacity"),
        ("autoscaling", b"Action=DescribeTags&Filters.member.x.Name=1", b"MalformedQueryString"),
    ):
        status, text = post(service, body)
        assert status in {400, 404}
        assert words in text


def test_listing_activities_of_an_unknown_group_is_an_error(aws: Aws) -> None:
    make_group(aws)
    with pytest.raises(ClientError, match="AutoScalingGroup name not found"):
        activity_messages(aws.client("autoscaling"), "none")
