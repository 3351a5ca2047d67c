"""What holds for all generated files, whatever writes them."""

import re
from pathlib import Path

import pytest
import yaml
from tests.generating.corpus import FOLDER, NAMES, description, generated

import gpuscaler
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description


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
        assert (Path(__file__).parents[2] / "docs" / "how-to" / page).is_file(), page


def test_a_new_cluster_is_acted_on_at_once() -> None:
    assert "Read this first" not in sections("s1-eksctl")
    assert "dryRun" not in "".join(file.text(explain=True) for file in generated("s1-eksctl").values())
