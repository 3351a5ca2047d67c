"""The exporter that reports scheduled events: its arguments, its rights and the policy that restricts them to its own node."""

from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, SMALL, Object, call, merge_values, objects, refusal, render

from gpuscaler.cli import exporter as cli
from gpuscaler.model.scheduled_events import LONGEST_VALUE, SCHEDULED_EVENT

pytestmark = pytest.mark.charts

POLICY = "ValidatingAdmissionPolicy/gpuscaler-exporter-nodes.gpuscaler"
ROLE = "ClusterRole/gpuscaler:gpuscaler-exporter"


def events(*, exporter: dict[str, Any] | None = None, **more: Any) -> dict[str, Object]:
    own = {"enabled": True, "scheduledEvents": {"enabled": True, **more}, **(exporter or {})}
    return render({"controller": {"enabled": False}, "exporter": own})


def pod(made: dict[str, Object]) -> Object:
    spec = made["DaemonSet/gpuscaler-exporter"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def rights(made: dict[str, Object]) -> set[tuple[str, str]]:
    return {(resource, verb) for rule in made[ROLE]["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def test_scheduled_events_are_off_unless_asked_for_and_then_the_exporter_has_no_right_on_nodes() -> None:
    made = render({"exporter": {"enabled": True}})

    assert not any("scheduled-events" in word for word in pod(made)["containers"][0]["args"])
    assert POLICY not in made
    assert ROLE not in made
    assert not pod(made)["automountServiceAccountToken"]


def test_the_arguments_are_valid_for_the_command() -> None:
    words = cli.exporter.make_context("exporter", pod(events(interval="5s", acknowledge=True))["containers"][0]["args"][1:]).params

    assert (words["scheduled_events"], words["scheduled_events_interval"], words["acknowledge_scheduled_events"]) == (True, 5.0, True)
    assert pod(events())["automountServiceAccountToken"]


def test_the_exporter_may_only_patch_nodes_and_read_what_an_acknowledgement_depends_on() -> None:
    asked = events(exporter={"askApiServer": True})

    assert rights(events()) == {("nodes", "patch")}
    assert rights(events(acknowledge=True)) == {("nodes", "patch"), ("nodes", "get"), ("pods", "list")}
    assert rights(asked) == {("nodes", "patch"), ("pods", "list"), ("resourceslices", "list")}
    assert ROLE not in events(exporter={"rbac": {"create": False}})


def test_a_policy_restricts_the_account_to_one_annotation_of_the_node_that_its_token_names() -> None:
    made = events(exporter={"serviceAccount": {"name": "agent"}})
    policy = made[POLICY]["spec"]
    conditions = " ".join(rule["expression"] for rule in policy["validations"])

    assert made["ValidatingAdmissionPolicyBinding/gpuscaler-exporter-nodes.gpuscaler"]["spec"]["validationActions"] == ["Deny"]
    assert policy["failurePolicy"] == "Fail"
    assert policy["matchConditions"][0]["expression"].endswith("== 'system:serviceaccount:gpuscaler:agent'")
    assert "authentication.kubernetes.io/node-name" in policy["variables"][0]["expression"]
    assert f"'{SCHEDULED_EVENT}'" in conditions
    assert str(LONGEST_VALUE) in conditions


def test_where_no_policy_can_restrict_it_the_exporter_may_not_patch_nodes() -> None:
    values = merge_values(SMALL, {"exporter": {"enabled": True, "scheduledEvents": {"enabled": True, "acknowledge": True}}})
    done = call("template", "gpuscaler", str(CHART), "--namespace", "gpuscaler", "--kube-version", "1.29.14", values=values)
    assert done.returncode == 0, done.stderr
    made = objects(done.stdout)

    assert POLICY not in made
    assert ROLE not in made
    assert "--scheduled-events" in yaml.safe_dump(pod(made))


def test_the_exporter_also_runs_on_spot_machines_without_gpus() -> None:
    spot = {"matchExpressions": [{"key": "kubernetes.azure.com/scalesetpriority", "operator": "In", "values": ["spot"]}]}

    def terms(made: dict[str, Object]) -> list[Object]:
        required: Object = pod(made)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        found: list[Object] = required["nodeSelectorTerms"]
        return found

    assert spot in terms(events())
    assert spot not in terms(render({"exporter": {"enabled": True}}))


@pytest.mark.parametrize("interval", ["1s", "61s", "2m", "500ms", 2])
def test_an_interval_that_the_command_refuses_is_rejected(interval: object) -> None:
    values = {"exporter": {"enabled": True, "scheduledEvents": {"enabled": True, "interval": interval}}}

    assert "/exporter/scheduledEvents/interval" in refusal(values)
