"""Taints and tolerations."""

import pytest

from gpuscaler.model.taints import Taint, Toleration, untolerated

GPU = Taint("gpu", "a100", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration("gpu", "Equal", "a100", "NoSchedule"), True),
        (Toleration("gpu", "", "a100", ""), True),
        (Toleration("gpu", "Equal", "h100"), False),
        (Toleration("gpu", "Exists"), True),
        (Toleration("gpu", "Exists", "h100"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Exists", "", "NoExecute"), False),
        (Toleration("", "Equal", "a100"), True),
        (Toleration("cpu", "Exists"), False),
        (Toleration("gpu", "Gt", "1"), False),
        (Toleration("gpu", "Resembles", "a100"), False),
    ],
)
def test_a_toleration_matches_a_taint_as_in_kubernetes(toleration: Toleration, tolerates: bool) -> None:
    assert toleration.tolerates(GPU) is tolerates


def test_the_first_untolerated_taint_with_a_hard_effect_is_found() -> None:
    soft, odd, late = Taint("a", effect="PreferNoSchedule"), Taint("b", effect="Whatever"), Taint("c", effect="NoExecute")
    assert untolerated((soft, odd, GPU, late), ()) == GPU
    assert untolerated((soft, odd, GPU, late), (Toleration("gpu", "Exists"),)) == late
    assert untolerated((GPU, late), (Toleration("", "Exists"),)) is None
    assert untolerated((), ()) is None


def test_a_taint_is_formatted_as_by_kubectl() -> None:
    assert str(GPU) == "gpu=a100:NoSchedule"
    assert str(Taint("gpu", "", "NoExecute")) == "gpu:NoExecute"
