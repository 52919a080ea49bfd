from __future__ import annotations

import io
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from perfkit.report.report import Report
from perfkit.report.text import render, to_text
from tests.report.documents import HOSTILE, bare, report, terms


def test_the_verdict_fills_the_first_screen() -> None:
    lines = report().to_text(width=100).splitlines()
    assert len(lines) <= 50
    assert lines[0].startswith("SYNTHETIC")
    assert lines[1] == "MFU 41.2 %   HFU 45.0 %"
    text = "\n".join(lines)
    for said in (
        "convention palm", "peak 989 TFLOP/s bf16, NVIDIA H100 80GB HBM3 (NVIDIA datasheet)",
        "2 other conventions: 43.0 % (torchtitan) to 44.0 % (megatron)",
        "8 of 9 ranks · steps 10 to 15", "model FLOPs (MFU)", "1. The data loader holds the host up  up to 4.2 points",
        "→ Overlap gradient reduction.", "and 1 more finding", "data quality", "rejected traces/kernel.json",
    ):  # fmt: skip
        assert said in text


def test_without_a_model_the_reason_stands_where_the_number_would() -> None:
    lines = report(mfu=None, synthetic=False).to_text().splitlines()
    assert lines[0] == "MFU unknown   HFU 45.0 %"
    assert lines[1] == "  pass --model NAME"
    assert any("from HFU down" in line for line in lines)


def test_an_empty_document_says_unknown_and_never_zero() -> None:
    text = bare().to_text(details=True)
    assert "MFU unknown" in text
    assert "no model was given: add --model NAME" in text
    assert not re.search(r"\b0\.0+\b|\b0 %", text)


def test_a_column_of_which_nothing_is_known_is_left_out() -> None:
    summary = report().summary
    rows = [{**row, "bytes": None, "busbw_gbps": None, "efficiency": None} for row in summary["collectives"]]
    head = re.compile(r"^  op .*class", re.MULTILINE)
    assert "bus GB/s" in head.search(report().to_text(width=160, details=True))[0]
    bare_head = head.search(Report({**summary, "collectives": rows}).to_text(width=160, details=True))[0]
    assert bare_head.split() == ["op", "group", "count", "class"]


def test_bars_start_where_the_one_above_ends() -> None:
    rows = terms(("mfu", 40.0, None), ("matmul_below_peak", 35.0, None), ("idle_host", 25.0, None), window_ns=10**9)
    found = Report({**report().summary, "waterfall": rows})
    lines = [line for line in found.to_text(width=100).splitlines() if "█" in line]
    spans = [(line.index("█"), line.rindex("█") + 1) for line in lines]
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert abs(start - end) <= 1
    widths = [end - start for start, end in spans]
    assert widths[0] > widths[1] > widths[2]


def test_a_term_of_nothing_has_no_bar_and_a_negative_one_points_back() -> None:
    rows = terms(("mfu", 104.0, None), ("matmul_below_peak", -6.0, None), ("recompute", 0.0, None),
                 ("idle_host", 2.0, None), window_ns=10**9)  # fmt: skip
    text = Report({**report().summary, "waterfall": rows}).to_text(details=True)
    by_name = {line.split("  ")[0]: line for line in text.splitlines()}
    assert re.search(r"<+\s+-6.00", by_name["matmul below peak"])
    assert not re.search(r"[█▏▎▍▌▋▊▉#<]", by_name["recompute"])


def test_details_show_what_the_first_screen_leaves_out() -> None:
    short, long = report().to_text(), report().to_text(details=True, width=140)
    for said in ("4. Some steps are slow", "who held the host up", "kernels by waste", "collectives", "  gemm  "):
        assert said in long
        assert said not in short


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("details", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, details: bool) -> None:
    for line in report().to_text(width=width, details=details).splitlines():
        assert cell_len(line) <= width


def test_names_cannot_control_the_terminal_or_be_markup() -> None:
    plain = report(name=HOSTILE).to_text(details=True, width=300)
    assert "\x1b" not in plain
    assert "\u202e" not in plain
    assert "[red]" in plain
    buffer = io.StringIO()
    render(
        report(name=HOSTILE),
        Console(file=buffer, width=300, force_terminal=True, color_system="truecolor"),
        details=True,
    )
    assert "\x1b[31m" not in buffer.getvalue()
    assert "[red]" in buffer.getvalue()


def test_gains_are_in_the_unit_of_the_ladder() -> None:
    summary = report(mfu=None).summary
    summary["mfu"] |= {"hfu": None, "ladder_start": "time"}
    assert "holds the host up  up to 4.2 % of time" in Report(summary).to_text()


def test_a_pipe_without_unicode_gets_plain_characters() -> None:
    text = to_text(report(), encoding="ascii", details=True)
    assert text.isascii()
    assert "####" in text
    assert "> Overlap gradient reduction." in text


def test_a_terminal_without_unicode_gets_bars_of_hashes() -> None:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    render(report(), Console(file=buffer, width=90, color_system=None))
    buffer.seek(0)
    assert "####" in buffer.read()


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60), st.integers(30, 160), st.booleans())
def test_any_name_and_width_can_be_rendered(name: str, width: int, details: bool) -> None:
    text = report(name=name, ranks=2, steps=1, kernels=3).to_text(width=width, details=details)
    assert text.startswith("SYNTHETIC")
    assert all(c == "\n" or c.isprintable() for c in text)
