import re
from pathlib import Path

import pytest

from gpuscaler.model.overrides import OfferingPrice, PoolOverride, apply_override
from gpuscaler.model.pools import Offering, Pool, Spare
from gpuscaler.model.taints import Taint
from gpuscaler.settings import SettingsError, load_policy, parse_settings
from gpuscaler.settings.pools import OVERRIDE_KEYS


def test_every_key_of_the_mapping_aws_is_read() -> None:
    settings = parse_settings(
        "cloud: aws\naws: {cluster: prod, regions: [us-east-1, eu-west-1], groups: [a, a], tags: {team: ml},\n"
        "  prices: {g5.xlarge/spot: 0.3, g5.xlarge: 1}}"
    ).aws

    assert (settings.cluster, settings.regions, settings.groups, settings.tags) == (
        "prod",
        ("us-east-1", "eu-west-1"),
        ("a",),
        {"team": "ml"},
    )
    assert settings.prices == (OfferingPrice("g5.xlarge", 0.3, "spot"), OfferingPrice("g5.xlarge", 1, "on-demand"))


def test_excluded_groups_are_names_patterns_or_tags() -> None:
    settings = parse_settings("region: us-east-1\ncloud: aws\naws: {exclude: [system, 'cpu-*', tag:team=web, 'tag:legacy']}").aws

    assert settings.exclude == ("system", "cpu-*", "tag:team=web", "tag:legacy")


def test_a_tag_without_a_key_is_rejected() -> None:
    with pytest.raises(SettingsError, match="a tag's key after tag:"):
        parse_settings("region: us-east-1\ncloud: aws\naws: {exclude: ['tag:=web']}")


def test_the_top_level_region_is_used_if_the_mapping_aws_has_none() -> None:
    assert parse_settings("region: us-east-1\ncloud: aws").aws.regions == ("us-east-1",)


def test_an_aws_file_without_any_region_is_rejected() -> None:
    with pytest.raises(SettingsError, match="saw no region"):
        parse_settings("cloud: aws\naws: {cluster: prod}")


def test_pools_in_an_aws_file_only_override_discovered_pools() -> None:
    settings = parse_settings("region: us-east-1\ncloud: aws\npools: [{name: a, max: 5, offerings: [{type: g5.xlarge, price: 2}]}]")

    assert settings.policy.pools == ()
    assert settings.aws.overrides == (PoolOverride("a", max=5, prices=(OfferingPrice("g5.xlarge", 2),)),)


def test_a_command_that_needs_pools_in_the_file_says_that_aws_pools_are_discovered(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("region: us-east-1\ncloud: aws")

    with pytest.raises(SettingsError, match="whose pools come from the account"):
        load_policy(file)


def test_an_override_replaces_only_the_discovered_values_that_it_names() -> None:
    discovered = Offering("a", "spot", "g5.xlarge", "us-east-1a", 0.5, {"cpu": 4000}, {"team": "x"}, (Taint("gpu"),))
    pool = Pool("a", (discovered,), min=1, max=3, match_labels={"team": "x"}, configured_labels=("tagged", "team"))
    override = PoolOverride(
        "a",
        max=9,
        spare=Spare(1),
        labels={"team": "y", "tier": "1"},
        taints=(Taint("gpu", "true"), Taint("other")),
        prices=(
            OfferingPrice("g5.xlarge", 2),
            OfferingPrice("g5.xlarge", 0.1, "spot"),
            OfferingPrice("g5.xlarge", 7, "spot", "us-east-1b"),
        ),
    )

    changed = apply_override(pool, override)

    assert (changed.min, changed.max, changed.spare, changed.match_labels) == (1, 9, Spare(1), {"team": "y", "tier": "1"})
    assert changed.configured_labels == ("tagged", "team", "tier")
    (offering,) = changed.offerings
    assert offering.price == 0.1
    assert offering.labels == {"team": "y", "tier": "1"}
    assert offering.taints == (Taint("gpu", "true"), Taint("other"))


def test_a_price_without_a_market_is_the_on_demand_price_of_a_pool_with_both_markets() -> None:
    offerings = tuple(Offering("a", market, "g5.xlarge", "us-east-1a", 0.5, {}, {}) for market in ("spot", "on-demand", "reserved"))

    changed = apply_override(Pool("a", offerings), PoolOverride("a", prices=(OfferingPrice("g5.xlarge", 2),)))

    assert [offering.price for offering in changed.offerings] == [0.5, 2, 0.5]


def test_every_key_that_overrides_a_discovered_pool_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "aws.md").read_text()
    changing = page.split("## Changing what was found\n")[1].split("\n## ")[0]

    assert set(OVERRIDE_KEYS) - {"name"} <= set(re.findall(r"`(\w+)`", changing))


def test_the_name_of_every_pool_overrides_all_of_them() -> None:
    settings = parse_settings("region: us-east-1\ncloud: aws\npools: [{name: '*', idle_after: 5m}, {name: a, idle_after: 1m}]")

    assert settings.overrides == (PoolOverride("*", idle_after=300.0), PoolOverride("a", idle_after=60.0))


@pytest.mark.parametrize("key", ["labels: {a: b}", "taints: ['a:NoSchedule']", "offerings: [{type: g5.xlarge, price: 2}]"])
def test_what_machines_of_every_pool_cannot_have_in_common_is_rejected(key: str) -> None:
    with pytest.raises(SettingsError, match="expected them of one pool; name the pool"):
        parse_settings(f"region: us-east-1\ncloud: aws\npools: [{{name: '*', {key}}}]")


def test_a_pool_of_a_file_cannot_be_every_pool() -> None:
    with pytest.raises(SettingsError, match="expected a pool's name"):
        parse_settings("region: us-east-1\npools: [{name: '*', types: [g5.xlarge]}]")
