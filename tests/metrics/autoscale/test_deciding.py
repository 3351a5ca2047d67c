"""Decisions that no server shows at will."""

from gpuscaler.metrics.autoscale.deciding import Annotated, Existing, decide

WEB = Annotated("Deployment", "ml", "web", "new", "duty_cycle=60,max=8")
SERVED = {"duty_cycle_current"}


def existing(owner: str, name: str = "web-gpuscaler", kind: str = "Deployment") -> Existing:
    return Existing("ml", name, "uid", "1", (kind, "web"), owner, {})


def test_the_autoscaler_of_a_workload_that_was_deleted_and_made_anew_is_waited_for() -> None:
    assert decide([WEB], [existing("old")], served=SERVED) == ()


def test_one_of_another_namespace_is_nobodys_business() -> None:
    (act,) = decide([WEB], [Existing("other", "web-gpuscaler", "uid", "1", ("Deployment", "web"), "", {})], served=SERVED)
    assert act.verb == "create"


def test_a_workload_without_the_annotation_is_left_alone_with_whatever_scales_it() -> None:
    plain = Annotated("Deployment", "ml", "web", "new")
    assert decide([plain], [existing(""), existing("old", "another")], served=SERVED) == ()


def test_a_change_is_made_only_to_what_was_seen() -> None:
    (act,) = decide([WEB], [existing("new")], served=SERVED)
    assert act.verb == "replace"
    assert act.body is not None
    assert act.body["metadata"]["resourceVersion"] == "1"
