"""Pods that kubelets do not admit after they were bound."""

import pytest
from tests.planning.building import NOW, node, offering, pod, pool

from gpuscaler.lifecycle.actions import Act, Bind, Close
from gpuscaler.lifecycle.steering.binding import AGAIN_SECONDS, pools_without_binding
from gpuscaler.lifecycle.steering.rejected_pods import WATCHED_SECONDS, AdmissionFindings, Admissions, TurnedAway, observe, record_sent
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state.ledger.ledger import Ledger, Promise

KIND = offering("g.4", gpus=4)
POLICY = Policy((pool(KIND),))
BOOK = Ledger(promises=(Promise("a", KIND.key, ("default/p",), NOW),))


def bound(*names: str, admissions: Admissions | None = None) -> Admissions:
    acts: list[Act] = [
        *(Bind(f"default/{name}", f"uid-{name}", "a") for name in names),
        Bind("default/daemon", "d", "other"),
        Close("a", "x"),
    ]
    return record_sent(admissions or Admissions(), acts, BOOK, NOW)


def failed(name: str, reason: str = "OutOfnvidia.com/gpu") -> Pod:
    return pod(name, uid=f"uid-{name}", on="a", phase="Failed", reason=reason)


def observed(admissions: Admissions, *pods: Pod, after: float = 1.0) -> AdmissionFindings:
    return observe(admissions, Cluster.of([node("a", KIND), *pods]), NOW + after)


@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError"])
def test_a_pod_that_the_kubelet_rejects_is_reported_once(reason: str) -> None:
    admission_findings = observed(bound("p"), failed("p", reason))

    assert admission_findings.turned_away == (TurnedAway("default/p", "a", KIND.pool, reason, "uid-p"),)
    assert admission_findings.refused == ()
    assert observed(admission_findings.admissions, failed("p", reason)).turned_away == ()


@pytest.mark.parametrize(
    "other",
    [
        failed("p", "Evicted"),
        failed("p", ""),
        pod("p", uid="another", on="a", phase="Failed", reason="OutOfcpu"),
        pod("p", uid="uid-p", on="b", phase="Failed", reason="OutOfcpu"),
        pod("p", uid="uid-p", on="a", phase="Running"),
    ],
    ids=["evicted", "failed by itself", "another pod", "bound elsewhere", "running"],
)
def test_pods_that_end_for_other_reasons_do_not_count_as_rejected(other: Pod) -> None:
    admission_findings = observed(bound("p"), other)

    assert (admission_findings.turned_away, admission_findings.admissions.bound) == ((), {})


def test_the_wait_for_the_answer_of_the_kubelet_is_limited() -> None:
    admissions, pending = bound("p"), pod("p", uid="uid-p", on="a", phase="Pending")

    assert observed(admissions, pending).admissions == admissions
    assert observed(admissions, pending, after=WATCHED_SECONDS).admissions == Admissions()
    assert observed(admissions).admissions == Admissions()


def test_two_consecutive_rejections_switch_the_pool_to_nomination_for_a_while() -> None:
    admission_findings = observed(bound("p"), failed("p"))
    two = observed(bound("q", admissions=admission_findings.admissions), failed("q"))
    (refused,) = two.refused
    pools = pools_without_binding({}, two.refused, Ledger(), NOW)

    assert (refused.pool, two.admissions.rejections_in_row) == (KIND.pool, {})
    assert "turned away pod default/q (OutOfnvidia.com/gpu)" in pools[KIND.pool].why
    assert pools[KIND.pool].until == NOW + AGAIN_SECONDS


def test_an_admitted_pod_resets_the_count_of_rejections() -> None:
    admission_findings = observed(bound("p"), failed("p"))
    runs = observed(bound("r", admissions=admission_findings.admissions), pod("r", uid="uid-r", on="a", phase="Running"))

    assert observed(bound("q", admissions=runs.admissions), failed("q")).refused == ()
