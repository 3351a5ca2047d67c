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


def test_aks_keeps_public_nodes_out_if_only_some_addresses_reach_its_api_server() -> None:
    with pytest.raises(SettingsError, match="expected private nodes; remove private"):
        read_description(AZURE.replace("name: research", "name: research, api_access: [203.0.113.7/32], private: false"))


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
        ("types: [g5.xlarge]", "types: [g5.xlarge], teams: [vision]", 'saw team "vision", but there are no teams; add teams: [{name: …}]'),
        (
            "types: [g5.xlarge]}",
            "types: [g5.xlarge], teams: [b]}\nteams: [{name: bb}]",
            'saw team "b", expected one of teams; did you mean bb?',
        ),
        ("types: [g5.xlarge]", "types: [g5.xlarge], arch: arm64", "saw arch beside types, which have their own architecture"),
        (
            "types: [g5.xlarge]",
            "gpus: 8, arch: arm64",
            "saw 8 GPUs, on arm64, for which no type is known in us-east-1; those that there are have",
        ),
        ("types: [g5.xlarge]", "gpus: 8, gpu_memory: 900G", "the largest memory of 8 GPUs there is 288 GB each"),
        ("us-east-1", "US East 1", "expected the name of a region such as us-east-1; did you mean us-east-1?"),
        (
            "types: [g5.xlarge]}",
            "types: [g5.xlarge], min: 2}\ncontroller: {gpus: 7}",
            "saw 7, expected at least 8: min is that of each group",
        ),
        (
            "types: [g5.xlarge]}",
            "types: [g5.xlarge], min: 2, markets: [on-demand]}\ncontroller: {dollars_per_hour: 4}",
            "saw 4, expected at least 5: min is that of each group, so minimums keep 4 machines running, with 4.02 dollars an hour",
        ),
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
        ("name: research", "name: research, api_access: [203.0.113.7]", "expected a range of IPv4 addresses such as 203.0.113.7/32"),
        ("name: research", "name: research, api_access: [10.0.0.0/8]", "expected the public addresses"),
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


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            SMALLEST.replace("region: us-east-1", "region: us-east-1, version: 1.30").replace(
                "types: [g5.xlarge]", "types: [g5.xlage, 5], zones: [eu-west-1a], teams: [ghost]"
            )
            + "team: x\ngeneral: {types: [g5.xlarge]}\n",
            ["quote it", "types[0]: saw", "types[1]: saw", "zones[0]: saw", "teams[0]: saw", "unknown key", "general.types[0]: saw"],
        ),
        (SMALLEST.replace("cloud: aws", "cloud: aks") + "teams: [{name: kube-system}]\n", ['saw "aks"', "namespace kube-system"]),
        (
            SMALLEST.replace("name: train", "nme: train") + "- {nme: b, types: [g5.xlage]}\n",
            ["nme: unknown"] * 2 + ["saw no name"] * 2 + ["types"],
        ),
        (SMALLEST.replace("types", "teams: [a], types") + "teams: [{nme: a}]\n", ["unknown key", "saw no name"]),
        (SMALLEST.replace("us-east-1", "US East 1").replace("types", "zones: [us-east-1a], types"), ["did you mean us-east-1?"]),
        (SMALLEST.replace("research", "research.example.com").replace("cloud", "tool: kop\ncloud"), ["did you mean kops?"]),
        (SMALLEST.replace("cluster: {name: research, region: us-east-1}", "cluster: 5"), ["a mapping"]),
    ],
)
def test_all_mistakes_are_named_together_and_no_others(text: str, messages: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read_description(text)
    seen = [problem.message for problem in caught.value.problems]
    assert len(seen) == len(messages), caught.value
    for message in messages:
        assert message in str(caught.value)


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


def notes(old: str = "", new: str = "", *, text: str = SMALLEST) -> str:
    return "\n".join(read_description(text.replace(old, new)).notes)


def test_machines_that_always_run_are_named_with_their_price() -> None:
    kept = "Pool train: min: 2 in 4 groups keeps 8 machines (64 GPUs) running from the first command on, for about $325.84 an hour"
    assert kept in notes("types: [g5.xlarge]", "types: [p5.48xlarge], min: 2")
    assert "running" not in notes()


@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        (
            "g5.xlarge]",
            "p5.48xlarge]",
            "dollars_per_hour: 100 (the default) admits 1 p5.48xlarge ($55.04). Its groups can have 40 machines.",
        ),
        ("g5.xlarge]}", "p5.48xlarge]}\ncontroller: {dollars_per_hour: 50}", "dollars_per_hour: 50 admits 0 p5.48xlarge ($55.04)"),
        (
            "g5.xlarge]}",
            "p5.48xlarge]}\nteams: [{name: a, gpus: 64}]",
            "Its groups can have 40 machines, and the quotas of its teams (64 GPUs) need 8, for which it must be 441.",
        ),
        ("g5.xlarge]}", "p4d.24xlarge, p5.48xlarge]}", "admits 4 p4d.24xlarge ($21.96) or 1 p5.48xlarge ($55.04)."),
        (
            "g5.xlarge]",
            "g5.xlarge], max: 40",
            "Its groups can have 160 machines. Prices are those of on-demand machines, by the catalogue's",
        ),
    ],
)
def test_it_is_said_when_the_limit_in_dollars_admits_few_machines(old: str, new: str, note: str) -> None:
    assert note in notes(old, new)
    assert "dollars_per_hour" not in notes()


