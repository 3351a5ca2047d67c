import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuscaler.cli.generate import generate
from gpuscaler.clouds.aws.discovery import iam

QUEUE = "arn:aws:sqs:eu-west-1:123456789012:notices"
ROLE = "arn:aws:iam::123456789012:role/nodes"


def statements(*options: str) -> dict[str, Any]:
    done = CliRunner().invoke(generate, ["iam", "--cluster", "prod.example.com", *options])
    assert done.exit_code == 0, done.output
    return {load["Sid"]: load for load in json.loads(done.stdout)["Statement"]}


def test_every_change_of_a_group_is_restricted_to_the_clusters_tag() -> None:
    changing = statements()["ChangeGroupsOfTheCluster"]

    assert changing["Condition"] == {"StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/prod.example.com": "owned"}}
    assert set(iam.CHANGE) == set(changing["Action"])


def test_only_reading_is_allowed_on_all_resources_without_a_condition() -> None:
    for statement in statements("--queue", QUEUE, "--node-role", ROLE).values():
        reads = all(action.partition(":")[2].startswith(("Describe", "Get")) for action in statement["Action"])
        assert reads or "Condition" in statement or statement["Resource"] != "*", statement
        assert not any("*" in action for action in statement["Action"])


def test_machines_are_launched_only_through_auto_scaling() -> None:
    made = statements("--queue", QUEUE, "--node-role", ROLE)

    assert made["LaunchThroughGroups"]["Condition"] == {"Bool": {"aws:ViaAWSService": "true"}}
    assert {name for name, statement in made.items() if set(iam.LAUNCH) & set(statement["Action"])} == {"LaunchThroughGroups"}


def test_every_permission_of_the_policy_is_used_by_a_call() -> None:
    source = "".join(file.read_text() for file in Path(iam.__file__).parents[1].rglob("*.py") if file.name != "iam.py")

    actions = (*iam.READ, *iam.PRICES, *iam.DOCTOR, *iam.CHANGE, *iam.QUEUE)
    # DeleteMessageBatch needs the permission of DeleteMessage.
    assert [action for action in actions if f'"{action.partition(":")[2]}' not in source] == []


def test_the_queue_and_the_role_of_nodes_are_named_exactly() -> None:
    made = statements("--queue", QUEUE, "--node-role", ROLE)

    assert made["ReadNotices"]["Resource"] == QUEUE
    assert made["PassTheRoleOfNodes"]["Resource"] == ROLE
    assert made["PassTheRoleOfNodes"]["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


def test_a_read_only_policy_allows_no_change() -> None:
    made = statements("--read-only")
    assert set(made) == {"Read", "ReadNodeGroups", "ReadForDoctor"}
    verbs = ("Describe", "Get", "List", "Lookup", "Simulate")
    assert all(action.partition(":")[2].startswith(verbs) for statement in made.values() for action in statement["Action"])


def test_resource_names_have_the_partition_of_the_account() -> None:
    made = statements("--partition", "aws-cn", "--node-role", ROLE.replace("aws", "aws-cn"))

    assert made["ReadNodeGroups"]["Resource"] == "arn:aws-cn:eks:*:*:nodegroup/prod.example.com/*/*"
    assert made["PassTheRoleOfNodes"]["Condition"]["StringEquals"]["iam:PassedToService"] == "ec2.amazonaws.com.cn"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cluster", "*"], "expected letters, digits"),
        (["--cluster", ""], "expected letters, digits"),
        (["--cluster", "a", "--queue", "notices"], "expected an ARN such as arn:aws:sqs"),
        (["--cluster", "a", "--queue", ROLE], "expected an ARN such as arn:aws:sqs"),
        (["--cluster", "a", "--node-role", "arn:aws:iam::123456789012:role/*"], "expected an ARN such as arn:aws:iam"),
    ],
)
def test_input_that_would_add_permissions_to_the_policy_is_refused(options: list[str], says: str) -> None:
    done = CliRunner().invoke(generate, ["iam", *options])

    assert done.exit_code == 2
    assert says in done.output
