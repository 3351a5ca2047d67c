from pathlib import Path

import pytest

from gpuscaler.model.pools import Budget, Limits, Offering, Policy, Pool, Spare
from gpuscaler.model.taints import Taint
from gpuscaler.settings import SettingsError, load_policy, parse_policy

GIB = 2**30


def policy(text: str) -> Policy:
    return parse_policy(text, "pools.yaml")


def pool(text: str) -> Pool:
    """Parse a file with the region us-east-1 and a pool with the keys ``text``; return the pool."""
    body = "".join(f"    {line}\n" for line in text.strip().splitlines())
    (only,) = policy(f"region: us-east-1\npools:\n  - name: p\n{body}").pools
    return only


def keys(offerings: tuple[Offering, ...]) -> list[tuple[str, str, str, float]]:
    return [(o.instance_type, o.market, o.zone, o.price) for o in offerings]


def test_a_file_that_names_only_one_type_gets_every_default() -> None:
    parsed = policy("region: us-east-1\npools:\n- name: gpu\n  types: [g5.xlarge]\n")

    (only,) = parsed.pools
    assert keys(only.offerings) == [("g5.xlarge", "on-demand", "", 1.006)]
    assert (only.chooser, only.min, only.max, only.spare, only.idle_after) == ("buyer", 0, None, Spare(), 600.0)
    assert (only.priority, only.arch, only.match_labels, only.startup_taints, only.budgets) == (0, None, {}, (), ())
    assert only.min_gpus_per_pod == 0
    assert parsed.limits == Limits()
    assert (parsed.region, parsed.preferences, parsed.schedulers) == ("us-east-1", "ignore", ("default-scheduler",))
    assert (parsed.priority_cutoff, parsed.min_saving) == (-10, 0.0)


def test_every_key_of_the_pools_file_is_read() -> None:
    parsed = policy("""
pools:
  - name: all
    chooser: cloud
    min: 1
    max: 9
    spare: {gpus: 3}
    idle_after: 1h30m
    min_gpus_per_pod: 1
    labels: {team: ml, example.com/tier: ""}
    taints: ["a=b:NoSchedule"]
    startup_taints: ["s:NoExecute"]
    priority: -3
    arch: amd64
    zones: [eu-west-1a]
    markets: [spot]
    types: [g5.xlarge]
    budgets: [{nodes: 2}]
limits: {gpus: 8, machines: 4, dollars_per_hour: 12.5, machines_per_minute: 2}
region: us-east-1
preferences: respect
schedulers: [default-scheduler, volcano]
priority_cutoff: -1000
min_saving: 0.25
""")

    (only,) = parsed.pools
    assert (only.chooser, only.min, only.max, only.spare, only.idle_after) == ("cloud", 1, 9, Spare(gpus=3), 5400.0)
    assert only.min_gpus_per_pod == 1
    assert only.match_labels == {"team": "ml", "example.com/tier": ""}
    assert only.configured_labels == ("team", "example.com/tier")
    assert only.offerings[0].taints == (Taint("a", "b", "NoSchedule"),)
    assert only.startup_taints == (Taint("s", "", "NoExecute"),)
    assert (only.priority, only.arch, only.budgets) == (-3, "amd64", (Budget("2"),))
    assert parsed.limits == Limits(gpus=8, machines=4, dollars_per_hour=12.5, machines_per_minute=2)
    assert (parsed.region, parsed.preferences, parsed.schedulers) == ("us-east-1", "respect", ("default-scheduler", "volcano"))
    assert (parsed.priority_cutoff, parsed.min_saving) == (-1000, 0.25)


def test_the_short_form_offers_each_type_in_each_market_and_zone_at_list_price() -> None:
    offerings = pool("types: [g5.xlarge, m6i.xlarge]\nmarkets: [spot, on-demand]\nzones: [us-east-1a, us-east-1b]").offerings

    assert len(offerings) == 8
    assert keys(offerings)[0] == ("g5.xlarge", "spot", "us-east-1a", 0.41246)
    assert keys(offerings)[3] == ("g5.xlarge", "on-demand", "us-east-1b", 1.006)
    assert len({offering.key for offering in offerings}) == 8


