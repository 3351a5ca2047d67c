"""The hooks that helm runs after a release is deleted."""

from typing import Any

import click
import pytest
from tests.charts.rendering import SMALL, Object, merge_values, objects, render, text

from gpuscaler.cli import main

pytestmark = pytest.mark.charts


def hooks(more: dict[str, Any] | None = None) -> dict[str, Object]:
    """Return the objects of hooks, which are not part of the installation."""
    every, installed = objects(text(merge_values(SMALL, more or {}), hooks=True)), render(more)
    assert not [name for name in installed if "helm.sh/hook" in every[name]["metadata"].get("annotations", {})]
    return {name: obj for name, obj in every.items() if name not in installed}


def test_hook_objects_are_created_after_the_release_is_deleted_and_removed_after_success() -> None:
    objects = hooks()

    assert sorted(name.partition("/")[0] for name in objects) == ["ClusterRole", "ClusterRoleBinding", "Job", "ServiceAccount"]
    notes = {name: obj["metadata"]["annotations"] for name, obj in objects.items()}
    assert {note["helm.sh/hook"] for note in notes.values()} == {"post-delete"}
    assert {note["helm.sh/hook-delete-policy"] for note in notes.values()} == {"before-hook-creation,hook-succeeded"}
    weights = {name: int(annotations["helm.sh/hook-weight"]) for name, annotations in notes.items()}
    assert max(weights, key=lambda name: weights[name]) == "Job/gpuscaler-uninstall"


def test_the_hook_job_opens_nodes_for_longer_than_a_controller_may_take_to_exit() -> None:
    job = hooks({"controller": {"terminationGracePeriodSeconds": 50}})["Job/gpuscaler-uninstall"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    command, *arguments = container["args"]
    parsed = main.get_command(click.Context(main), command)
    assert parsed is not None
    options = parsed.make_context(command, list(arguments)).params

    assert (command, options["every"], options["nodes"], options["duration"]) == ("open", True, (), "55s")
    assert job["activeDeadlineSeconds"] > 60
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_the_hook_pod_equals_the_controllers_pod_except_for_permissions() -> None:
    objects = hooks({"image": {"tag": "9"}, "controller": {"tolerations": [{"operator": "Exists"}]}})
    pod = objects["Job/gpuscaler-uninstall"]["spec"]["template"]["spec"]
    controller = render({"image": {"tag": "9"}})["Deployment/gpuscaler-controller"]["spec"]["template"]["spec"]

    assert pod["containers"][0]["image"] == controller["containers"][0]["image"]
    assert pod["containers"][0]["securityContext"] == controller["containers"][0]["securityContext"]
    assert (pod["securityContext"], pod["nodeSelector"]) == (controller["securityContext"], controller["nodeSelector"])
    assert pod["tolerations"] == [{"operator": "Exists"}]
    (role,) = (obj for name, obj in objects.items() if name.startswith("ClusterRole/"))
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}]
    (binding,) = (obj for name, obj in objects.items() if name.startswith("ClusterRoleBinding/"))
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "gpuscaler"}]


@pytest.mark.parametrize(
    "values",
    [
        {"controller": {"openNodesOnUninstall": False}},
        {"controller": {"dryRun": True}},
        {"controller": {"rbac": {"create": False}}},
        {"controller": {"enabled": False}, "exporter": {"enabled": True}},
    ],
)
def test_no_hook_runs_if_nodes_are_never_closed_or_rbac_is_disabled(values: dict[str, Any]) -> None:
    assert hooks(values) == {}
