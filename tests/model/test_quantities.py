"""Quantities, against the rules of apimachinery's quantity.go."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.model.quantities import INT64_MAX, QuantityError, format_quantity, milli, parse, parse_milli, shorten_value, whole

NANO = Fraction(1, 10**9)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("+1", 1),
        ("007", 7),
        ("1.", 1),
        (".5", Fraction(1, 2)),
        (" 2 ", 2),
        ("100n", Fraction(1, 10**7)),
        ("5u", Fraction(5, 10**6)),
        ("250m", Fraction(1, 4)),
        ("3k", 3000),
        ("3M", 3 * 10**6),
        ("3G", 3 * 10**9),
        ("3T", 3 * 10**12),
        ("3P", 3 * 10**15),
        ("3E", 3 * 10**18),
        ("3Ki", 3 * 2**10),
        ("3Mi", 3 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("3Ti", 3 * 2**40),
        ("3Pi", 3 * 2**50),
        ("3Ei", 3 * 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("15E-1", Fraction(3, 2)),
        ("1E", 10**18),
        (12, 12),
        (0.1, Fraction(1, 10)),
        (1e3, 1000),
        (1e18, 10**18),
    ],
)
def test_every_suffix_and_exponent_of_a_quantity_has_its_exact_value(text: str | float, value: Fraction) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 2", "1xyz", "1ki", "1mi", "1K", "1i", "1Kii", "1e", "1e3e3", "1.1.1", "--1", "1-", "1_000", "0x10", "1,5", "NaN", "inf",
     "٣", "Pi", "e-12"],
)  # fmt: skip
def test_quantities_that_kubernetes_rejects_are_rejected_with_their_text(text: str) -> None:
    with pytest.raises(QuantityError, match="expected a quantity") as caught:
        parse(text)
    assert caught.value.seen == text


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "10E", "1e19", "1e999999999999", 2**63, -(2**70), 1e300])
def test_quantities_beyond_int64_are_rejected_without_computing_them(text: str | float) -> None:
    with pytest.raises(QuantityError, match="int64"):
        parse(text)


@pytest.mark.parametrize("text", [True, None, [], float("nan"), float("inf"), "9" * 10_000])
def test_quantities_that_are_neither_text_nor_numbers_are_rejected(text: object) -> None:
    with pytest.raises(QuantityError):
        parse(text)  # type: ignore[arg-type]  # wrong on purpose


def test_amounts_below_a_nano_unit_are_rounded_up() -> None:
    assert parse("0.1n") == NANO
    assert parse("1e-200") == NANO
    assert parse("0.0000000011") == 2 * NANO
    assert parse("0e-99") == 0


def test_milli_values_and_values_are_rounded_up() -> None:
    assert milli(parse("1")) == 1000
    assert milli(parse("0.1m")) == 1
    assert milli(parse("1001u")) == 2
    assert whole(parse("1.1")) == 2
    assert whole(parse("1m")) == 1
    assert whole(parse("-1.1")) == -2
    assert parse_milli("1.5") == 1500


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        (0, "binary", "0"),
        (1, "decimal", "1"),
        (1000, "decimal", "1k"),
        (Fraction(3, 2), "decimal", "1500m"),
        (Fraction(3, 2), "binary", "1500m"),
        (3 * 2**29, "binary", "1536Mi"),
        (1023, "binary", "1023"),
        (-(2**20), "binary", "-1Mi"),
        (2**70, "binary", "1024Ei"),
        (12_000_000, "exponent", "12e6"),
        (Fraction(1, 2), "exponent", "500e-3"),
        (7, "exponent", "7"),
        (10**21, "decimal", "1000E"),
    ],
)
def test_the_canonical_text_of_a_quantity_uses_the_largest_lossless_suffix(value: Fraction, style: str, text: str) -> None:
    assert format_quantity(value, style) == text  # type: ignore[arg-type]  # a parameter is only known to be a string


def test_amounts_below_a_nano_unit_have_no_text() -> None:
    with pytest.raises(QuantityError, match="nano-unit"):
        format_quantity(Fraction(1, 3))


nanos = st.integers(-INT64_MAX, INT64_MAX).map(lambda n: n * NANO) | st.integers(-INT64_MAX, INT64_MAX).map(Fraction)
styles = st.sampled_from(("decimal", "binary", "exponent"))


@given(nanos, styles)
def test_a_formatted_quantity_reads_as_the_same_value(value: Fraction, style: str) -> None:
    assert parse(format_quantity(value, style)) == value  # type: ignore[arg-type]  # a drawn style is only known to be a string


@given(nanos, nanos, styles, styles)
def test_formatted_quantities_keep_the_order_of_values(left: Fraction, right: Fraction, one: str, other: str) -> None:
    a, b = parse(format_quantity(left, one)), parse(format_quantity(right, other))  # type: ignore[arg-type]  # as above
    assert (a < b, a == b) == (left < right, left == right)
    if left <= right:
        assert whole(a) <= whole(b)
        assert milli(a) <= milli(b)


@given(st.text(alphabet="0123456789.+-eEinumkKMGTP ", max_size=12))
def test_any_text_is_parsed_to_nano_units_or_rejected(text: str) -> None:
    with contextlib.suppress(QuantityError):
        value = parse(text)
        assert abs(value) <= INT64_MAX
        assert (value * 10**9).denominator == 1


def test_long_values_are_shortened_in_messages() -> None:
    assert shorten_value("x" * 5_000_000) == f"'{'x' * 59}…"
    assert len(shorten_value(["y" * 1000])) == 61
    assert shorten_value("short") == "'short'"
