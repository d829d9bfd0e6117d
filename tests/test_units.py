"""Quantities survive the trip to text and back, and bad spellings are refused with a way out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import units

FINITE = st.floats(min_value=1e-6, max_value=1e17, allow_nan=False, allow_infinity=False)


@given(FINITE)
def test_bytes_round_trip(value: float) -> None:
    assert units.parse_bytes(units.bytes_text(value, 9)) == pytest.approx(value, rel=1e-7)


@given(FINITE)
def test_rates_round_trip(value: float) -> None:
    assert units.parse_rate(units.rate_text(value, 9)) == pytest.approx(value, rel=1e-7)


@given(FINITE)
def test_flops_round_trip(value: float) -> None:
    assert units.parse_flops(units.flops_text(value, 9)) == pytest.approx(value, rel=1e-7)


@given(st.integers(min_value=0, max_value=2**40))
def test_lengths_round_trip_exactly(value: int) -> None:
    assert units.parse_length(units.length_text(value)) == value


@given(st.integers(min_value=0, max_value=10**6), st.sampled_from([("k", 3), ("M", 6), ("B", 9), ("T", 12)]))
def test_budgets_are_powers_of_1000(value: int, suffix: tuple[str, int]) -> None:
    assert units.parse_count(f"{value}{suffix[0]}") == value * 10 ** suffix[1]


@given(st.decimals(min_value="0.1", max_value="999.9", places=1))
def test_decimal_budgets_are_whole(value: object) -> None:
    assert units.parse_count(f"{value}T") == round(float(str(value)) * 10) * 10**11


@given(st.floats(min_value=1e-9, max_value=59.0))
def test_times_round_trip(value: float) -> None:
    assert units.parse_time(units.seconds_text(value, 9)) == pytest.approx(value, rel=1e-7)


@given(st.floats(min_value=0, max_value=1))
def test_percent_round_trips(value: float) -> None:
    assert units.parse_percent(units.percent_text(value, 6)) == pytest.approx(value, abs=1e-7)


def test_lengths_count_in_1024_and_budgets_in_1000() -> None:
    assert units.parse_length("8k") == 8192
    assert units.parse_length("1M") == 1048576
    assert units.parse_count("16M") == 16_000_000


def test_bits_are_not_bytes() -> None:
    assert units.parse_rate("400Gbit/s") == 50e9
    assert units.parse_rate("400Gbps") == 50e9
    assert units.parse_rate("400GB/s") == 400e9
    assert units.parse_rate("400gbit/s") == 50e9


@pytest.mark.parametrize("text", ["80", "80 apples", "", "GiB", "nanGB", "--3GB", "80Gib ib"])
def test_memory_that_is_refused(text: str) -> None:
    with pytest.raises(units.UnitError, match="80GiB") as caught:
        units.parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_overflow_is_refused() -> None:
    with pytest.raises(units.UnitError, match="not a finite number"):
        units.parse_bytes("1e999GB")


def test_ambiguous_case_is_refused() -> None:
    with pytest.raises(units.UnitError, match="unknown unit"):
        units.parse_rate("400gB/S")  # bits or bytes cannot be told once case is folded


@pytest.mark.parametrize("text", ["8.5", "1.0001k", "8K8"])
def test_lengths_are_whole(text: str) -> None:
    with pytest.raises(units.UnitError):
        units.parse_length(text)


def test_fractional_length_that_is_whole() -> None:
    assert units.parse_length("0.5k") == 512


def test_unbounded_values_have_words() -> None:
    assert units.bytes_text(math.inf) == "unbounded"
    assert units.seconds_text(math.inf) == "unbounded"


def test_booleans_are_not_lengths() -> None:
    with pytest.raises(units.UnitError):
        units.parse_length(True)


@pytest.mark.parametrize("number", [np.int32(8192), np.float32(8192), np.int64(8192)])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    assert units.parse_length(number) == 8192


@pytest.mark.parametrize("odd", [10**400, [8192], None, b"8k"])
def test_what_is_no_number_is_told(odd: Any) -> None:
    with pytest.raises(units.UnitError):
        units.parse_length(odd)
