"""Commands that findings print neither mean something else than they seem to, nor help a tenant whose objects ask for them."""

import shlex
from typing import Any

import pytest
from tests.doctor.corpus import look_at

from gpuscaler.doctor import commands
from gpuscaler.doctor.commands import ObjectName
from gpuscaler.doctor.findings import Finding, Fix
from gpuscaler.doctor.smoke.job import SmokeTest

Json = dict[str, Any]


@pytest.mark.parametrize(
    "target",
    [
        ObjectName("APIService", "", "--all"),
        ObjectName("ConfigMap", "--all-namespaces", "settings"),
        ObjectName("Pod", "default", "pod/other"),
        ObjectName("Pod", "default", "web\nrm"),
        ObjectName("pod,secret", "default", "web"),
        ObjectName("--all", "default", "web"),
    ],
    ids=repr,
)
def test_no_command_is_made_about_a_name_that_kubectl_takes_for_something_else(target: ObjectName) -> None:
    made = (
        commands.kubectl_delete(target),
        commands.kubectl_patch(target, {}),
        commands.kubectl_label(target, "a", "b"),
        commands.kubectl_annotate(target, "a", None),
        commands.restart(target),
        commands.rewrite_secret(target, "key"),
        commands.swap_in_secret(target, "a", "b"),
    )

    assert not any(made)


def test_no_command_is_made_of_keys_and_texts_that_end_their_place_in_it() -> None:
    pod = ObjectName("Pod", "default", "web")

    assert not commands.kubectl_label(pod, "--all", None)
    assert not commands.kubectl_taint("--all", "a=b:NoSchedule")
    assert not commands.kubectl_taint("node", "--all")
    assert not commands.kubectl_apply("a: b\nEOF\ntouch owned")
    assert not commands.rewrite_secret(ObjectName("Secret", "default", "keys"), 'a"}}{{.data}}')


def test_a_finding_without_a_safe_command_says_that_a_person_has_to_mend_it() -> None:
    fix = Fix(("kubectl delete pod web", commands.kubectl_delete(ObjectName("Pod", "", "--all"))), "restart it")

    assert fix.commands == ()
    assert fix.advice.startswith("mend it by hand") and fix.advice.endswith("; restart it")


def test_the_command_that_removes_a_smoke_test_has_its_namespace_as_one_word() -> None:
    assert shlex.split(SmokeTest(name="test", namespace="a; b").removal_command)[4] == "a; b"