def test_an_offering_without_market_and_zone_is_expanded_to_those_of_the_pool() -> None:
    parsed = pool("""
zones: [us-east-1a, us-east-1b]
markets: [spot]
offerings:
  - type: g5.xlarge
  - {type: g5.2xlarge, zone: us-east-1c, price: 0.5}
  - {type: g5.4xlarge, market: reserved, price: 0}
""")

    assert keys(parsed.offerings) == [
        ("g5.xlarge", "spot", "us-east-1a", 0.41246),
        ("g5.xlarge", "spot", "us-east-1b", 0.41246),
        ("g5.2xlarge", "spot", "us-east-1c", 0.5),
        ("g5.4xlarge", "reserved", "us-east-1a", 0.0),
        ("g5.4xlarge", "reserved", "us-east-1b", 0.0),
    ]


def test_an_offering_has_the_list_price_of_the_region_of_its_zone() -> None:
    parsed = pool("types: [g5.xlarge]\nzones: [eu-west-1a, us-east-1a]")

    assert [offering.price for offering in parsed.offerings] == [1.123, 1.006]


def test_each_configured_resource_overrides_only_that_of_the_catalogue() -> None:
    parsed = pool("""
offerings:
  - type: g5.xlarge
    resources: {memory: 15Gi, cpu: 3.5, nvidia.com/gpu: 0, nvidia.com/gpu.shared: "4"}
""")

    assert parsed.offerings[0].allocatable == {
        "cpu": 3500,
        "memory": 15 * GIB,
        "ephemeral-storage": 17 * GIB,
        "pods": 58,
        "nvidia.com/gpu": 0,
        "nvidia.com/gpu.shared": 4,
    }


def test_an_unknown_type_needs_resources_and_a_price() -> None:
    (offering,) = pool("""
zones: [cellar]
offerings:
  - {type: dgx, price: 9, resources: {cpu: 250, memory: 1e12, nvidia.com/gpu: 8, hugepages-2Mi: 1Gi}}
""").offerings

    assert offering.allocatable == {"pods": 110, "cpu": 250_000, "memory": 10**12, "nvidia.com/gpu": 8, "hugepages-2Mi": GIB}
    assert (offering.labels["kubernetes.io/arch"], offering.labels["nvidia.com/gpu.count"]) == ("amd64", "8")


def test_unknown_types_get_the_architecture_of_their_pool() -> None:
    parsed = pool("arch: arm64\ntypes: [g5g.xlarge]\nofferings: [{type: mine, price: 1, resources: {cpu: 1, memory: 1Gi}}]")

    assert parsed.arch == "arm64"
    assert {offering.labels["kubernetes.io/arch"] for offering in parsed.offerings} == {"arm64"}


def test_an_arm_type_in_a_pool_without_arch_keeps_its_label() -> None:
    parsed = pool("types: [g5g.xlarge]")

    assert parsed.arch is None
    assert parsed.offerings[0].labels["kubernetes.io/arch"] == "arm64"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("k=v:NoSchedule", Taint("k", "v", "NoSchedule")),
        ("k:NoExecute", Taint("k", "", "NoExecute")),
        ("example.com/k=:PreferNoSchedule", Taint("example.com/k", "", "PreferNoSchedule")),
        ("{key: k, value: v, effect: NoSchedule}", Taint("k", "v", "NoSchedule")),
        ('{key: k, value: "", effect: NoExecute}', Taint("k", "", "NoExecute")),
        ("{key: k, effect: NoExecute}", Taint("k", "", "NoExecute")),
    ],
)
def test_a_taint_is_read_in_every_form(written: str, expected: Taint) -> None:
    parsed = pool(f"types: [g5.xlarge]\ntaints:\n  - {written}\nstartup_taints:\n  - {written}")

    assert parsed.offerings[0].taints == parsed.startup_taints == (expected,)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("nodes: 5", Budget("5")),
        ("nodes: 10%", Budget("10%")),
        ("nodes: '0'", Budget("0")),
        ("{nodes: 1, reasons: [idle]}", Budget("1", ("idle",))),
        ("{nodes: 1, reasons: [Empty, idle, Underutilized]}", Budget("1", ("idle", "consolidation"))),
        ('{nodes: 0, schedule: "0 9 * * mon-fri", duration: 8h}', Budget("0", (), "0 9 * * mon-fri", 28800.0)),
        ('{nodes: 0, schedule: "@daily", duration: 10m}', Budget("0", (), "@daily", 600.0)),
    ],
)
def test_disruption_budgets_are_read_as_karpenter_reads_them(written: str, expected: Budget) -> None:
    assert pool(f"types: [g5.xlarge]\nbudgets:\n  - {written}").budgets == (expected,)


