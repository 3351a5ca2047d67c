import msgspec
import pytest

from gpuscaler import catalogue
from gpuscaler.clouds.aws.api.groups import Group, MarketShares, TemplateRef
from gpuscaler.clouds.aws.discovery.findings import findings_of
from gpuscaler.clouds.aws.discovery.pools import LaunchOption, choose_way_to_buy
from gpuscaler.clouds.aws.templates.launches import Launch
from gpuscaler.clouds.aws.templates.nodegroups import Nodegroup
from gpuscaler.model.taints import Taint

GOOD = Group(
    "gpus", "us-east-1", "", {}, 0, 5, 2, ("us-east-1a", "us-east-1b"),
    template=TemplateRef("lt-1", "gpus", "1"), suspended=("AZRebalance",), protected=True,
)  # fmt: skip
OPTION = LaunchOption("g5.xlarge", 1, Launch(instance_type="g5.xlarge", arriving=True))
KEEPING = msgspec.structs.replace(OPTION.launch, source="launch template gpus (version 3)", kept_disks=("/dev/xvdf", "/dev/xvdg"))
TYPES = {instance_type.name: instance_type for instance_type in catalogue.types("aws")}


def findings(group: Group = GOOD, *options: LaunchOption) -> tuple[str, ...]:
    return findings_of(group, options or (OPTION,), TYPES)


def test_a_group_suitable_for_an_autoscaler_has_no_findings() -> None:
    assert findings() == ()
    assert findings(msgspec.structs.replace(GOOD, zones=("us-east-1a",), suspended=())) == ()


def test_capacity_rebalance_of_a_managed_node_group_is_no_warning_because_eks_sets_it() -> None:
    group = msgspec.structs.replace(GOOD, zones=("us-east-1a",), capacity_rebalance=True, tags={"eks:nodegroup-name": "gpus"})
    assert findings(group) == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"suspended": ("AZRebalance", "Launch")}, "Launch is suspended, so no machine is ever launched"),
        ({"suspended": ("AZRebalance", "Terminate")}, "Terminate is suspended"),
        ({"suspended": ()}, "AZRebalance ends machines with running pods"),
        ({"tags": {"eks:nodegroup-name": "gpus"}}, "even if AZRebalance is suspended; make a node group for each zone"),
        ({"operator": "eks.amazonaws.com"}, "only eks.amazonaws.com may change the group"),
        ({"capacity_rebalance": True}, "CapacityRebalance replaces machines"),
        ({"protected": False}, "not protected from scale-in"),
        ({"lifetime": 604_800}, "replaced after 7 days (MaxInstanceLifetime)"),
        ({"warm_pool": True}, "has a warm pool"),
        ({"desired": 9}, "its desired capacity 9 is outside of 0 to 5"),
        ({"shares": MarketShares(on_demand=0, spot_strategy="lowest-price")}, "lowest-price gets the machines that are interrupted most"),
        ({"shares": MarketShares(base=1, on_demand=0)}, "first 1 on demand, then 0 % of the rest"),
        ({"shares": MarketShares(on_demand=0, spot_max_price=0.3)}, "maximum spot price is $0.3"),
    ],
)
def test_a_setting_that_conflicts_with_an_autoscaler_is_reported_in_one_sentence(change: dict[str, object], expected: str) -> None:
    (sentence,) = findings(msgspec.structs.replace(GOOD, **change))

    assert expected in sentence


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            (LaunchOption("g5.xlarge", 1, Launch(unusable="invalid taint")),),
            "no kubelet starts with the user data of its launch template: invalid",
        ),
        ((LaunchOption("g5.xlarge", 1, Launch()),), "does not register nodes with the taint gpuscaler.io/arriving:NoSchedule"),
        ((LaunchOption("g5.xlarge", 1, Launch(arriving=True, outdated=True)),), "which is outdated"),
        ((OPTION, LaunchOption("g5.12xlarge", 1, OPTION.launch)), "its types have 1, 4 GPUs"),
        ((OPTION, LaunchOption("g5.2xlarge", 2, OPTION.launch)), "count as 1, 2 units"),
        ((LaunchOption("g5.xlarge", 1, Launch(arriving=True, spot_max_price=0.2)),), "maximum spot price is $0.2"),
        ((LaunchOption("g5.xlarge", 1, Launch(arriving=True, reservation_groups=("arn",))),), "targets a group of capacity reservations"),
        (
            (LaunchOption("g5.xlarge", 1, KEEPING), LaunchOption("g6.xlarge", 1, KEEPING)),
            "its launch template gpus (version 3) has DeleteOnTermination false for /dev/xvdf, /dev/xvdg: each ended machine leaves",
        ),
        (
            (LaunchOption("g5.xlarge", 1, msgspec.structs.replace(KEEPING, kept_disks=(), undecided_disks=("/dev/xvdh",))),),
            "its launch template gpus (version 3) does not give DeleteOnTermination for /dev/xvdh: each ended machine may leave",
        ),
    ],
)
def test_a_problem_of_a_groups_machines_is_reported_in_one_sentence(options: tuple[LaunchOption, ...], expected: str) -> None:
    (sentence,) = findings(GOOD, *options)

    assert expected in sentence


@pytest.mark.parametrize(
    ("change", "setting", "way"),
    [
        ({}, "auto", "launch-instances"),
        ({}, "desired-capacity", "desired-capacity"),
        ({}, "fleet", "fleet"),
        ({"shares": MarketShares(on_demand=0)}, "auto", "launch-instances"),
        ({"shares": MarketShares(on_demand=50)}, "auto", "desired-capacity"),
        ({"shares": MarketShares(on_demand=50)}, "launch-instances", "desired-capacity"),
        ({"template": None, "configuration": "old"}, "auto", "desired-capacity"),
        ({"template": None, "configuration": "old"}, "fleet", "desired-capacity"),
    ],
)
def test_machines_are_bought_by_the_best_api_that_a_group_allows(change: dict[str, object], setting: str, way: str) -> None:
    assert choose_way_to_buy(msgspec.structs.replace(GOOD, **change), setting) == way


def test_a_kubelet_configuration_file_is_ignored_if_the_node_group_has_taints() -> None:
    option = LaunchOption("g5.xlarge", 1, Launch(instance_type="g5.xlarge", arriving=True, taints=None))
    ours, gpu = Taint("gpuscaler.io/arriving"), Taint("nvidia.com/gpu", "true")
    for taints, count in (((), 0), ((gpu,), 1), ((gpu, ours), 0)):
        sentences = findings_of(GOOD, (option,), TYPES, Nodegroup("gpus", taints=taints))
        assert len([text for text in sentences if "does not register nodes with the taint" in text]) == count
