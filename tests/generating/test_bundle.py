"""What holds for all generated files, whatever writes them."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.generating.corpus import FOLDER, NAMES, description, generated

import gpuscaler
from gpuscaler.generating.bundle import files_of, notes_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.writing.explained import because
from gpuscaler.generating.writing.yaml_text import render_yaml

ROOT = Path(__file__).parents[2]


#: Texts that some parser of YAML would read as more lines than one, or otherwise than they are.
ODD_TEXTS = (
    "a\n\u2028- b",
    "a\n\u2029b: c",
    "\x85a\nb",
    "a\rb\nc",
    "a\x07\nb",
    "  a\nb",
    " a",
    "\n",
    "a\n\n\n",
    "a\n  \nb",
    "a\tb",
    "\ta\nb",
    "\ufeffa\nb",
    "a\u202eb",
    "\U0001f600\nb",
    "#a\n# b",
    "--- a\n...\nb",
    "y",
    "",
)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_is_written_as_what_it_is(text: str) -> None:
    tree = because(f"Why {text}", {"one": text, text: "two", "list": [text, because(text, {"deep": text})]})
    plain = {"one": text, text: "two", "list": [text, {"deep": text}]}
    for explain in (False, True):
        written = render_yaml([tree, tree], explain=explain)
        assert list(yaml.load_all(written, yaml.SafeLoader)) == [plain, plain]
        assert all(map(str.isprintable, written.split("\n")))


def test_what_would_read_otherwise_is_not_returned() -> None:
    with pytest.raises(AssertionError, match="reads otherwise than what was to be written"):
        render_yaml([{"not a number": float("nan")}], explain=False)
    with pytest.raises(AssertionError, match="cannot be read"):
        render_yaml([{"k" * 2000: 1}], explain=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_a_reason(name: str) -> None:
    assert {path: file.gaps for path, file in generated(name).items() if file.gaps} == {}


@pytest.mark.parametrize("name", NAMES)
def test_reasons_do_not_change_what_is_written(name: str) -> None:
    for path, file in generated(name).items():
        if path.endswith(".yaml"):
            assert list(yaml.safe_load_all(file.text(explain=True))) == list(yaml.safe_load_all(file.text(explain=False))), path


@pytest.mark.parametrize("name", NAMES)
def test_paths_are_relative_and_distinct(name: str) -> None:
    paths = list(generated(name))
    assert len(set(paths)) == len(paths)
    assert not [path for path in paths if path.startswith("/") or ".." in path.split("/")]


def sections(name: str) -> dict[str, str]:
    """The sections of the README by their headings."""
    _, *found = re.split("^## (.*)$", generated(name)["README.md"].text(explain=False), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_no_part_of_the_setup_and_say_what_they_ask_for_and_how_they_go(name: str) -> None:
    steps, examples = sections(name)["Apply the files in this order"], sections(name)["Try one of these"]
    paths = [path for path in generated(name) if path != "README.md"]
    assert re.findall("^[0-9]+[.] `(.*?)`", steps, re.MULTILINE) == [path for path in paths if not path.startswith("workloads/")]
    entries = dict(re.findall("^- `(.*?)`(.*?)(?=^- |\\Z)", examples, re.MULTILINE | re.DOTALL))
    assert list(entries) == [path for path in paths if path.startswith("workloads/")]
    for path, entry in entries.items():
        assert f"kubectl delete --filename {path}\n" in entry
        if path != "workloads/hpa.yaml":
            types = {group.instance_type.name for group in description(name).groups}
            assert "asks for" in entry, path
            assert any(type_ in entry for type_ in types) or re.search("has [0-9]+ types", entry), path
            assert re.search("about [0-9.]+ .*dollars an hour|no list price is known", entry), path


#: Anything that looks as if it stood for something else, however a writer of files spells it.
STAND_IN = re.compile(
    r"111122223333|\b0{8}-0{4}-0{4}-0{4}-0{12}\b|[\w./-]*example\.com/[\w/-]+|\b(?:REPLACE|CHANGE|FILL|TODO|FIXME)[-_A-Z]*\b"
)
BARE = {
    "eksctl": "cloud: aws\ncluster: {name: a, region: us-east-1}\n",
    "kops": "cloud: aws\ntool: kops\ncluster: {name: a.example.com, region: us-east-1}\n",
    "terraform": "cloud: aws\ntool: terraform\ncluster: {name: a, region: us-east-1}\n",
    "azure": "cloud: azure\ncluster: {name: a, region: eastus}\n",
}


def written(text: str) -> dict[str, str]:
    """The texts of all files of a description by their paths."""
    return {file.path: file.text(explain=True) for file in files_of(read_description(text))}


@pytest.mark.parametrize("create", ["true", "false"])
@pytest.mark.parametrize("tool", BARE)
def test_each_placeholder_of_each_file_stands_in_the_readme_with_its_file(tool: str, create: str) -> None:
    type_ = "Standard_NC4as_T4_v3" if tool == "azure" else "g5.xlarge"
    text = BARE[tool].replace("}", f", create: {create}}}") + f"gpu_pools: [{{name: g, types: [{type_}]}}]\n"
    files = written(text)
    table = {line.split("`")[1]: line for line in files["README.md"].splitlines() if line.startswith("| `")}
    found = {(match, path) for path, content in files.items() if path != "README.md" for match in STAND_IN.findall(content)}
    assert found, "the image at least"
    assert {(match, path) for match, path in found if f"`{path}`" not in table.get(match, "")} == set()
    assert {match for match, _ in found} == set(table), "nothing is asked for that no file has"


def test_what_the_description_says_need_not_be_filled_in() -> None:
    given = "cloud: aws\ncluster: {name: a, region: us-east-1, account: '123456789012'}\ncontroller: {image: registry.internal/gpuscaler}\n"
    readme = written(given + "gpu_pools: [{name: g, types: [g5.xlarge]}]\n")["README.md"]
    assert not STAND_IN.findall(readme)
    assert f"docker push registry.internal/gpuscaler:{gpuscaler.__version__}\n" in readme
    assert "replace" not in readme.lower()


@pytest.mark.parametrize(
    ("name", "adopted", "exclude"),
    [
        ("s0-kops", "every InstanceGroup of workers, also those without GPUs", "config.aws.exclude"),
        ("s3-metrics", "every managed node group of EKS with GPUs", "config.aws.exclude"),
        ("s2-azure", "every agent pool with GPUs whose autoscaler of AKS is off", "config.azure.subscriptions[0].exclude"),
    ],
)
def test_nothing_that_exists_is_taken_over_unseen(name: str, adopted: str, exclude: str) -> None:
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    files = written(yaml.safe_dump(text | {"cluster": text["cluster"] | {"create": False}}))
    readme = files["README.md"]
    assert readme.index("## Read this first") < readme.index("## Fill in first")
    assert adopted in readme
    assert f"`{exclude}`" in readme
    assert yaml.safe_load(files["gpuscaler/values.yaml"])["controller"]["dryRun"] is True
    step = readme[readme.index("`gpuscaler/values.yaml`: gpuscaler itself") :]
    order = ["gpuscaler pools --config", "gpuscaler doctor --config", "helm upgrade --install", "logs deployment", "delete `dryRun: true`"]
    places = [step.index(words) for words in order]
    assert places == sorted(places)
    for page in set(re.findall("[a-z-]+[.]md", readme)) - {"README.md"}:
        assert (ROOT / "docs" / "how-to" / page).is_file(), page


def test_a_new_cluster_is_acted_on_at_once() -> None:
    assert "Read this first" not in sections("s1-eksctl")
    assert "dryRun" not in "".join(file.text(explain=True) for file in generated("s1-eksctl").values())


def of(text: str, **changes: Any) -> dict[str, str]:
    """The texts of the files of a description with other keys."""
    return written(yaml.safe_dump(yaml.safe_load(text) | changes))


TEAMS = "cloud: aws\ncluster: {name: a, region: us-east-1}\ngpu_pools: [{name: g, types: [g5.xlarge]}]\nteams: [{name: ml, gpus: 8}]\n"
EXISTS = {"name": "a", "region": "us-east-1", "create": False}


def test_notes_stand_before_what_is_applied() -> None:
    found = sections("s4-terraform")
    assert list(found).index("Notes") < list(found).index("Apply the files in this order")
    assert all(f"- {note}" in found["Notes"] for note in notes_of(description("s4-terraform")))
    assert "Notes" not in sections("s1-self-managed")


def test_pods_of_teams_that_exist_are_not_refused() -> None:
    def labels(files: Mapping[str, str]) -> dict[str, str]:
        objects = yaml.safe_load_all(files["kubernetes/namespaces.yaml"])
        (team,) = (obj for obj in objects if obj["metadata"]["name"] == "ml")
        return {key.rpartition("/")[2]: level for key, level in team["metadata"]["labels"].items()}

    old, new = of(TEAMS, cluster=EXISTS), of(TEAMS)
    assert labels(old) == {"warn": "baseline", "audit": "baseline"}
    assert labels(new)["enforce"] == "baseline"
    assert "--dry-run=server --overwrite namespace ml pod-security.kubernetes.io/enforce=baseline" in old["README.md"]
    assert "its pods are cut off from all other namespaces" in old["README.md"]
    assert "--dry-run=server" not in new["README.md"]
    assert "cut off" not in new["README.md"]


def test_another_device_plugin_is_looked_for_where_there_may_be_one() -> None:
    command = "kubectl get daemonsets --all-namespaces"
    assert command in of(TEAMS, cluster=EXISTS)["README.md"]
    assert command not in of(TEAMS)["README.md"]


def test_prometheus_finds_the_exporter() -> None:
    exporter = yaml.safe_load(generated("s3-metrics")["gpuscaler/exporter-values.yaml"].text(explain=False))["exporter"]
    port = yaml.safe_load((ROOT / "charts/gpuscaler/values.yaml").read_text())["exporter"]["port"]
    assert exporter["podAnnotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}
    step = sections("s3-metrics")["Apply the files in this order"].partition("`gpuscaler/exporter-values.yaml`")[2]
    assert "`serviceMonitor.enabled: true`" in step
    assert "/apis/custom.metrics.k8s.io/v1beta2/namespaces/gpu-examples/pods/*/duty_cycle_current" in step
    assert "podAnnotations" not in generated("s1-eksctl")["gpuscaler/exporter-values.yaml"].text(explain=False)


@pytest.mark.parametrize(
    ("name", "create", "commands"),
    [
        ("s1-eksctl", True, ["eksctl delete cluster --region us-west-2 --name eks-gpu --wait", "delete-stack"]),
        (
            "s3-metrics",
            False,
            ["eksctl delete nodegroup --config-file=eksctl/cluster.yaml", "delete podidentityassociation", "delete-stack"],
        ),
        ("s0-kops", False, ["kops delete instancegroup", "kops edit cluster", "delete-stack"]),
        ("s4-terraform", True, ["terraform -chdir=terraform destroy"]),
        ("s2-azure", True, ["terraform -chdir=terraform destroy"]),
    ],
)
def test_the_readme_ends_with_looking_at_it_and_removing_it(name: str, create: bool, commands: Iterable[str]) -> None:
    found = sections(name)
    assert list(found)[-3:] == ["See that it works", "Try one of these", "Remove all of it"]
    look, removal = (" ".join(found[heading].split()) for heading in ("See that it works", "Remove all of it"))
    assert "kubectl get nodes" in look
    assert "gpuscaler status --namespace gpuscaler" in look
    assert ("dry run" in look) != create, "a dry run writes no status"
    order = ["helm uninstall gpuscaler --namespace gpuscaler", "helm uninstall gpuscaler --namespace gpu-exporter", *commands]
    assert [removal.index(command) for command in order] == sorted(removal.index(command) for command in order)
    assert ("but not `kubernetes/namespaces.yaml`" in removal) != create
