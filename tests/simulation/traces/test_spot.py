"""Series of spot markets: files, and the offerings that use them."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.simulation.pools import G1, G4

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.traces.spot import SpotError, SpotFile, read_spot
from gpuscaler.simulation.traces.spot_markets import SeriesChoice, markets_of, read_spot_map
from gpuscaler.simulation.traces.traces import TraceError

DATA = Path(__file__).parents[4] / "shared" / "data"
AVAILABILITY = """zone,instance_type,max_nodes_probed,t_s,nodes_available,note
z1,p3,1,0,1,
z1,p3,1,100,0,
z1,p3,1,300,1,
z1,p3,1,400,,
z2,p3,8,0,8,
z2,p3,8,50,3,
"""
PRICES = """date,instance_type,region,on_demand_usd_h,spot_usd_h
2026-01-01,g1,r1,4.0,1.0
2026-01-11,g1,r1,4.0,3.0
2026-01-01,other,r2,,2.0
2026-01-11,other,r2,8.0,6.0
"""
Read = Callable[..., SpotFile]
SPOT1, SPOT4 = (replace(offering, market="spot", price=offering.price / 4) for offering in (G1, G4))
POLICY = Policy((Pool("gpu", (G1, G4, SPOT1, SPOT4)),), region="r1")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_read(text: str, name: str = "spot.csv") -> SpotFile:
        (tmp_path / name).write_text(text)
        return read_spot(tmp_path / name)

    return write_and_read


def test_availability_is_read_for_each_spot_market(read: Read) -> None:
    series, two = read(AVAILABILITY).availability
    assert (series.name, series.instance_type, series.place) == ("z1/p3", "p3", "z1")
    assert list(series.steps) == [(0, float("inf")), (100, 0), (300, float("inf"))]
    assert series.period == 400
    assert list(two.steps) == [(0, float("inf")), (50, 3)]


def test_prices_are_read_by_day_and_a_missing_price_of_one_market_does_not_affect_the_other(read: Read) -> None:
    prices = read(PRICES)
    assert [(series.name, [value for _, value in series.steps]) for series in prices.spot] == [("g1/r1", [1, 3]), ("other/r2", [2, 6])]
    assert [(series.name, [value for _, value in series.steps]) for series in prices.on_demand] == [("g1/r1", [4, 4]), ("other/r2", [8])]
    assert prices.spot[0].steps[1][0] == 10 * 86_400
    assert prices.spot[0].mean == pytest.approx((10 * 1 + 7 * 3) / 17)


def test_series_files_compressed_with_gzip_are_read(tmp_path: Path) -> None:
    (tmp_path / "spot.csv.gz").write_bytes(gzip.compress(AVAILABILITY.encode()))
    assert len(read_spot(tmp_path / "spot.csv.gz").availability) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("z1,p3,1,soon,1,", "t_s is 'soon', expected a number"),
        ("z1,p3,1,-5,1,", "t_s is -5, expected a number from 0"),
        ("z1,p3,1,5,1", "5 fields, expected 6"),
        (",p3,1,5,1,", "zone is empty"),
        ("z1,p3,1,5,nan,", "nodes_available is nan"),
    ],
)
def test_a_malformed_row_is_skipped_with_its_line(read: Read, row: str, reason: str) -> None:
    file = read(AVAILABILITY + row + "\n")
    assert (file.set_aside, file.bad_rows[0].line, len(file.availability)) == (1, 8, 2)
    assert reason in file.bad_rows[0].reason


def test_a_row_with_a_malformed_price_is_skipped(read: Read) -> None:
    file = read(PRICES + "yesterday,g1,r1,4.0,1.0\n2026-02-01,g1,r1,4.0,0\n")
    assert [row.line for row in file.bad_rows] == [6, 7]
    assert "date is 'yesterday'" in file.bad_rows[0].reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zone,instance_type,t_s,nodes_available\n", "column max_nodes_probed missing; seen: zone"),
        ("date,instance_type,region\n", "columns on_demand_usd_h, spot_usd_h missing"),
        ("", "seen: no header"),
        (AVAILABILITY.splitlines()[0] + "\nz1,p3,1,x,1,\n", "no usable row, expected at least one; the first problem is in line 2"),
    ],
)
def test_the_error_for_a_series_file_names_the_missing_columns(read: Read, text: str, message: str) -> None:
    with pytest.raises(SpotError, match=r"spot\.csv: ") as caught:
        read(text)
    assert message in str(caught.value)


def test_the_error_names_a_missing_series_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.csv: cannot be read"):
        read_spot(tmp_path / "absent.csv")


def test_an_offering_gets_the_series_of_its_market(read: Read) -> None:
    markets, notes = markets_of(POLICY, [read(AVAILABILITY.replace("p3", "g1")), read(PRICES, "prices.csv")], seed=1, began=1000)
    assert [markets.capacity(SPOT1.key, 1000 + at) for at in (0, 100, 300, 500)] == [float("inf"), 0, float("inf"), 0]
    assert markets.price(SPOT1, 1000) == 1.0
    assert markets.price(G1, 1000) == 4.0
    assert markets.price(G4, 1000) == G4.price
    assert any("availability of 1 offerings" in note for note in notes)


def test_a_series_drawn_from_another_market_keeps_the_average_price(read: Read) -> None:
    files = [read(AVAILABILITY), read(PRICES.replace("g1", "g2"), "prices.csv")]

    def drawn(seed: int) -> list[float]:
        markets, _ = markets_of(POLICY, files, seed=seed, began=0)
        return [markets.capacity(SPOT1.key, at) for at in range(0, 400, 5)] + [markets.price(SPOT4, at * 86_400) for at in range(20)]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 1
    markets, _ = markets_of(POLICY, files, seed=1, began=0)
    assert markets.cost(SPOT4, 0, 17 * 86_400) == pytest.approx(SPOT4.price * 17 * 24)
    assert markets.capacity(G1.key, 150) == float("inf")


def test_a_map_file_assigns_series_to_offerings(read: Read, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text('"g4/*": {availability: z2, price: other/r2, shift: 60}\n"*/z1": z1\n')
    chosen = read_spot_map(tmp_path / "map.yaml")
    assert chosen == {"g4/*": SeriesChoice("z2", "other/r2", 60), "*/z1": SeriesChoice("z1")}
    markets, _ = markets_of(POLICY, [read(AVAILABILITY), read(PRICES, "prices.csv")], seed=1, began=0, spot_map=chosen)
    assert (markets.capacity(SPOT4.key, 0), markets.capacity(SPOT1.key, 150)) == (3, 0)
    assert markets.price(SPOT4, 0) == pytest.approx(SPOT4.price * 2 / ((10 * 2 + 7 * 6) / 17))


@pytest.mark.parametrize(
    ("text", "message"),
    [("- z1", "saw no mapping"), ("a/b: {zone: z1}", "a/b: "), ("a/b: 5", "a/b: "), ("{", "not YAML or JSON")],
)
def test_the_error_says_why_a_map_file_is_unusable(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map.yaml").write_text(text)
    with pytest.raises(SpotError, match=message):
        read_spot_map(tmp_path / "map.yaml")
    with pytest.raises(SpotError, match="No such file"):
        read_spot_map(tmp_path / "absent.yaml")


@pytest.mark.parametrize(("name", "message"), [("z9", "no series"), ("p3", "several series")])
def test_a_map_file_entry_that_matches_no_series_or_several_is_an_error(read: Read, name: str, message: str) -> None:
    with pytest.raises(SpotError, match=message):
        markets_of(POLICY, [read(AVAILABILITY)], seed=1, began=0, spot_map={"*/*": SeriesChoice(name)})


def test_blank_lines_are_ignored_and_a_row_with_a_stray_quote_is_skipped(read: Read) -> None:
    file = read("\n" + AVAILABILITY.replace("z1,p3,1,100,0,", '"z1"x,p3,1,100,0,\n'))
    assert (len(file.availability), file.set_aside, file.bad_rows[0].line) == (2, 1, 4)
    assert file.bad_rows[0].reason.startswith("not a row of CSV: ")


def test_every_row_of_the_series_in_the_shared_data_is_read() -> None:
    if not (DATA / "spot_availability_changes.csv.gz").exists():
        pytest.skip("needs ../shared/data beside the project")
    spot = read_spot(DATA / "spot_availability_changes.csv.gz")
    prices = read_spot(DATA / "gcp_gpu_price_history.csv.gz")
    assert (len(spot.availability), spot.set_aside, prices.set_aside) == (6, 0, 0)
    assert {series.period for series in spot.availability} == {3930810}
    assert len(prices.spot) > 1000
