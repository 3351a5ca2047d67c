"""Forecasts for the next machine: from machines that were bought, from existing nodes, from settings."""

import pytest
from tests.planning.building import NOW, node, offering

from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.service import configured_forecast
from gpuscaler.lifecycle.memory import Memory
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.planning.state.boot_times import Boots, BootTimes, Forecast
from gpuscaler.settings import parse_settings

KIND, OTHER = offering("g.1"), offering("g.2")
SET = Forecast(25.0, 30.0, basis="simulated.boot")


def latest(*boots: float, bought: Boots | None = None, listed: bool = True) -> Latest:
    """A cluster with nodes that registered these numbers of seconds after their launch."""
    machines = [Instance(f"i-{number}", *KIND.key, launched=NOW - took) for number, took in enumerate(boots)]
    nodes = [node(f"n{number}", KIND, provider_id=f"i-{number}", created=NOW) for number, _ in enumerate(boots)]
    inventory = Inventory(NOW, tuple(machines)) if listed else None
    return Latest(Cluster.of(nodes), Memory(boots=bought or Boots()), simulated=SET, inventory=lambda: inventory)


def test_boot_times_are_forecast_from_existing_nodes_until_a_machine_is_bought() -> None:
    forecast = latest(40.0, 60.0, 50.0).forecast_for(KIND.key)

    assert (forecast.typical, forecast.seen) == (50.0, 0)
    assert forecast.basis == "from 3 of its kind that became nodes, without device plugins; none was bought by gpuscaler yet"


def test_boot_times_of_bought_machines_take_precedence_over_those_of_existing_nodes() -> None:
    bought = Boots((BootTimes(KIND.pool, "g.1", (10.0,) * 9, (5.0,) * 9),))

    assert latest(40.0, bought=bought).forecast_for(KIND.key) == Forecast(15.0, 15.0, 9, "")


@pytest.mark.parametrize("boots", [(), (-5.0,), (3600.0,)])
def test_if_no_node_has_a_usable_boot_time_the_forecast_comes_from_the_settings(boots: tuple[float, ...]) -> None:
    assert latest(*boots).forecast_for(KIND.key) == SET


def test_the_forecast_comes_from_the_settings_without_a_list_of_machines_or_for_another_offering() -> None:
    assert latest(40.0, listed=False).forecast_for(KIND.key) == SET
    assert latest(40.0).forecast_for(OTHER.key) == SET


def test_boot_times_are_forecast_from_the_settings_of_the_simulated_cloud() -> None:
    text = "region: us-east-1\ncloud: {}\n{}pools: [{{name: a, types: [g5.xlarge]}}]\n"
    simulated = parse_settings(text.format("simulated", "simulated: {boot: 20s, device_plugin_delay: 5s}\n"))

    assert configured_forecast(simulated) == Forecast(
        25.0, 25.0, basis="from simulated.boot and device_plugin_delay; no machine has started yet"
    )
    assert configured_forecast(parse_settings("cloud: aws\naws: {cluster: c, regions: [us-east-1]}\n")) is None