@pytest.mark.parametrize(("written", "seconds"), [("0", 0.0), ("0s", 0.0), ("90s", 90.0), ("1.5h", 5400.0), ("1h30m", 5400.0)])
def test_idle_after_is_a_go_duration_or_a_plain_zero(written: str, seconds: float) -> None:
    assert pool(f"types: [g5.xlarge]\nidle_after: {written}").idle_after == seconds


@pytest.mark.parametrize(("written", "expected"), [("2", Spare(machines=2)), ("{gpus: 2}", Spare(gpus=2)), ("0", Spare())])
def test_spare_is_a_number_of_machines_or_gpus(written: str, expected: Spare) -> None:
    assert pool(f"types: [g5.xlarge]\nspare: {written}").spare == expected


def test_a_key_without_a_value_gets_its_default() -> None:
    assert pool("types: [g5.xlarge]\nmax:\nidle_after:\nlabels:\nspare: ~") == pool("types: [g5.xlarge]")


def test_anchors_aliases_and_merge_keys_work_and_explicit_keys_take_precedence() -> None:
    parsed = policy("""
pools:
  - &base
    name: a
    types: [g5.xlarge]
    zones: &zones [us-east-1a]
    max: 3
  - <<: *base
    name: b
    max: 5
  - <<: [{max: 7}, *base]
    name: c
    zones: *zones
""")

    assert [(p.name, p.max, p.offerings[0].zone) for p in parsed.pools] == [
        ("a", 3, "us-east-1a"),
        ("b", 5, "us-east-1a"),
        ("c", 7, "us-east-1a"),
    ]


def test_json_is_yaml() -> None:
    assert policy('{"region": "us-east-1", "pools": [{"name": "a", "types": ["g5.xlarge"], "min": 1}]}').pools[0].min == 1


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_bytes(b"\xef\xbb\xbfregion: us-east-1\r\npools:\r\n- name: a\r\n  types: [g5.xlarge]\r\n")

    assert load_policy(path) == load_policy(str(path)) == policy(path.read_text("utf-8-sig"))


def test_a_file_of_five_megabytes_is_read_in_seconds() -> None:
    template = (
        "- {name: pool-%d, types: [g5.xlarge, g5.12xlarge], markets: [spot, on-demand], labels: {team: ml}, max: 10} # " + "." * 330 + "\n"
    )
    text = "region: us-east-1\npools:\n" + "".join(template % index for index in range(11_500))
    assert len(text) > 5_000_000

    assert len(policy(text).pools) == 11_500


@pytest.mark.parametrize("missing", ["absent.yaml", "."])
def test_the_error_for_an_unreadable_file_names_the_file(tmp_path: Path, missing: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as raised:
        load_policy(tmp_path / missing)

    assert raised.value.source == str(tmp_path / missing)


def test_bytes_that_are_not_utf8_are_reported_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_bytes(b"region: us-east-1\npools: \xff\n")

    with pytest.raises(SettingsError, match=r"pools.yaml:2: saw the byte 0xff, expected UTF-8"):
        load_policy(tmp_path / "pools.yaml")
