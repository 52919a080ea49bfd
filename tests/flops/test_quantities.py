from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import UsageError
from perfkit.flops.quantities import parse_flops, parse_seconds, read_count, read_number


def test_durations_have_units():
    spelt = ("32", "32s", "32 seconds", "32000ms", "450ms", "1.5 min", "1e-3", 2.5)
    assert [parse_seconds(t) for t in spelt] == [32, 32, 32, 32, 0.45, 90, 1e-3, 2.5]


def test_peaks_have_prefixes():
    spelt = ("989e12", "989T", "989 tflops", "989 TFLOP/s", "2.25P", 1e15)
    assert [parse_flops(t) for t in spelt] == [989e12, 989e12, 989e12, 989e12, 2.25e15, 1e15]


@pytest.mark.parametrize("text", ["fast", "3 weeks", "", "s", "nan", "inf", "1e400", "1,5", True, None])
def test_what_is_no_duration_and_no_peak_is_refused(text):
    with pytest.raises(UsageError):
        parse_seconds(text)
    with pytest.raises(UsageError):
        parse_flops(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8e9", 8 * 10**9), ("8_000", 8000), ("8,000", 8000), (8.0, 8), ("+8", 8), ("8Ki", 8192), (7, 7)],
)
def test_counts_are_read_from_many_spellings(text, value):
    assert read_count("seq_len", text) == value


def test_rates_parameters_and_tokens_per_step_take_decimal_prefixes():
    assert read_number("tokens_per_second", "1.5k") == 1500
    assert read_number("tokens_per_second", "1,984,000") == 1_984_000
    assert read_count("n_params", "8.03B") == 8_030_000_000
    assert read_number("tokens_per_step", "524288 tokens") == 524_288
    assert read_number("tokens_per_step", "4M") == 4_000_000
    assert read_number("tokens_per_step", "4Mi") == 4_194_304


@pytest.mark.parametrize("key", ["seq_len", "global_batch", "window"])
def test_sizes_in_thousands_are_refused_because_1024_may_be_meant(key):
    with pytest.raises(UsageError, match="1000 or of 1024"):
        read_number(key, "8k")


def test_a_batch_in_tokens_is_sent_to_the_right_flag():
    with pytest.raises(UsageError, match="tokens_per_step"):
        read_count("global_batch", "524288 tokens")


@pytest.mark.parametrize(
    "text", ["8.5", "nan", "inf", "-inf", "1e400", "1e18", "8x", "400T", "", "1,5", "1,50,000", True, None]
)
def test_what_is_no_count_is_refused(text):
    with pytest.raises(UsageError):
        read_count("devices", text)


def test_a_decimal_comma_is_explained():
    with pytest.raises(UsageError, match="groups thousands"):
        read_number("tokens_per_second", "1,5")


@given(st.text(max_size=12))
def test_no_text_raises_anything_but_a_usage_error(text):
    for read in (parse_seconds, parse_flops, lambda t: read_number("n_params", t), lambda t: read_count("devices", t)):
        with contextlib.suppress(UsageError):
            assert abs(read(text)) < 1e18


@given(st.integers(0, 10**17))
def test_whole_numbers_are_exact(number):
    assert read_count("n_params", str(number)) == read_count("n_params", f"{number:,}") == number
