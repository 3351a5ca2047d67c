import msgspec
import pytest
from msgspec import Struct

from gpuscaler.clouds.discovery.describing import common_labels, least_resources, pools_by_warning, shortened_names, template_as_json
from gpuscaler.clouds.discovery.settings import matching_exclusion, with_overrides, with_unique_names
from gpuscaler.model.labels import label_value_of
from gpuscaler.model.overrides import PoolOverride
from gpuscaler.model.pools import Offering, Pool


class Found(Struct, frozen=True):
    """A pool as a cloud finds it."""

    pool: Pool
    place: str = "here"
    warnings: tuple[str, ...] = ()
    default_name: str = ""
    tagged: tuple[str, ...] = ()


def found(name: str, place: str = "here", default_name: str = "", **fields: object) -> Found:
    offering = Offering(name, "spot", "large", f"{place}-1", 1.0, {"cpu": 4000, "memory": 100}, {"team": "ml", "size": "large"})
    return Found(msgspec.structs.replace(Pool(name, (offering,)), **fields), place, default_name=default_name or name)


def labelled(name: str, default_name: str, place: str = "here") -> Found:
    """A pool of a group called ``default_name``, whose tag gives its nodes the pool label ``name``."""
    made = found(name, place, default_name, match_labels={"gpuscaler.io/pool": name})
    offerings = tuple(
        msgspec.structs.replace(offering, labels={**offering.labels, "gpuscaler.io/pool": name}) for offering in made.pool.offerings
    )
    return msgspec.structs.replace(made, pool=msgspec.structs.replace(made.pool, offerings=offerings))


@pytest.mark.parametrize(
    ("entry", "excludes"),
    [
        ("workers", True),
        ("work*", True),
        ("other-*", False),
        ("tag:team", True),
        ("tag:team=ml", True),
        ("tag:team=web", False),
        ("tag:owner", False),
    ],
)
def test_an_exclusion_names_a_pattern_or_a_tag(entry: str, excludes: bool) -> None:
    assert matching_exclusion("workers", {"team": "ml"}, ["nothing", entry]) == (entry if excludes else "")


@pytest.mark.parametrize(
    ("name", "value"), [("gpu", "gpu"), ("my workers!", "my-workers"), ("äö", "pool"), ("", "pool"), ("x" * 80, "x" * 63)]
)
def test_a_name_becomes_a_label_value(name: str, value: str) -> None:
    assert label_value_of(name, "pool") == value


def test_names_that_two_places_share_get_the_place_and_then_a_number() -> None:
    named = with_unique_names([found("gpu"), found("gpu"), found("gpu", "there"), found("cpu")], lambda one: one.place)

    assert [one.pool.name for one in named] == ["gpu.here", "gpu.here.1", "gpu.there", "cpu"]
    assert [one.pool.offerings[0].pool for one in named] == ["gpu.here", "gpu.here.1", "gpu.there", "cpu"]
    assert named[0].warnings == ("the pool is called gpu.here here, since another pool has its name",)
    assert named[3].warnings == ()


def test_a_label_of_another_group_does_not_rename_a_pool() -> None:
    named = with_unique_names([labelled("gpu", "aaa"), found("gpu"), labelled("gpu", "zzz", "there")], lambda one: one.place)

    assert [(one.default_name, one.pool.name) for one in named] == [("aaa", "gpu.here"), ("gpu", "gpu"), ("zzz", "gpu.there")]
    assert named[1].warnings == ()


def test_the_suffix_of_a_label_does_not_take_the_name_of_another_pool() -> None:
    named = with_unique_names([labelled("gpu", "aaa"), found("gpu"), found("gpu.here")], lambda one: one.place)

    assert [one.pool.name for one in named] == ["gpu.here.1", "gpu", "gpu.here"]


def test_a_renamed_pool_expects_the_label_that_its_nodes_get() -> None:
    renamed, _ = with_unique_names([labelled("gpu", "aaa"), found("gpu")], lambda one: one.place)

    assert renamed.pool.match_labels == {"gpuscaler.io/pool": "gpu.here"}
    assert {offering.labels["gpuscaler.io/pool"] for offering in renamed.pool.offerings} == {"gpu.here"}


def test_overrides_are_applied_and_impossible_limits_reported() -> None:
    gpu, cpu = with_overrides([found("gpu", min=3), found("cpu")], {"gpu": PoolOverride("gpu", max=2)})

    assert (gpu.pool.max, gpu.warnings) == (2, ("its minimum 3 is above its maximum 2",))
    assert (cpu.pool.max, cpu.warnings) == (None, ())


def test_pools_with_the_most_identifying_labels_come_first() -> None:
    ordered = with_overrides([found("gpu"), found("special", match_labels={"team": "ml"})], {})

    assert [one.pool.name for one in ordered] == ["special", "gpu"]


def test_warnings_are_listed_once_with_their_pools() -> None:
    pools = [msgspec.structs.replace(found(name), warnings=("odd",)) for name in ("a", "b", "c", "d")]

    assert pools_by_warning(pools) == {"odd": ["a", "b", "c", "d"]}
    assert shortened_names(["a", "b", "c", "d"]) == "a, b, c and 1 more"


def test_a_template_is_described_by_what_all_machines_have() -> None:
    (large,) = found("gpu").pool.offerings
    small = msgspec.structs.replace(
        large, instance_type="small", allocatable={"cpu": 2000}, labels={"team": "ml", "size": "small"}, count=3
    )

    assert common_labels([large, small]) == {"team": "ml"}
    assert least_resources([large, small]) == {"cpu": "2000m"}
    assert template_as_json(Pool("gpu", (large, small)))["offerings"] == [
        {"type": "large", "market": "spot", "zone": "here-1", "price": 1.0},
        {"type": "small", "market": "spot", "zone": "here-1", "price": 1.0, "count": 3},
    ]


def test_an_override_of_every_pool_leaves_what_tags_set_and_what_the_override_of_the_pool_sets() -> None:
    overrides = {"*": PoolOverride("*", idle_after=60.0, unready_after=120.0), "b": PoolOverride("b", idle_after=5.0)}
    tagged = msgspec.structs.replace(found("c", idle_after=900.0), tagged=("idle_after",))

    pools = {one.pool.name: one.pool for one in with_overrides([found("a"), found("b"), tagged], overrides)}

    assert {name: pool.idle_after for name, pool in pools.items()} == {"a": 60.0, "b": 5.0, "c": 900.0}
    assert {pool.unready_after for pool in pools.values()} == {120.0}
