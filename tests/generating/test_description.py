"""Reading of descriptions: what follows from them, and every mistake with its place and what to do."""

import re

import pytest

from gpuscaler import catalogue
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


AZURE = """
cloud: azure
cluster: {name: research, region: eastus, zones: ["1", "2"]}
gpu_pools:
- {name: train, types: [Standard_NC24ads_A100_v4], zones: ["1"]}
"""


def test_names_of_agent_pools_have_twelve_letters_and_digits() -> None:
    def names(pool: str, types: str = "[Standard_NC24ads_A100_v4]", zones: str = ', zones: ["1"]') -> list[str]:
        text = AZURE.replace("train, types: [Standard_NC24ads_A100_v4]", f"{pool}, types: {types}").replace(', zones: ["1"]}', f"{zones}}}")
        return [group.name for group in read_description(text).groups]

    assert names("train") == ["trainspot1", "trainod1"]
    assert names("train", zones="") == ["trainspot1", "trainspot2", "trainod1", "trainod2"]
    assert names("training-a100") == ["traa100spot1", "traa100od1"]
    assert names("4gpus") == ["p4gpusspot1", "p4gpusod1"]
    two = "[Standard_NC24ads_A100_v4, Standard_NC4as_T4_v3]"
    assert names("interactive", two) == ["intera1spot1", "intera1od1", "intera2spot1", "intera2od1"]
    for name in [*names("a-very-long-name-of-a-pool-that-has-many-words"), *names("x", two), *names("training-with-a100-and-t4", two)]:
        assert re.fullmatch("[a-z][a-z0-9]{0,11}", name)


def test_the_pool_keeps_its_name_on_azure() -> None:
    assert {group.pool for group in read_description(AZURE.replace("train,", "training-a100,")).groups} == {"training-a100"}


def test_pools_whose_agent_pools_would_have_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="expected names that differ when shortened; rename one") as caught:
        read_description(AZURE.replace("train,", "a-b,") + "- {name: ab, types: [Standard_NC4as_T4_v3]}\n")
    assert "gpu_pools[1].name" in str(caught.value)
    assert 'the pools "a-b" and "ab"' in str(caught.value)


def test_an_agent_pool_has_at_most_a_thousand_machines() -> None:
    with pytest.raises(SettingsError, match="saw the number 1001, expected at most 1000 machines in an agent pool of AKS"):
        read_description(AZURE.replace('zones: ["1"]}', 'zones: ["1"], max: 1001}'))


def test_aks_has_fewer_pools_and_other_names_of_clusters() -> None:
    types = ", ".join(type_.name for type_ in catalogue.types("azure") if type_.gpus)
    with pytest.raises(SettingsError, match="expected at most 98; name fewer types"):
        read_description(AZURE.replace("[Standard_NC24ads_A100_v4]", f"[{types}]").replace('zones: ["1"]}', 'zones: ["1", "2", "3"]}'))
    with pytest.raises(SettingsError, match="the name of an AKS cluster"):
        read_description(AZURE.replace("name: research", "name: research.example.com"))


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
        ("gpu_pools:", "teams: [{name: a, namespace: gpuscaler}]\ngpu_pools:", "saw the namespace gpuscaler, which is that of gpuscaler"),
        ("gpu_pools:", "teams: [{name: kube-a}]\ngpu_pools:", "saw the namespace kube-a, which is that of Kubernetes"),
        ("gpu_pools:", "teams: [{name: default}]\ngpu_pools:", "saw the namespace default, which is that of Kubernetes"),
        ("gpu_pools:", "controller: {namespace: kube-system}\ngpu_pools:", "expected a namespace for gpuscaler alone"),
        ("gpu_pools:", "controller: {namespace: kube-public}\ngpu_pools:", "expected a namespace for gpuscaler alone"),
        ("gpu_pools:", "controller: {namespace: default}\ngpu_pools:", "which refuses network plugins"),
        ("gpu_pools:", "controller: {image: 'system:masters'}\ngpu_pools:", "an image without its tag"),
        ("gpu_pools:", "controller: {image: 'registry.example.com:5000/a:1'}\ngpu_pools:", "an image without its tag"),
        ("gpu_pools:", "prometheus: http://p..svc\ngpu_pools:", "expected the URL of Prometheus"),
        ("gpu_pools:", 'prometheus: "http://p.\'.svc"\ngpu_pools:', "expected the URL of Prometheus"),
        ("gpu_pools:", 'prometheus: "http://p.svc/\\e]0;"\ngpu_pools:', "expected the URL of Prometheus"),
        *(
            ("gpu_pools:", f'teams: [{{name: a, group: "g{mark}- {{name: mallory}}"}}]\ngpu_pools:', "one line of printable characters")
            for mark in ("\\n", "\\r", "\\N", "\\L", "\\P", "\\a", "\\u202e")
        ),
        ("gpu_pools:", "teams: [{name: a}, {name: b, namespace: a}]\ngpu_pools:", "saw the namespace a, which is that of the team a"),
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


