import base64
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.clouds.aws.api.groups import GroupError, MarketShares, group_of, tags_of
from gpuscaler.clouds.aws.prices.reservations import reservations_of
from gpuscaler.clouds.aws.templates.launches import launch_of
from gpuscaler.clouds.aws.templates.nodegroups import nodegroup_of
from gpuscaler.model.taints import Taint

SMALLEST: dict[str, Any] = {"AutoScalingGroupName": "a", "MinSize": 0, "MaxSize": 5, "DesiredCapacity": 2}


def test_only_running_or_starting_machines_are_counted_as_present_in_a_group() -> None:
    states = ("Pending", "Pending:Wait", "InService", "Terminating:Wait", "Standby", "Warmed:Stopped", "Quarantined", "Teleporting")
    machines = [{"InstanceId": f"i-{place}", "LifecycleState": state} for place, state in enumerate(states)]

    group = group_of({**SMALLEST, "Instances": machines}, "us-east-1")

    assert group.present_count == 3
    assert len(group.machines) == len(states)


@pytest.mark.parametrize(
    ("shares", "markets"),
    [
        (MarketShares(), ("on-demand",)),
        (MarketShares(base=3, on_demand=100), ("on-demand",)),
        (MarketShares(base=0, on_demand=0), ("spot",)),
        (MarketShares(base=1, on_demand=0), ("spot", "on-demand")),
        (MarketShares(base=0, on_demand=50), ("spot", "on-demand")),
    ],
)
def test_the_shares_of_a_mixed_group_determine_its_markets(shares: MarketShares, markets: tuple[str, ...]) -> None:
    assert shares.markets == markets


def test_a_mixed_group_without_a_distribution_is_on_demand() -> None:
    launch = {"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1"}, "Overrides": [{"InstanceType": "g5.xlarge"}]}

    group = group_of({**SMALLEST, "MixedInstancesPolicy": {"LaunchTemplate": launch}}, "us-east-1")

    assert group.shares == MarketShares()
    assert group.template is not None
    assert group.template.version == "$Default"


@pytest.mark.parametrize(
    "odd", [{"MinSize": None}, {"MaxSize": "many"}, {"Instances": [{}]}, {"Instances": [5]}, {"SuspendedProcesses": [{}]}]
)
def test_a_malformed_group_raises_an_error_with_the_reason(odd: dict[str, Any]) -> None:
    with pytest.raises(GroupError, match="expected a group as DescribeAutoScalingGroups gives it"):
        group_of({**SMALLEST, **odd}, "us-east-1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


@given(st.dictionaries(st.sampled_from(["Instances", "Tags", "MixedInstancesPolicy", "LaunchTemplate", "MinSize", "Operator"]), JSON))
def test_any_describe_reply_is_parsed_or_raises_a_group_error(odd: dict[str, Any]) -> None:
    assert isinstance(tags_of(odd), dict)
    with suppress(GroupError):
        assert group_of({**SMALLEST, **odd}, "us-east-1").name == "a"


def test_tags_that_are_not_strings_are_left_out() -> None:
    assert tags_of({"Tags": [{"Key": "a", "Value": "b"}, {"Key": None, "Value": "c"}, {"Key": "d"}]}) == {"a": "b", "d": ""}


def test_user_data_with_our_taint_marks_the_nodes_of_a_group_as_registering_closed() -> None:
    def arriving(text: str) -> bool:
        return launch_of({"UserData": base64.b64encode(text.encode()).decode()}).arriving

    assert arriving("kubelet --register-with-taints=gpuscaler.io/arriving=:NoSchedule")
    assert not arriving("kubelet --register-with-taints=other=:NoSchedule")
    assert not launch_of({"UserData": "not base64 ☃"}).arriving


def test_invalid_labels_and_taints_of_a_node_group_are_left_out() -> None:
    taints = [
        {"key": "gpu", "value": "true", "effect": "NO_EXECUTE"},
        {"key": "a b", "effect": "NO_SCHEDULE"},
        {"key": "c", "effect": "NEVER"},
    ]

    nodegroup = nodegroup_of({"nodegroupName": "gpu", "labels": {"team": "ml", "a b": "c", "d": "two words"}, "taints": taints})

    assert nodegroup.labels == {"eks.amazonaws.com/nodegroup": "gpu", "team": "ml"}
    assert nodegroup.taints == (Taint("gpu", "true", "NoExecute"),)


def test_an_unreadable_reservation_is_left_out() -> None:
    good = {"CapacityReservationId": "cr-1", "InstanceType": "p5.48xlarge", "AvailabilityZone": "a", "AvailableInstanceCount": 2}

    reservations = reservations_of(
        [{}, good | {"State": "active"}, good | {"CapacityReservationId": "cr-2", "State": "expired"}, {"EndDate": 5}]
    )

    assert [reservation.is_usable(0.0) for reservation in reservations.values()] == [True, False]
