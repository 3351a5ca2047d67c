"""Reasons of unplaced pods: one per pool, with the offering that came nearest."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.planning.building import (
    ARCH,
    NOW,
    PRODUCT,
    TYPE,
    ZONE,
    affinity,
    bought,
    near,
    node,
    offering,
    planned,
    pod,
    pool,
    reasons,
    spec,
)

from gpuscaler.model.pools import Limits, Pool
from gpuscaler.model.taints import Taint
from gpuscaler.planning.plans import fits_no_pool
from gpuscaler.planning.state import State
from gpuscaler.planning.state.breakers import Breaker, Breakers, Target

MENU = (
    pool(offering("g.1")),
    pool(offering("h.8", 8.0, pool="large", gpus=8, cpu=96, zone="z2", taints=(Taint("team", "ml"),), market="spot")),
    pool(offering("arm.8", 0.5, pool="arm", gpus=0, labels={ARCH: "arm64"})),
)


def reasons_for(of: Mapping[str, Any], **more: Any) -> dict[str, tuple[str, str]]:
    """The reason of each pool of the menu for one pod."""
    made = planned([pod("p", spec(**of), **more)], *MENU)
    return {reason.pool: (reason.excluded_by, reason.detail) for reason in reasons(made, "p")}


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"gpus": 16}, {"main": "resource", "large": "taint", "arm": "architecture"}),
        ({"gpus": 1, "node_selector": ((ZONE, "z9"),)}, {"main": "selector", "large": "selector", "arm": "selector"}),
        ({"gpus": 1, "node_affinity": affinity((TYPE, "In", "x"))}, {"main": "affinity", "large": "affinity", "arm": "affinity"}),
        ({"gpus": 2}, {"main": "resource", "large": "taint", "arm": "architecture"}),
        ({"gpus": 1, "affinity": (near(ZONE, app="x"),)}, {"main": "topology", "large": "taint", "arm": "architecture"}),
    ],
)
def test_the_reason_names_the_exclusion_that_changes_least(of: Mapping[str, Any], words: Mapping[str, str]) -> None:
    assert {name: word for name, (word, _) in reasons_for(of).items()} == words


def test_the_reason_for_every_pool_names_requested_and_available_values() -> None:
    reported = reasons_for({"gpus": 2})
    assert reported["main"][1] == "g.1 in z1: 2 nvidia.com/gpu requested, an empty machine has 1"
    assert "team" in reported["large"][1]
    assert reported["arm"][1] == "arm.8 in z1 is arm64; the pod has no selector or affinity on kubernetes.io/arch that admits it"


def test_reasons_show_memory_in_gibibytes_and_cpu_in_cores() -> None:
    assert reasons_for({"memory": 100})["main"][1] == "g.1 in z1: 100Gi memory requested, an empty machine has 32Gi"
    assert reasons_for({"cpu": 8.5, "memory": 40})["main"][1] == "g.1 in z1: 8.5 cpu requested, an empty machine has 8"


def test_reasons_do_not_show_the_internal_name_of_a_node_template() -> None:
    chosen = reasons_for({"cpu": 1, "node_selector": (("kubernetes.io/hostname", "old-1"),)})["main"]
    wanted = "label kubernetes.io/hostname=old-1 wanted, node has kubernetes.io/hostname=(a new name)"
    assert chosen == ("selector", f"g.1 in z1: {wanted}")


def test_the_reason_names_the_accelerator_if_several_resources_are_lacking() -> None:
    assert reasons_for({"cpu": 9, "gpus": 2})["main"][1] == "g.1 in z1: 2 nvidia.com/gpu requested, an empty machine has 1"


def test_the_reason_for_a_pool_comes_from_the_offering_that_nearly_fits() -> None:
    made = planned([pod("p", spec(gpus=6))], pool(offering("g.1"), offering("g.4", 4.0, gpus=4), offering("h.1")))
    assert reasons(made, "p")[0].detail == "g.4 in z1: 6 nvidia.com/gpu requested, an empty machine has 4"


def test_the_reason_names_a_market_that_no_pool_offers() -> None:
    made = planned([pod("p", options={"market": ("reserved",)})], MENU[0])
    (reason,) = reasons(made, "p")
    assert (reason.excluded_by, reason.detail) == ("market", "g.1 in z1 is on-demand; the pod wants reserved")


def test_the_reason_for_a_pool_without_offerings_is_market() -> None:
    made = planned([node("a"), pod("p", spec(gpus=9))], Pool("empty", ()))
    assert [(r.pool, r.excluded_by) for r in reasons(made, "p")] == [("empty", "market")]


def test_reasons_are_listed_in_the_order_of_the_pools_file() -> None:
    made = planned([pod("p", spec(gpus=99))], *MENU)
    assert [reason.pool for reason in reasons(made, "p")] == ["main", "large", "arm"]


def test_unplaced_pods_of_one_class_share_their_reasons() -> None:
    made = planned([pod(f"p-{n}") for n in range(3)], pool(offering(), max=1))
    assert bought(made) == {"g.1": 1}
    assert len({entry.reasons for entry in made.unplaced}) == 1


def test_the_reason_for_an_offering_set_comes_from_the_member_that_does_not_fit() -> None:
    mixed = pool(offering("g.1"), offering("g.8", 8.0, gpus=8), chooser="cloud")
    (reason,) = reasons(planned([pod("p", spec(gpus=8))], mixed), "p")
    assert (reason.excluded_by, reason.detail) == ("resource", "g.1 in z1: 8 nvidia.com/gpu requested, an empty machine has 1")


SMALL, LARGE = offering("g.1"), offering("g.8", 8.0, gpus=8, cpu=96)


@pytest.mark.parametrize(
    "of",
    [
        {"gpus": 16},
        {"gpus": 1, "node_selector": ((ZONE, "z9"),)},
        {"gpus": 1, "node_affinity": affinity((TYPE, "In", "x"))},
        {"gpus": 1, "node_selector": ((ARCH, "arm64"),)},
    ],
)
def test_no_machine_of_any_pool_fits_a_pod_that_all_exclude_by_size_labels_or_taints(of: Mapping[str, Any]) -> None:
    tainted = pool(offering("h.1", pool="tainted", taints=(Taint("team", "ml"),)))

    assert fits_no_pool(reasons(planned([pod("p", spec(**of))], pool(SMALL, LARGE), tainted), "p"))


def test_a_pod_that_a_limit_or_its_market_excludes_from_one_pool_may_fit_later() -> None:
    full = planned([pod("p", spec(gpus=8))], pool(SMALL, LARGE), limits=Limits(gpus=4))
    market = planned([pod("p", spec(gpus=8), options={"market": ("spot",)})], pool(SMALL, LARGE))

    assert [(reason.excluded_by, fits_no_pool((reason,))) for made in (full, market) for reason in reasons(made, "p")] == [
        ("limit", False),
        ("market", False),
    ]


def test_a_pod_that_only_fits_on_a_paused_type_may_fit_later() -> None:
    breakers = Breakers((Breaker(Target(instance_types=("g.8",)), "capacity", 1, NOW, NOW, NOW + 600.0),))
    paused = State(blocked_offerings=frozenset({LARGE.key}), breakers=breakers)

    (reason,) = reasons(planned([pod("p", spec(gpus=8))], pool(SMALL, LARGE), state=paused), "p")
    assert (reason.excluded_by, fits_no_pool((reason,))) == ("market", False)
    assert reason.detail.startswith("g.1 in z1: 8 nvidia.com/gpu requested, an empty machine has 1; g.8 in z1: ")
    for of, options in (({"gpus": 16}, {}), ({"gpus": 8, "node_selector": ((ZONE, "z9"),)}, {}), ({"gpus": 8}, {"market": ("spot",)})):
        made = planned([pod("p", spec(**of), options=options)], pool(SMALL, LARGE), state=paused)
        assert "g.8 in z1" not in reasons(made, "p")[0].detail


@pytest.mark.parametrize("name", ["nvidia.com/gpus", "nvidia.com/gpu.count", "NVIDIA.com/gpu"])
def test_the_reason_suggests_the_right_name_of_a_resource(name: str) -> None:
    (reason,) = reasons(planned([pod("p", spec(requests={name: 1}))], pool(SMALL)), "p")

    assert (reason.excluded_by, reason.detail) == (
        "resource",
        f"g.1 in z1: 1 {name} requested, an empty machine has 0; did you mean nvidia.com/gpu?",
    )


def test_a_pod_that_requests_gpus_by_a_wrong_name_gets_no_advice_to_sell_gpu_machines_without_gpus() -> None:
    (reason,) = reasons(planned([pod("p", spec(requests={"nvidia.io/gpu": 1}))], pool(SMALL, buys_without_gpus=False)), "p")

    assert reason.detail == (
        "g.1 in z1 is bought only for pods that request GPUs, and the pod requests none; "
        "it requests nvidia.io/gpu; did you mean nvidia.com/gpu?"
    )


def test_the_right_name_of_a_resource_is_suggested_although_a_taint_comes_first() -> None:
    tainted = pool(offering(taints=(Taint("team", "ml"),)))
    (reason,) = reasons(planned([pod("p", spec(requests={"nvidia.com/gpus": 1}))], tainted), "p")

    assert reason.excluded_by == "taint"
    assert reason.detail.endswith("; it requests nvidia.com/gpus; did you mean nvidia.com/gpu?")


def test_a_resource_that_a_node_offers_is_not_taken_for_a_mistake() -> None:
    resources: dict[str, Any] = {"nvidia.com/gpus": 1}
    own = node("n1", offering("own", gpus=0, **resources))
    (reason,) = reasons(planned([own, pod("p", spec(requests={"nvidia.com/gpus": 2}))], pool(SMALL)), "p")

    assert "did you mean" not in reason.detail


def test_the_reason_of_the_pool_with_a_similar_label_suggests_it() -> None:
    pools = (pool(offering(pool="gpu")), pool(offering("c.1", pool="cpu", gpus=0)))

    def suggested(*selector: tuple[str, str]) -> dict[str, str]:
        made = planned([pod("p", spec(gpus=1, node_selector=selector))], *pools)
        return {reason.pool: text for reason in reasons(made, "p") if (text := reason.detail.partition("; did you mean ")[2])}

    assert suggested(("gpuscaler.io/pool", "gpuu")) == {"gpu": "gpuscaler.io/pool=gpu?"}
    assert suggested(("gpuscaler.io/pool", "GPU")) == {"gpu": "gpuscaler.io/pool=gpu?"}
    assert suggested(("gpuscaler.io/pol", "gpu")) == {"gpu": "gpuscaler.io/pool=gpu?"}
    assert suggested((TYPE, "c.1"), ("nvidia.com/gpu.produt", "A100")) == {"gpu": "nvidia.com/gpu.product=A100?"}
    assert suggested(("gpuscaler.io/pool", "gpuu"), (PRODUCT, "A10")) == {"gpu": "gpuscaler.io/pool=gpu, nvidia.com/gpu.product=A100?"}
    assert suggested(("gpuscaler.io/pool", "other")) == {}
    assert suggested(("kubernetes.io/hostname", "template-9")) == {}


def test_a_label_that_a_node_has_is_not_taken_for_a_mistake() -> None:
    other = node("n1", offering(pool="gpuu"))
    made = planned([other, pod("p", spec(gpus=9, node_selector=(("gpuscaler.io/pool", "gpuu"),)))], pool(offering(pool="gpu")))

    assert "did you mean" not in reasons(made, "p")[0].detail