def test_names_in_other_scripts_and_registries_with_ports_are_taken() -> None:
    more = (
        "teams: [{name: a, group: 'Équipe 研究 <a@example.com>'}]\ncontroller: {image: 'registry:5000/team/gpuscaler'}\n"
        "prometheus: 'http://[fd00::1]:9090/prefix?a=b'\n"
    )
    described = read_description(SMALLEST + more)
    assert described.teams[0].group == "Équipe 研究 <a@example.com>"
    assert described.controller.image == "registry:5000/team/gpuscaler"


@pytest.mark.parametrize("text", ["", "- a", "a: [", "cloud: aws", "cloud: {aws: 1}\ncluster: 3\ngpu_pools: {a: b}", "&a [*a]"])
def test_odd_files_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        read_description(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: research", "name: research.example.com", "expected the name of an EKS cluster"),
        ("name: train", f"name: {'t' * 60}", "with 72 characters, expected at most 63; shorten the name by 9"),
        (
            "name: research",
            f"name: {'c' * 100}",
            "a group would be called train-on-demand-a, with 17 characters, expected at most 10; shorten the name by 7",
        ),
        (
            "{name: train, types: [g5.xlarge]}",
            "{name: a, types: [g5.xlarge, g6.xlarge]}\n- {name: a-g5-xlarge, types: [g5.xlarge]}",
            "the pools a and a-g5-xlarge, both of which would have a group called a-g5-xlarge-spot-a",
        ),
        ("{name: train", "{labels: {node-role.kubernetes.io/gpu: x}, name: train", "which EKS does not give to nodes"),
        ("{name: train", "{labels: {eks.amazonaws.com/a: x}, name: train", "which EKS does not give to nodes"),
        ("{name: train", '{labels: {gpu: ""}, name: train', 'the label "gpu" without a value'),
        ("{name: train", "{labels: {gpuscaler.io/pool: x}, name: train", 'the label key "gpuscaler.io/pool", expected one of your own'),
        ("{name: train", "{taints: ['gpuscaler.io/arriving:NoSchedule'], name: train", "gpuscaler sets those of gpuscaler.io/"),
        ("{name: train", f"{{taints: ['{'x' * 60}.y/z:NoSchedule'], name: train", "with 64 characters, expected at most 63"),
        ("{name: train", f"{{labels: {{{', '.join(f'l{n}: x' for n in range(30))}}}, name: train", "saw 31 labels and taints"),
    ],
)
def test_what_aws_and_its_tools_refuse_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(SettingsError, match=r"^") as caught:
        read_description(SMALLEST.replace(old, new))
    assert message in str(caught.value)
    assert all(problem.line for problem in caught.value.problems)


def test_kops_sets_labels_that_kubelets_may_not_set_themselves() -> None:
    text = SMALLEST.replace("name: research", "name: train.example.com").replace("cloud: aws", "cloud: aws\ntool: kops")
    description = read_description(text.replace("{name: train,", "{labels: {node-role.kubernetes.io/gpu: ''}, name: train,"))
    assert description.groups[0].labels == {"node-role.kubernetes.io/gpu": ""}