def test_what_a_region_may_not_have_is_named() -> None:
    unsold = "prices of other GPU types in eu-west-1, but none of p5.48xlarge: the region may not sell it."
    assert unsold in notes(text=SMALLEST.replace("us-east-1", "eu-west-1").replace("g5.xlarge", "g5.xlarge, p5.48xlarge"))
    assert "may not sell" not in notes()
    unknown = notes("us-east-1", "eu-west-9")
    assert "The catalogue knows no prices of GPUs in eu-west-9: check the region's name, and that it sells g5.xlarge." in unknown
    assert "list prices of us-east-1, since not all of eu-west-9 are known" in notes(
        text=SMALLEST.replace("us-east-1", "eu-west-9").replace("g5.xlarge]", "p5.48xlarge]")
    )


def test_zones_that_the_catalogue_cannot_decide_on_are_named() -> None:
    assert "No region of AWS is known to have a zone us-east-1z" in notes("us-east-1", "us-east-1, zones: [us-east-1z]")
    some = "Not all zones of us-east-1 sell these types (g6e.xlarge: use1-az1 use1-az2 use1-az4 use1-az6)."
    assert some in notes("[g5.xlarge]", "[g5.xlarge, g6e.xlarge]")
    assert "Not all zones" not in notes(), "only use1-az3 lacks it, where EKS has no clusters"


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        (SMALLEST.replace("us-east-1", 'us-east-1, version: "1.99"'), True),
        (SMALLEST.replace("us-east-1", 'us-east-1, version: "1.31"'), True),
        (SMALLEST.replace("us-east-1", 'us-east-1, version: "1.36"'), False),
        (SMALLEST.replace("us-east-1", 'us-east-1, version: "1.99", create: false'), False),
        (AZURE.replace("eastus", 'eastus, version: "1.33"'), True),
        (AZURE.replace("eastus", 'eastus, version: "1.37"'), False),
    ],
)
def test_a_version_that_new_clusters_cannot_have_is_named(text: str, is_said: bool) -> None:
    assert ("is not one that new clusters of" in notes(text=text)) is is_said


def test_machines_are_x86_unless_asked() -> None:
    def chosen(more: str) -> set[str]:
        return {group.instance_type.arch for group in read_description(SMALLEST.replace("types: [g5.xlarge]", f"gpus: 1{more}")).groups}

    assert (chosen(""), chosen(", arch: arm64")) == ({"amd64"}, {"arm64"})


def test_more_groups_than_the_quota_of_eks_are_said() -> None:
    many = SMALLEST.replace("us-east-1", "us-east-1, zones: [us-east-1a, us-east-1b, us-east-1c, us-east-1d]").replace(
        "types: [g5.xlarge]", "gpus: 1"
    )
    assert "There are 56 managed node groups (one for each type, market and zone), and EKS allows 30 in a cluster" in notes(text=many)
    assert "EKS allows" not in notes(text=many + "nodes: self-managed\n")
    assert "EKS allows" not in notes()


def test_a_group_of_users_on_azure_is_an_object_id() -> None:
    text = AZURE + "teams: [{name: a, group: GROUP}]\n"
    read_description(text.replace("GROUP", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"))
    with pytest.raises(SettingsError, match="expected the object id of a group of Microsoft Entra ID"):
        read_description(text.replace("GROUP", "research@example.com"))
