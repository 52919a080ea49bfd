from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.report import format as fmt


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "–"), (0, "0"), (7, "7.00 ns"), (1_500, "1.50 µs"), (60_528_837, "60.5 ms"), (2_500_000_000, "2.50 s"),
     (-3_000_000, "-3.00 ms"), (7200 * 10**9, "2.0 h")],
)  # fmt: skip
def test_durations_take_the_unit_that_reads_best(ns: int | None, text: str) -> None:
    assert fmt.duration(ns) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (989.4e12, "989 TFLOP/s"), (1250.0, "1.25 kFLOP/s"), (0, "0 FLOP/s"), (0.5, "0.5 FLOP/s")],
)
def test_si_prefixes(value: float | None, text: str) -> None:
    assert fmt.si(value, "FLOP/s") == text


def test_ranges_name_runs() -> None:
    assert fmt.ranges([3, 0, 1, 2, 7]) == "0-3, 7"
    assert fmt.ranges([]) == ""


def test_evidence_may_be_text_facts_or_rows() -> None:
    assert fmt.evidence("as it is") == ["as it is"]
    assert fmt.evidence({"wait_ns": 2_000_000, "share": 0.25}) == ["wait 2.00 ms · share 25.0 %"]
    assert fmt.evidence([{"where": "a.py:1", "ns": 1000}] * 3, limit=2) == ["a.py:1 · 1.00 µs"] * 2 + ["and 1 more"]
    assert fmt.evidence(None) == fmt.evidence([]) == fmt.evidence({}) == []


@given(st.text(), st.integers(1, 30))
def test_clean_text_is_printable_and_short(text: str, width: int) -> None:
    shown = fmt.clean(text, width)
    assert shown.isprintable()
    assert len(shown) <= width


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=12,
    )
)
def test_any_evidence_becomes_printable_lines(item: object) -> None:
    assert all(line.isprintable() for line in fmt.evidence(item))


def test_evidence_leaves_out_what_is_unknown_or_said_twice() -> None:
    row = {"where": None, "op": "all_reduce", "group": None, "lost_gpu_ms": 2.5, "exposed_ms": 2.5}
    assert fmt.evidence(row) == ["all_reduce · exposed 2.50 ms"]
    assert fmt.evidence({**row, "lost_gpu_ms": 5.0}) == ["all_reduce · lost on all ranks 5.00 ms · exposed 2.50 ms"]


def test_numbers_in_a_table_of_evidence_carry_its_unit() -> None:
    assert fmt.evidence({"culprits_ms": {"python": 38.65, "gc": 0.2}}) == ["culprits: python 38.6 ms · gc 200 µs"]


def test_names_of_kernels_are_cut_to_what_tells_them_apart() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, " + "at::native::CUDAFunctor_add<float>, " * 9
    (line,) = fmt.evidence({"kernel": name, "ms": 1.0})
    assert line.startswith("at::native::vectorized_elementwise_kernel<4, ")
    assert len(line) < 100


def test_evidence_names_its_units_as_people_write_them() -> None:
    facts = {"mean_us": 5.12, "gain_ms_per_step": 2.5, "gbps": 13.8}
    assert fmt.evidence(facts) == ["mean 5.12 µs · gain 2.50 ms a step · at 13.8 GB/s"]


def test_shares_in_evidence_are_in_the_unit_of_the_ladder() -> None:
    assert fmt.evidence({"share_points": 35.55}) == ["share 35.55 points"]
    assert fmt.evidence({"most": [{"share_points": 35.55}]}, unit="% of time") == ["most: share 35.55 % of time"]


def test_a_speed_that_rounds_to_nothing_is_not_called_zero() -> None:
    assert fmt.value("gbps", 0.001) == "< 0.01 GB/s"
    assert fmt.value("gbps", 0.11) == "0.11 GB/s"


def test_evidence_uses_words_for_what_only_the_code_calls_so() -> None:
    (line,) = fmt.evidence({"score": 0.848, "steps_first": 3, "assumed_gain": 0.5, "ratio": 0.37})
    assert line == (
        "speed against peers 0.848 · steps in which it cost most 3 · assumed gain 50.0 % · share of the time 37.0 %"
    )


def test_ranks_without_a_gpu_are_not_told_of_gpu_time() -> None:
    evidence = {"lost_gpu_ms": 2.0, "split": {"exposed_wait_gpu_ms": 1.0}}
    assert fmt.evidence(evidence) == ["lost on all ranks 2.00 ms", "split: exposed wait 1.00 ms"]
