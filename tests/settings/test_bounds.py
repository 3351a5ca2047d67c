"""Purchases without configured limits, and the pods for which GPU machines are bought."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.hostile.workloads import NOW, cluster_of, gangs, node, pod

from gpuscaler.cli import main
from gpuscaler.model.pools import DEFAULT_DOLLARS, Limits, boundless_warning, with_default_limit
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State
from gpuscaler.settings.pools_file import parse_settings

POOL = "region: us-east-1\npools:\n  - {name: gpu, types: [g5.xlarge], zones: [us-east-1a]MORE}\n"
MIXED = "region: us-east-1\npools:\n  - {name: all, types: [g5.xlarge, m6i.xlarge], zones: [us-east-1a]}\n"


def settings(more: str = "", rest: str = "") -> str:
    return POOL.replace("MORE", more) + rest


@pytest.mark.parametrize(
    ("text", "stated", "assumed"),
    [
        (settings(), False, True),
        (settings(rest="limits:\n"), False, True),
        (settings(rest="limits: {machines_per_minute: 5}\n"), True, True),
        (settings(more=", max: 5"), False, False),
        (settings(rest="limits: {gpus: 8}\n"), True, False),
        (settings(rest="limits: {}\n"), True, True),
        (settings(rest="limits: none\n"), True, True),
    ],
)
def test_without_any_limit_a_default_limit_is_assumed(text: str, stated: bool, assumed: bool) -> None:
    settings = parse_settings(text)
    policy = with_default_limit(settings.policy)

    assert settings.limits_stated == stated
    assert policy.limits.assumed == assumed
    assert bool(boundless_warning(policy)) == assumed
    if assumed:
        assert policy.limits.dollars_per_hour == DEFAULT_DOLLARS
    else:
        assert policy is settings.policy


def test_limits_none_means_no_limit() -> None:
    assert parse_settings(settings(rest="limits: none\n")).policy.limits == Limits()


@pytest.mark.parametrize(("rest", "warns"), [("", True), ("limits: none\n", False), ("limits: {gpus: 8}\n", False)])
def test_validate_warns_if_a_file_sets_no_limit(tmp_path: Path, rest: str, warns: bool) -> None:
    (tmp_path / "pools.yaml").write_text(settings(rest=rest))
    answer = CliRunner().invoke(main, ["validate", str(tmp_path / "pools.yaml")])

    assert answer.exit_code == 0
    assert ("warning: limits: saw no limits" in answer.stderr) == warns


def test_validate_warns_of_sizes_that_no_pool_is_for(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text(
        "region: us-east-1\nlimits: none\npools: [{name: one, types: [g5.xlarge]}, "
        "{name: eight, types: [g5.48xlarge], min_gpus_per_pod: 8}]\n"
    )
    answer = CliRunner().invoke(main, ["validate", str(tmp_path / "pools.yaml")])

    assert answer.exit_code == 0
    assert "warning: pool eight: saw min_gpus_per_pod: 8, but no pool is for pods with 2 to 7 GPUs" in answer.stderr


def test_the_reason_of_a_pod_stopped_by_the_default_limit_says_that_it_is_the_default() -> None:
    policy = with_default_limit(parse_settings(settings()).policy)
    made = plan(cluster_of(pod(n) for n in range(300)), State(), policy, NOW)

    assert 0 < sum(machine.price_per_hour for machine in made.machines) <= DEFAULT_DOLLARS
    assert "the default, because no limits are set" in made.unplaced[0].reasons[0].detail
    assert made.warnings[0].startswith("limits: saw no limits")


def test_no_gpu_machine_is_bought_for_pods_without_gpus() -> None:
    made = plan(cluster_of([pod("small", gpu="0")]), State(), parse_settings(settings()).policy, NOW)

    assert not made.machines
    ((reason,),) = (each.reasons for each in made.unplaced)
    assert reason.excluded_by == "taint"
    assert "is bought only for pods that request GPUs, and the pod requests none; set min_gpus_per_pod: 0" in reason.detail


@pytest.mark.parametrize("text", [settings(more=", min_gpus_per_pod: 0"), MIXED])
def test_pods_without_gpus_are_served_by_a_pool_that_allows_them_or_has_cpu_machines(text: str) -> None:
    made = plan(cluster_of([pod("small", gpu="0")]), State(), parse_settings(text).policy, NOW)

    assert [machine.pods for machine in made.machines] == [("tenant/small",)]


def test_pods_without_gpus_use_existing_gpu_machines_as_none_are_kept_by_default() -> None:
    policy = parse_settings(settings()).policy
    made = plan(cluster_of([node("n1"), pod("small", gpu="0")]), State(), policy, NOW)

    assert [(placement.pod, placement.node) for placement in made.placements] == [("tenant/small", "n1")]
    assert policy.pools[0].min_gpus_per_pod == 0


def test_a_gang_member_without_gpus_is_placed_with_its_gang() -> None:
    members = gangs(2, 2, alike=True)
    members[0]["spec"]["containers"][0]["resources"]["limits"] = {}
    made = plan(cluster_of(members), State(), parse_settings(settings()).policy, NOW)

    assert sorted(key for machine in made.machines for key in machine.pods) == ["tenant/p0", "tenant/p1"]
