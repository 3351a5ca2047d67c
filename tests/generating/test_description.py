"""Reading of descriptions: what follows from them, and every mistake with its place and what to do."""

import pytest

from gpuscaler.generating.description.reading import read_description
from gpuscaler.settings import SettingsError

SMALLEST = """
cloud: aws
cluster: {name: research, region: us-east-1}
gpu_pools:
- {name: train, types: [g5.xlarge]}
"""


def test_a_group_for_each_type_market_and_zone() -> None:
    description = read_description(SMALLEST)
    assert [(group.name, group.market, group.zone) for group in description.groups] == [
        ("train-spot-a", "spot", "us-east-1a"),
        ("train-spot-b", "spot", "us-east-1b"),
        ("train-on-demand-a", "on-demand", "us-east-1a"),
        ("train-on-demand-b", "on-demand", "us-east-1b"),
    ]


def test_gpus_and_memory_choose_the_cheapest_type_of_each_gpu_model() -> None:
    description = read_description(SMALLEST.replace("types: [g5.xlarge]", "gpus: 1, gpu_memory: 24G, zones: [us-east-1a], markets: [spot]"))
    types = [group.instance_type for group in description.groups]
    assert {"g6.xlarge", "g5.xlarge"} <= {type_.name for type_ in types}
    assert len({type_.gpu_product for type_ in types}) == len(types)
    assert all(type_.gpus == 1 and type_.gpu_memory_mib >= 22_888 for type_ in types)
    assert "the cheapest of each GPU model are used: g6.xlarge, g5.xlarge" in description.notes[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cloud: aws", "cloud: aws\ntool: helm", "one of eksctl, kops, terraform"),
        ("cloud: aws", "cloud: azure", "expected a region of azure"),
        ("cloud: aws", "cloud: aws\ntool: kops", "includes its domain"),
        ("types: [g5.xlarge]", "types: [g5.xlrage]", "did you mean g5.xlarge?"),
        ("types: [g5.xlarge]", "types: [m6i.large]", "with 0 GPUs on aws, expected an instance type of aws with GPUs"),
        ("types: [g5.xlarge]", "types: [g5.xlarge], gpus: 1", "expected one way to choose"),
        ("types: [g5.xlarge]", "max: 3", "add types: […], or gpus: N"),
        ("types: [g5.xlarge]", "gpus: 3", "saw 3 GPUs, for which no type is known in us-east-1"),
        ("types: [g5.xlarge]", "types: [g5.xlarge], zones: [us-west-2a]", "expected a zone of us-east-1"),
        ("types: [g5.xlarge]", "types: [g5.xlarge], teams: [vision]", 'saw team "vision", expected one of teams'),
        ("types: [g5.xlarge]", "types: [g5.xlarge], min: 11", "saw min 11 above max 10"),
        ("- {name: train", "- {name: train, types: [g5.xlarge]}\n- {name: train", 'saw the name "train" a second time'),
        ("name: research", "nme: research", "did you mean name?"),
        ("gpu_pools:\n- {name: train, types: [g5.xlarge]}", "gpu_pools: []", "at least one pool"),
    ],
)
def test_mistakes_are_named(old: str, new: str, message: str) -> None:
    with pytest.raises(SettingsError, match=r"^") as caught:
        read_description(SMALLEST.replace(old, new))
    assert message in str(caught.value)
    assert all(problem.line for problem in caught.value.problems)


@pytest.mark.parametrize("text", ["", "- a", "a: [", "cloud: aws", "cloud: {aws: 1}\ncluster: 3\ngpu_pools: {a: b}", "&a [*a]"])
def test_odd_files_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        read_description(text)
