import sys
from datetime import timedelta
from random import Random

import pytest
from tests.clouds.aws.accounts import Aws, Session
from tests.embedded.aws.memory import attach

from gpuscaler.clouds.aws.api.calls import LONGEST_WAIT, TRIES, Calls, DeniedError, MissingPackageError
from gpuscaler.clouds.protocol import THROTTLED, UNAUTHORISED, UNKNOWN, CloudError
from gpuscaler.embedded.aws.serving.faults import Fault, denied, outage, throttled

READ = ("ec2", "us-east-1", "DescribeInstanceTypes")


def failure(aws: Aws, *faults: Fault) -> CloudError:
    aws.endpoint.faults.all.extend(faults)
    with pytest.raises(CloudError) as raised:
        aws.calls.read(*READ)
    return raised.value


def test_a_missing_permission_is_named_by_its_iam_action_and_not_retried() -> None:
    aws = Aws()

    error = failure(aws, denied("DescribeInstanceTypes"))

    assert isinstance(error, DeniedError)
    assert (error.action, error.region, error.cause) == ("ec2:DescribeInstanceTypes", "us-east-1", UNAUTHORISED)
    assert aws.waited == []


def test_the_permission_that_aws_names_is_reported_as_missing() -> None:
    message = (
        "You are not authorized to perform this operation. User: arn:aws:iam::1:user/u is not authorized to perform: ec2:CreateFleet on it"
    )

    error = failure(Aws(), Fault(code="UnauthorizedOperation", status=403, message=message))

    assert isinstance(error, DeniedError)
    assert error.action == "ec2:CreateFleet"


def test_invalid_credentials_are_distinguished_from_a_denied_permission() -> None:
    aws = Aws()

    error = failure(aws, Fault(code="ExpiredToken", status=403, message="The security token included in the request is expired"))

    assert (type(error), error.cause) == (CloudError, UNAUTHORISED)
    assert "ec2 in us-east-1: DescribeInstanceTypes answered ExpiredToken: The security token" in error.detail
    assert aws.waited == []


def test_an_invalid_request_is_not_retried() -> None:
    aws = Aws()

    with pytest.raises(CloudError, match=r"answered InvalidCapacityReservationId\.NotFound"):
        aws.calls.read("ec2", "us-east-1", "DescribeCapacityReservations", CapacityReservationIds=["cr-0"])

    assert aws.waited == []


@pytest.mark.parametrize("fault", [throttled(), outage(), Fault(sever="before"), Fault(sever="after")])
def test_a_temporary_failure_is_retried_with_growing_waits_up_to_a_limit(fault: Fault) -> None:
    aws = Aws()

    error = failure(aws, fault)

    assert error.cause in (THROTTLED, UNKNOWN)
    assert len(aws.waited) == TRIES - 1
    assert aws.waited == sorted(aws.waited)
    assert max(aws.waited) <= LONGEST_WAIT


@pytest.mark.parametrize("fault", [throttled(times=2), Fault(code="InternalFailure", status=500, times=2), Fault(sever="before", times=2)])
def test_a_retried_read_succeeds_once_a_temporary_failure_is_over(fault: Fault) -> None:
    aws = Aws()
    aws.endpoint.faults.all.append(fault)

    assert aws.calls.read(*READ)["InstanceTypes"]
    assert len(aws.waited) == 2


def test_a_read_with_one_try_makes_one_call() -> None:
    aws = Aws()
    aws.endpoint.faults.all.append(throttled(times=1))

    with pytest.raises(CloudError):
        aws.calls.read(*READ, tries=1)

    assert aws.session.call_counts["DescribeInstanceTypes"] == 1


def test_the_retry_after_time_of_aws_is_respected_up_to_a_limit() -> None:
    aws = Aws()

    error = failure(aws, throttled(retry_after=60))

    assert error.retry_after == 60
    assert aws.waited == [LONGEST_WAIT] * (TRIES - 1)


def test_an_unknown_region_raises_a_cloud_error() -> None:
    with pytest.raises(CloudError, match="atlantis-1"):
        Aws().calls.read("ec2", "atlantis-1", "DescribeInstanceTypes")


def test_clients_never_retry_by_themselves_and_time_out_within_seconds() -> None:
    client = Aws().calls.client("autoscaling", "us-east-1")

    assert client.meta.config.retries["total_max_attempts"] == 1
    assert (client.meta.config.connect_timeout, client.meta.config.read_timeout) == (5, 10)
    assert "gpuscaler/" in client.meta.config.user_agent_extra


def test_the_error_without_boto3_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Aws().endpoint)
    monkeypatch.setitem(sys.modules, "botocore.config", None)

    with pytest.raises(MissingPackageError, match=r"pip install '\.\[aws\]'"):
        Calls(sleep=lambda _: None, random=Random(0), session=session)


def test_times_in_replies_are_parsed_as_by_botocore() -> None:
    aws = Aws()
    aws.template("gpus", InstanceType="g5.xlarge")
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    calls = Calls(sleep=aws.waited.append, random=Random(0), endpoint_url="http://127.0.0.1:1", credentials=keys)
    attach(calls.client("ec2", "us-east-1"), aws.endpoint)

    (ours,) = calls.read("ec2", "us-east-1", "DescribeLaunchTemplates")["LaunchTemplates"]
    (theirs,) = aws.calls.read("ec2", "us-east-1", "DescribeLaunchTemplates")["LaunchTemplates"]

    assert ours["CreateTime"] == theirs["CreateTime"]
    assert ours["CreateTime"].utcoffset() == timedelta(0)


def test_an_answer_that_is_none_of_the_service_is_an_error_that_is_retried() -> None:
    aws = Aws()

    # The endpoint has no IAM, and says so in another format than IAM's.
    with pytest.raises(CloudError, match=r"iam in us-east-1: .*saw an answer that is none of AWS") as raised:
        aws.calls.read("iam", "us-east-1", "GetRole", RoleName="any")

    assert raised.value.cause == UNKNOWN
    assert len(aws.waited) == TRIES - 1


def test_denied_actions_are_remembered_with_their_region() -> None:
    aws = Aws()
    failure(aws, denied("DescribeInstanceTypes"))

    assert aws.calls.denied == {("ec2:DescribeInstanceTypes", "us-east-1")}
