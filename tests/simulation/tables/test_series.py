"""Series of spot availability."""

import gzip
from pathlib import Path

import pytest

from gpuscaler.simulation.tables.series import SeriesError, read_series

HEADER = "kind,dataset,cloud,zone,instance_type,t_s,nodes_available\n"
GOOD = "availability,d,aws,z1,t,0,0\navailability,d,aws,z1,t,600,2\navailability,d,aws,z1,t,1800,\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "series.csv"
    path.write_text(text)
    return path


def test_a_row_holds_until_the_next_and_one_without_machines_ends_the_series(tmp_path: Path) -> None:
    (one,) = read_series(write(tmp_path, HEADER + GOOD)).series

    assert [one.at(moment) for moment in (-1.0, 0.0, 599.0, 600.0, 1799.0, 1800.0)] == [0, 0, 0, 2, 2, 0]
    assert one.sampled(600.0) == (0, 2, 2)


def test_gzip_reads_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "series.csv.gz"
    path.write_bytes(gzip.compress((HEADER + GOOD).encode()))

    assert read_series(path).series[0].end == 1800.0


def test_rows_may_come_in_any_order_and_zones_are_told_apart(tmp_path: Path) -> None:
    other = "availability,d,aws,z0,t,1200,\navailability,d,aws,z0,t,0,1\n"

    assert [one.zone for one in read_series(write(tmp_path, HEADER + GOOD + other)).series] == ["z0", "z1"]


def test_a_series_that_begins_later_begins_at_its_first_row(tmp_path: Path) -> None:
    text = HEADER + GOOD.replace(",0,0\n", ",300,1\n")

    assert read_series(write(tmp_path, text)).series[0].times == (0.0, 300.0)


def test_other_kinds_are_passed_over(tmp_path: Path) -> None:
    assert len(read_series(write(tmp_path, HEADER + GOOD + "preemption,d,aws,z9,t,0,1\n")).series) == 1


def test_a_malformed_row_is_set_aside_with_its_line(tmp_path: Path) -> None:
    bad = "availability,d,aws,z1,t,soon,1\navailability,d,aws,z1,t,-5,1\navailability,d\n"

    found = read_series(write(tmp_path, HEADER + GOOD + bad))

    assert (found.set_aside, [row.line for row in found.bad_rows]) == (3, [5, 6, 7])
    assert "expected numbers" in found.bad_rows[0].reason


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="column nodes_available missing"):
        read_series(write(tmp_path, HEADER.replace(",nodes_available", "") + "availability,d,aws,z,t,0\n"))


@pytest.mark.parametrize("text", ["", HEADER, HEADER + "availability,d,aws,z1,t,0,\n"], ids=["empty", "no rows", "no time"])
def test_a_file_without_a_series_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(SeriesError):
        read_series(write(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\x1f\x8bnot gzip at all", "damaged gzip"), (b"kind,\xff\xfe", "not UTF-8")],
    ids=["gzip", "text"],
)
def test_a_damaged_file_says_what_is_wrong(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "series.csv"
    path.write_bytes(content)

    with pytest.raises(SeriesError, match=said):
        read_series(path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match="cannot be read"):
        read_series(tmp_path / "none.csv")
