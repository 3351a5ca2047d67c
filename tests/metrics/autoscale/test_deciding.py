"""Decisions that are hard to reproduce with a server."""

import time

from gpuscaler.metrics.autoscale.deciding import AnnotatedWorkload, ExistingAutoscaler, decide

WEB = AnnotatedWorkload("Deployment", "ml", "web", "new", "duty_cycle=60,max=8")
SERVED = {"duty_cycle_current"}


def existing(owner: str, name: str = "web-gpuscaler", kind: str = "Deployment") -> ExistingAutoscaler:
    return ExistingAutoscaler("ml", name, "uid", "1", (kind, "web"), owner, {})


def test_a_recreated_workload_waits_until_the_previous_autoscaler_is_deleted() -> None:
    assert decide([WEB], [existing("old")], served=SERVED) == ()


def test_an_autoscaler_of_another_namespace_is_ignored() -> None:
    (act,) = decide([WEB], [ExistingAutoscaler("other", "web-gpuscaler", "uid", "1", ("Deployment", "web"), "", {})], served=SERVED)
    assert act.verb == "create"


def test_an_autoscaler_of_another_namespace_is_ignored_even_with_our_label_and_the_workloads_uid() -> None:
    forged = ExistingAutoscaler("tenant", "web-gpuscaler", "uid", "1", ("Deployment", "web"), WEB.uid, {})
    (act,) = decide([WEB], [forged], served=SERVED)
    assert act.verb == "create"
    assert decide([AnnotatedWorkload("Deployment", "ml", "web", "new")], [forged], served=SERVED) == ()


def test_the_time_to_decide_is_linear_in_the_number_of_workloads() -> None:
    workloads = [
        AnnotatedWorkload("Deployment", f"ns-{number % 50}", f"web-{number}", f"uid-{number}", "duty_cycle=60,max=8")
        for number in range(6000)
    ]
    existing = [
        ExistingAutoscaler(
            annotated.namespace,
            f"{annotated.name}-gpuscaler",
            f"a{annotated.uid}",
            "1",
            (annotated.kind, annotated.name),
            annotated.uid,
            {},
        )
        for annotated in workloads
    ]
    began = time.process_time()
    acts = decide(workloads, existing, served=SERVED)
    assert time.process_time() - began < 2
    assert {act.verb for act in acts} == {"replace"}


def test_a_workload_without_the_annotation_and_its_autoscaler_are_ignored() -> None:
    plain = AnnotatedWorkload("Deployment", "ml", "web", "new")
    assert decide([plain], [existing(""), existing("old", "another")], served=SERVED) == ()


def test_a_change_requires_the_observed_version_of_the_autoscaler() -> None:
    (act,) = decide([WEB], [existing("new")], served=SERVED)
    assert act.verb == "replace"
    assert act.body is not None
    assert act.body["metadata"]["resourceVersion"] == "1"
