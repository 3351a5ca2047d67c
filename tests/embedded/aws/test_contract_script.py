"""The script that compares a user's own account with our endpoint: it finds differences, keeps its cost limit, leaves nothing behind."""

import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from tests.embedded.aws.conftest import Aws, boto3
from tests.embedded.aws.contract import __main__ as program
from tests.embedded.aws.contract.comparing import Normalizer
from tests.embedded.aws.contract.playing import account_side, compare, cost, our_side
from tests.embedded.aws.contract.steps import FREE, PAID
from tests.embedded.aws.memory import Session
from tests.embedded.contract.comparing import Report, differences

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving.faults import denied

REGION, RUN, KIND = "us-east-1", "gpuscaler-contract-test", "t3.large"
#: An image that moto has.
IMAGE = "ami-12c6146b"
#: Steps in which moto behaves unlike AWS, or does nothing.
MOTO_DIFFERS = {
    "LaunchInstances",
    "LaunchInstances beyond the maximum",
    "LaunchInstances on spot",
    "a group with an existing name",
    "a group with a minimum above its maximum",
    "an unknown lifecycle action",
    "a lifecycle hook",
    "a lower desired capacity",
    "a token reused for another call",
    "activities of an unknown group",
    "its versions",
    "machines by desired capacity",
    "machines terminated by id",
    "more than the maximum",
    "termination of an unknown machine",
    "the group",
    "protection of an unknown machine",
}


def play(session: Any, wait: Callable[[float], None], *, paid: bool, subnet: str = "") -> tuple[Report, list[str]]:
    """Run the script in an account; returns its report and its output."""
    lines: list[str] = []
    theirs = account_side(session, REGION, run=RUN, kind=KIND, image=IMAGE, subnet=subnet, wait=wait)
    ours = our_side(REGION, run=RUN, kind=KIND, image=IMAGE)
    return compare(theirs, ours, paid=paid, tell=lines.append), lines


def play_ours(aws: Aws, *, paid: bool) -> tuple[Report, list[str]]:
    return play(Session(aws.endpoint), aws.later, paid=paid, subnet="subnet-useast1b")


def leftovers(aws: Aws) -> list[object]:
    region = aws.account.region(REGION)
    return [
        *region.templates,
        *region.groups,
        *region.queues,
        *(instance.id for instance in region.instances.values() if instance.state == "running"),
    ]


def test_the_script_finds_no_differences_in_an_equal_account_and_leaves_it_unchanged(make_aws: Callable[..., Aws]) -> None:
    aws = make_aws(Conditions(activity=5.0))
    report, lines = play_ours(aws, paid=True)
    assert report.differences == {}, lines
    assert report.steps == len(FREE) + len(PAID)
    assert (report.left, leftovers(aws)) == ([], [])


def test_free_steps_of_the_script_launch_no_instances(aws: Aws) -> None:
    report, _ = play_ours(aws, paid=False)
    assert report.steps == len(FREE)
    assert aws.account.region(REGION).instances == {}


def test_a_difference_is_reported_with_both_responses(aws: Aws) -> None:
    aws.endpoint.faults.all.append(denied("PutLifecycleHook"))
    report, lines = play_ours(aws, paid=False)
    assert set(report.differences) == {"a lifecycle hook"}
    assert "DIFFERENT a lifecycle hook" in lines
    assert any("the account" in difference and "AccessDenied" in difference for difference in report.differences["a lifecycle hook"])


def test_resources_that_cannot_be_deleted_are_named(aws: Aws) -> None:
    aws.endpoint.faults.all.append(denied("DeleteAutoScalingGroup"))
    report, lines = play_ours(aws, paid=False)
    assert any(line.startswith(f"group {RUN}:") and "AccessDenied" in line for line in report.left)
    assert any(line.startswith("STILL THERE: group") for line in lines)


def test_ids_times_accounts_and_zones_are_ignored_in_comparisons() -> None:
    left = Normalizer("111122223333", "eu-west-1").value(
        {"At": "2026-11-22T00:00:00Z", "Id": "i-0aaa", "Arn": "arn:aws:sqs:eu-west-1:111122223333:q"}
    )
    right = Normalizer("123456789012", REGION).value(
        {"At": "2026-01-01T00:00:00Z", "Id": "i-0bbb", "Arn": "arn:aws:sqs:us-east-1:123456789012:q"}
    )
    assert list(differences(left, right)) == []
    lines = list(differences({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 4}], "d": 5}))
    assert lines == ["a[1].b: the account says 2, ours says 4", "c: only the account has it: 3", "d: only ours has it: 5"]


@pytest.fixture
def empty_moto(moto: str) -> Iterator[str]:
    with urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST"), timeout=20):
        yield moto


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials and a region, as in a user's shell."""
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("REGION", REGION), ("DEFAULT_REGION", REGION)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return monkeypatch


@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed: make setup")
def test_the_script_runs_on_motos_server_and_leaves_nothing_there(empty_moto: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ENDPOINT_URL", empty_moto)
    session = boto3.session.Session()
    report, lines = play(session, lambda _seconds: None, paid=True)
    assert report.steps == len(FREE) + len(PAID), lines
    assert set(report.differences) == MOTO_DIFFERS, lines
    assert report.left == []
    scaling, ec2, sqs = (session.client(name) for name in ("autoscaling", "ec2", "sqs"))
    assert scaling.describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert "QueueUrls" not in sqs.list_queues()
    for client in (scaling, ec2, sqs):
        client.close()


@pytest.mark.skipif(find_spec("moto") is None, reason="moto is not installed: make setup")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--account", ""], "saw no account, expected its number"),
        (["--account", "999999999999"], "saw credentials of account 123456789012, expected those of 999999999999"),
        (["--account", "123456789012", "--dollars", "0.01"], "t3.large in us-east-1 may cost $0.08, and --dollars allows $0.01"),
        (["--account", "123456789012", "--type", "x9.huge", "--dollars", "5"], "may cost $inf"),
    ],
)
def test_the_script_stops_at_the_wrong_account_or_a_low_cost_limit_before_it_creates_anything(
    empty_moto: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    environment.setenv("AWS_ENDPOINT_URL", empty_moto)
    assert program.main(arguments) == 2
    assert says in capsys.readouterr().err


def test_without_a_region_the_error_says_what_to_set(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        environment.delenv(name)
    environment.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert program.main(["--account", "1"]) == 2
    assert "saw no region, expected one; set AWS_REGION" in capsys.readouterr().err


def test_the_error_names_an_account_that_does_not_respond(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert program.main(["--account", "123456789012"]) == 3
    assert "the account cannot be read" in capsys.readouterr().err


def test_the_documented_cost_limit_is_that_of_the_most_expensive_run() -> None:
    assert cost(KIND, REGION) == pytest.approx(2 * 0.5 * 0.0832)
