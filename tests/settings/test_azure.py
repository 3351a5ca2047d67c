import re
from pathlib import Path

import pytest
from tests.settings.corpus import SUBSCRIPTION

from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.settings import SettingsError, load_policy, parse_settings
from gpuscaler.settings.clouds.azure import AzureCluster, AzureSettings, AzureSubscription
from gpuscaler.settings.pools import OVERRIDE_KEYS

OTHER = "11111111-0000-0000-0000-000000000000"
SMALLEST = f"cloud: azure\nazure: {{subscriptions: [{{id: {SUBSCRIPTION}, cluster: {{name: prod, resource_group: rg}}}}]}}\n"


def test_every_key_of_the_mapping_azure_is_read() -> None:
    settings = parse_settings(
        "cloud: azure\nazure:\n  subscriptions:\n"
        f"  - {{id: {SUBSCRIPTION}, cluster: {{name: prod, resource_group: rg}}, resource_groups: [a, a], pools: [sys],\n"
        "     tags: {team: ml}, exclude: ['cpu-*', 'tag:team=web']}\n"
        f"  - {{id: {OTHER}, resource_groups: [c]}}\n"
        "  endpoint_url: http://127.0.0.1:4577\n  api: vmss\n  prices: {Standard_NC6/spot: 0.3, Standard_NC6: 1}"
    ).azure

    assert settings == AzureSettings(
        subscriptions=(
            AzureSubscription(SUBSCRIPTION, AzureCluster("prod", "rg"), ("a",), ("sys",), {"team": "ml"}, ("cpu-*", "tag:team=web")),
            AzureSubscription(OTHER, resource_groups=("c",)),
        ),
        endpoint_url="http://127.0.0.1:4577",
        api="vmss",
        prices=(OfferingPrice("Standard_NC6", 0.3, "spot"), OfferingPrice("Standard_NC6", 1, "on-demand")),
    )


def test_a_size_in_another_case_has_its_price_a_second_time() -> None:
    twice = SMALLEST.replace("]}", "], prices: {Standard_NC6: 1, standard_nc6: 2}}")

    with pytest.raises(SettingsError, match='saw a second on-demand price of standard_nc6 \\(the first is "Standard_NC6"\\)'):
        parse_settings(twice)


def test_a_subscription_id_is_kept_in_lower_case() -> None:
    settings = parse_settings(SMALLEST.replace(SUBSCRIPTION, SUBSCRIPTION.upper()))

    assert settings.azure.subscriptions[0].id == SUBSCRIPTION


def test_an_azure_file_without_any_subscription_is_rejected() -> None:
    with pytest.raises(SettingsError, match="cloud: saw no subscription, expected those with the cluster's pools; add azure"):
        parse_settings("cloud: azure\nazure: {api: vmss}")


def test_the_same_subscription_in_another_case_is_a_second_time() -> None:
    twice = f"{{id: {SUBSCRIPTION}, resource_groups: [a]}}, {{id: {SUBSCRIPTION.upper()}, resource_groups: [b]}}"

    with pytest.raises(SettingsError, match=r"azure.subscriptions\[1\]: saw .* a second time \(first at azure.subscriptions\[0\]\); merge"):
        parse_settings(f"cloud: azure\nazure: {{subscriptions: [{twice}]}}")


@pytest.mark.parametrize("inside", ["", ", resource_groups: []", ", pools: [gpu]"])
def test_a_subscription_without_any_place_to_search_is_rejected(inside: str) -> None:
    with pytest.raises(SettingsError, match=r"azure.subscriptions\[0\]: saw neither cluster nor resource_groups"):
        parse_settings(f"cloud: azure\nazure: {{subscriptions: [{{id: {SUBSCRIPTION}{inside}}}]}}")


def test_tags_without_resource_groups_to_search_are_rejected() -> None:
    with pytest.raises(SettingsError, match="saw tags without resource_groups"):
        parse_settings(SMALLEST.replace("}}", "}, tags: {team: ml}}"))


def test_a_mistake_in_a_list_of_resource_groups_is_not_also_reported_as_a_missing_list() -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(f"cloud: azure\nazure: {{subscriptions: [{{id: {SUBSCRIPTION}, resource_groups: [a.], tags: {{a: b}}}}]}}")

    assert [problem.path for problem in raised.value.problems] == ["azure.subscriptions[0].resource_groups[0]"]


def test_pools_in_an_azure_file_only_override_discovered_pools() -> None:
    settings = parse_settings(SMALLEST + "pools: [{name: a, max: 5, offerings: [{type: Standard_NC6, price: 2}]}]")

    assert settings.policy.pools == ()
    assert settings.overrides == settings.azure.overrides == (PoolOverride("a", max=5, prices=(OfferingPrice("Standard_NC6", 2),)),)


def test_overrides_of_one_cloud_do_not_reach_the_settings_of_another() -> None:
    settings = parse_settings(SMALLEST).with_overrides((PoolOverride("a"),))

    assert (settings.azure.overrides, settings.aws.overrides) == ((PoolOverride("a"),), ())
    simulated = parse_settings("region: us-east-1\ncloud: simulated\npools: [{name: a, types: [g5.xlarge]}]")
    assert simulated.with_overrides((PoolOverride("a"),)) == simulated
    assert simulated.overrides == ()


def test_a_command_that_needs_pools_in_the_file_says_that_azure_pools_are_discovered(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(SMALLEST)

    with pytest.raises(SettingsError, match="saw azure, whose pools come from the account"):
        load_policy(file)


def test_every_key_that_overrides_a_discovered_pool_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "azure.md").read_text()
    changing = page.split("## Changing what was found\n")[1].split("\n## ")[0]

    assert set(OVERRIDE_KEYS) - {"name"} <= set(re.findall(r"`(\w+)`", changing))


def test_the_example_in_the_reference_is_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "azure.md").read_text()
    (example,) = re.findall(r"^```yaml pools-file\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert len(parse_settings(example).azure.subscriptions) == 2
