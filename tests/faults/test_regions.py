"""F64: answers of one region or account about instance types are not used for another."""

from pathlib import Path
from random import Random

import pytest
from tests.clouds.aws.accounts import CLUSTER, Aws, reasons

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.embedded.aws.hardware import instance_types

EVERYWHERE = instance_types.in_region


def only_in_us_east_1(region: str) -> tuple[InstanceType, ...]:
    return tuple(instance_type for instance_type in EVERYWHERE(region) if region == "us-east-1" or instance_type.name != "p5.48xlarge")


class Elsewhere(Calls):
    """The same account under another name, as the real one."""

    def __init__(self, aws: Aws) -> None:
        super().__init__(sleep=aws.waited.append, random=Random(0), session=aws.session)

    def endpoint(self, service: str, region: str) -> str:
        return f"https://{service}.{region}.amazonaws.com"


@pytest.mark.parametrize("first", ["ap-south-2", "us-east-1"])
def test_f64_a_type_missing_in_one_region_is_bought_in_another_whichever_is_read_first(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_types, "in_region", only_in_us_east_1)
    aws = Aws(regions=("ap-south-2", "us-east-1"))
    for region in aws.regions:
        aws.group(f"gpus-{region}", region=region, instance_type="p5.48xlarge")
    both, aws.regions = aws.regions, (first,)
    aws.discover(folder=tmp_path)
    # Data of the first region still counts when both are read.
    aws.regions = both
    discovered = aws.discover(folder=tmp_path)

    assert [aws_pool.pool.name for aws_pool in discovered.pools] == ["gpus-us-east-1"]
    assert set(reasons(discovered)) == {"gpus-ap-south-2"}


def test_f64_cached_answers_of_a_simulated_account_are_not_used_for_the_real_account(tmp_path: Path) -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    aws.discover(folder=tmp_path)
    aws.session.call_counts.clear()
    discovery = Discovery(Elsewhere(aws), Scope(CLUSTER), regions=aws.regions, now=lambda: aws.time, folder=tmp_path)
    try:
        discovery.discover()
    finally:
        discovery.close()

    assert {"DescribeInstanceTypes", "GetProducts"} <= aws.session.call_counts.keys()
