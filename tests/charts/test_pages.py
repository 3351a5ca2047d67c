"""The commands of the installation pages that can be run without a cluster."""

import shlex
from pathlib import Path

import pytest
import yaml
from tests.charts.rendering import ROOT, call, objects, text
from tests.docs.test_examples import EXAMPLES, every

from gpuscaler.settings import load_settings

pytestmark = pytest.mark.charts

COMMANDS = [
    line
    for block in every("sh")
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.startswith(("helm install ", "helm upgrade "))
]


def found(name: str) -> Path:
    """Return the file of a command, which is run in the root of a clone; files that a page tells to write are among the examples."""
    return next(path for path in (ROOT / name, EXAMPLES / name) if path.exists())


@pytest.mark.parametrize("command", COMMANDS)
def test_each_helm_command_in_the_documentation_renders(command: str) -> None:
    _, _, release, chart, *options = shlex.split(command)
    words = [str(found(word)) if word.endswith(".yaml") else word for word in options if word != "--create-namespace"]
    done = call("template", release, str(ROOT / chart), *words)
    alone = "controller.enabled=false" in command or "metrics-values.yaml" in command

    assert done.returncode == 0, done.stderr
    assert ("--config=/etc/gpuscaler/run.yaml" in done.stdout) is (not alone)
    assert ("kind: DaemonSet" in done.stdout) is ("exporter.enabled=true" in command)
    assert ("--dry-run" in done.stdout) is ("controller.dryRun=true" in command)


def test_the_installation_pages_contain_helm_commands() -> None:
    assert len(COMMANDS) >= 3


def test_the_documented_releases_in_one_namespace_have_no_object_in_common() -> None:
    made = []
    for release, values in (("gpuscaler", "values.yaml"), ("gpuscaler-metrics", "docs/examples/metrics-values.yaml")):
        place = "--namespace gpuscaler --create-namespace"
        assert f"helm install {release} charts/gpuscaler {place} --values {values}" in COMMANDS
        made.append(objects(text(yaml.safe_load(found(values).read_text()), release=release, hooks=True)))
    controller, metrics = made

    assert "Deployment/gpuscaler-controller" in controller
    assert "Deployment/gpuscaler-metrics-metrics" in metrics
    assert not controller.keys() & metrics.keys()


@pytest.mark.parametrize("values", ["values.yaml", "aws-values.yaml", "azure-values.yaml"])
def test_the_settings_in_documented_values_are_valid(values: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((EXAMPLES / values).read_text())["config"]))

    assert load_settings(path).policy.limits.gpus == 64


def test_with_the_documented_values_aks_gives_the_controllers_pods_their_identity() -> None:
    """AKS's webhook acts on pods with this label whose ServiceAccount has this annotation."""
    made = objects(text(yaml.safe_load((EXAMPLES / "azure-values.yaml").read_text())))
    pod = made["Deployment/gpuscaler-controller"]["spec"]["template"]

    assert pod["metadata"]["labels"]["azure.workload.identity/use"] == "true"
    assert pod["spec"]["serviceAccountName"] == "gpuscaler-controller"
    assert made["ServiceAccount/gpuscaler-controller"]["metadata"]["annotations"] == {
        "azure.workload.identity/client-id": "00000000-0000-0000-0000-000000000000"
    }
