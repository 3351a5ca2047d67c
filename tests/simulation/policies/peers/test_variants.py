"""Peers with other settings: their names, and the search for the cheapest setting."""

from collections.abc import Sequence

import pytest
from tests.simulation.policies.peers.recording import pools_of, replay
from tests.simulation.pools import GIB, trace

from gpuscaler.simulation.policies.peers.settings import ClusterAutoscalerSettings, KarpenterSettings
from gpuscaler.simulation.policies.peers.variants import AXES, axes_of, peer_by_name, peer_name, sweep_settings
from gpuscaler.simulation.policies.policies import autoscaler_of
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.meter import Result

POLICY = pools_of(["g5.xlarge", "g5.12xlarge"])
SETTINGS = {"karpenter": KarpenterSettings(), "cluster-autoscaler": ClusterAutoscalerSettings()}
JOBS = trace(*[Job(f"p{number}", 300.0 * number, 500.0, gpus=1, cpu_milli=1000, memory=GIB) for number in range(12)])


def results(names: Sequence[str]) -> list[Result]:
    return [replay(JOBS, POLICY, autoscaler_of(name, POLICY, ())) for name in names]


def test_a_variants_name_contains_its_settings_and_its_results_have_that_name() -> None:
    name = peer_name("karpenter", {"consolidate_after": 300.0, "budget": 1.0})
    assert name == "karpenter(budget=1.0,consolidate_after=300.0)"
    default, slow = results(["karpenter", name])
    assert (default.policy, slow.policy) == ("karpenter", name)
    assert sum(row.machines for row in slow.machine_hours) < sum(row.machines for row in default.machine_hours)


def test_a_setting_of_none_is_part_of_a_variants_name_too() -> None:
    assert peer_by_name(peer_name("cluster-autoscaler", {"error_signal": None, "expander": "price"}), POLICY) is not None


def test_a_name_that_is_not_that_of_a_peer_is_not_parsed_as_a_variant() -> None:
    assert peer_by_name("gpuscaler", POLICY) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("karpenter(patience=3)", "unknown setting patience: expected one of batch_idle, "),
        ("karpenter(budget=all)", "Expected `float`"),
        ("cluster-autoscaler(expander=cheapest)", "unknown expander 'cheapest'"),
    ],
)
def test_the_error_names_an_unknown_setting_or_value_of_a_variant(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        peer_by_name(name, POLICY)


@pytest.mark.parametrize("base", sorted(AXES))
def test_a_sweep_tries_every_value_and_its_result_costs_no_more_than_the_defaults(base: str) -> None:
    requested: list[str] = []

    def run(names: Sequence[str]) -> list[Result]:
        requested.extend(names)
        return results(names)

    swept = sweep_settings(base, run)
    default = next(result for result in swept if result.policy == base)
    assert swept[0].cost <= default.cost
    assert [result.cost for result in swept] == sorted(result.cost for result in swept)
    for key, values in AXES[base].items():
        for value in values[1:]:
            assert peer_name(base, {key: value}) in requested
    assert len(requested) == len(set(requested))


@pytest.mark.parametrize("base", sorted(AXES))
def test_if_pods_may_be_moved_a_sweep_also_tries_the_settings_that_move_them(base: str) -> None:
    without, having = axes_of(base, moves=False), axes_of(base, moves=True)
    assert without == AXES[base]
    assert set(having) > set(without)
    for key, values in having.items():
        assert peer_by_name(peer_name(base, {key: values[0]}), POLICY) is not None
        assert getattr(SETTINGS[base], key) == values[0], "the default comes first"
