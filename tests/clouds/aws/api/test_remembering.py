"""Answers of one region or endpoint are not applied to another."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from tests.clouds.aws.accounts import BEGAN, Aws, reasons

from gpuscaler.catalogue import InstanceType
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.api.groups import Group, TypeChoice
from gpuscaler.clouds.aws.api.remembering import AnswerCache, load_cache, save_cache
from gpuscaler.clouds.aws.discovery.discovery import Discovery
from gpuscaler.clouds.aws.discovery.regions import RegionReader, Scope
from gpuscaler.embedded.aws.hardware import instance_types

KIND = {
    "InstanceType": "p5.48xlarge",
    "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
    "VCpuInfo": {"DefaultVCpus": 192},
    "MemoryInfo": {"SizeInMiB": 2097152},
}


class OneRegionHasIt:
    """Calls to an account in which only us-east-1 has p5.48xlarge."""

    def pages(self, _service: str, region: str, operation: str, _key: str, **_ask: Any) -> Iterator[Any]:
        return iter([KIND] if operation == "DescribeInstanceTypes" and region == "us-east-1" else [])

    def read(self, *_what: Any, **_more: Any) -> dict[str, Any]:
        return {}


def group(region: str) -> Group:
    return Group("gpus", region, "", {}, 0, 1, 0, (f"{region}a",), choices=(TypeChoice("p5.48xlarge"),))


@pytest.mark.parametrize("first", ["ap-south-2", "us-east-1"])
def test_a_type_missing_in_one_region_is_still_found_in_another(first: str) -> None:
    cache, calls, offered = AnswerCache(), cast(Calls, OneRegionHasIt()), {}
    regions = sorted(["ap-south-2", "us-east-1"], key=lambda name: name != first)
    with ThreadPoolExecutor(1) as workers:
        for region in (*regions, *regions):
            reader = RegionReader(region, calls, cache, workers=workers, now=lambda: BEGAN)
            offered[region] = sorted(reader.read_region_data([group(region)], "research").types)

    assert offered == {"ap-south-2": [], "us-east-1": ["p5.48xlarge"]}


@pytest.mark.parametrize("regions", [("us-west-2", "us-east-1"), ("us-east-1", "us-west-2")])
def test_of_two_groups_only_the_one_in_a_region_that_has_its_type_is_a_pool(
    regions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = instance_types.in_region

    def in_region(region: str) -> tuple[InstanceType, ...]:
        return tuple(instance_type for instance_type in everywhere(region) if region == "us-east-1" or instance_type.name != "g5.xlarge")

    monkeypatch.setattr(instance_types, "in_region", in_region)
    aws = Aws(regions=regions)
    for region in regions:
        aws.group(f"gpus-{region}", region=region, instance_type="g5.xlarge")

    discovered = aws.discover()

    assert [aws_pool.pool.name for aws_pool in discovered.pools] == ["gpus-us-east-1"]
    assert "region us-west-2 does not offer type g5.xlarge; the type is not used there" in reasons(discovered)["gpus-us-west-2"]


def test_cached_replies_of_a_simulated_account_are_not_used_for_the_real_one(tmp_path: Path) -> None:
    aws = Aws()
    aws.group("gpus", instance_type="g5.xlarge")
    aws.discover(folder=tmp_path)
    aws.session.call_counts.clear()

    class Elsewhere(Calls):
        def endpoint(self, service: str, region: str) -> str:
            return f"https://{service}.{region}.amazonaws.com"

    calls = Elsewhere(sleep=aws.waited.append, random=Random(0), session=aws.session)
    discovery = Discovery(calls, Scope("research"), regions=aws.regions, now=lambda: aws.time, folder=tmp_path)
    discovery.discover()
    discovery.close()

    assert {"DescribeInstanceTypes", "GetProducts"} <= aws.session.call_counts.keys()
    assert len(list(tmp_path.iterdir())) == 2


def test_each_endpoint_has_its_own_cache_file(tmp_path: Path) -> None:
    save_cache(AnswerCache(prices={}), tmp_path, "http://127.0.0.1:4566")
    save_cache(AnswerCache(types={}), tmp_path, "https://ec2..amazonaws.com")

    assert len(list(tmp_path.iterdir())) == 2
    assert load_cache(tmp_path, "http://127.0.0.1:9999") == AnswerCache()
