from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from perfkit.report.verdict import doubts, ladder, not_measured, nothing_found, pace_note, peak_line, verdict
from tests.report.documents import bare, report, terms


def test_the_peak_and_its_source_stand_beside_mfu() -> None:
    said = verdict(report().document)
    assert said.mfu == "41.2 %"
    assert "peak 989 TFLOP/s bf16, NVIDIA H100 80GB HBM3 (NVIDIA datasheet)" in said.basis


def test_rungs_are_placed_in_order_and_parts_inside_their_parent() -> None:
    rows = terms(("mfu", 40.0, None), ("non_matmul", 50.0, None), ("norm", 20.0, "non_matmul"),
                 ("copy", 30.0, "non_matmul"), ("idle_host", 10.0, None), window_ns=10**9)  # fmt: skip
    found = ladder({**report().document, "waterfall": rows})
    assert [(r.term, r.offset, r.kind) for r in found.rungs] == [
        ("mfu", 0, "useful"), ("non_matmul", 40, "compute"), ("norm", 40, "compute"), ("copy", 60, "compute"),
        ("idle_host", 90, "idle"),
    ]  # fmt: skip
    assert found.unit == "points"


def test_a_part_with_the_name_of_another_parents_part_stays_with_its_own() -> None:
    rows = terms(("matmul_below_peak", 60.0, None), ("gemm", 60.0, "matmul_below_peak"), ("recompute", 40.0, None),
                 ("gemm", 40.0, "recompute"), window_ns=10**9)  # fmt: skip
    found = ladder({**report().document, "waterfall": rows})
    assert [(r.term, r.parent, r.offset) for r in found.rungs][1::2] == [
        ("gemm", "matmul_below_peak", 0), ("gemm", "recompute", 60)]  # fmt: skip


def test_without_a_waterfall_the_partition_of_time_is_drawn() -> None:
    document = {**report().document, "waterfall": None}
    found = ladder(document)
    tops = [r for r in found.rungs if r.parent is None]
    assert found.unit == "% of time"
    assert [r.term for r in tops] == ["compute", "exposed_comm", "exposed_memcpy", "idle"]
    assert sum(r.ns or 0 for r in tops) == document["totals"]["window_ns"]


def test_shares_of_time_are_not_called_points() -> None:
    document = report().document
    found = ladder({**document, "mfu": {**document["mfu"], "value": None, "ladder_start": "time"}})
    assert found.unit == "% of time"
    assert "where the time went" in found.title


def test_terms_without_support_are_named_with_the_term_that_holds_them() -> None:
    assert not_measured(ladder(report().document)) == (
        "not measured: throttled clocks (inside matmul below peak); exposed wait (inside exposed communication)"
    )


def test_a_complete_trace_has_no_doubts() -> None:
    document = bare().document
    document["scope"] = {"ranks_traced": 1, "world_size": 1, "steps": [0, 1]}
    assert doubts(document) == []


@given(st.lists(st.floats(-20, 80), min_size=1, max_size=8))
def test_each_rung_ends_where_the_next_begins(points: list[float]) -> None:
    rows = terms(*((f"t{i}", p, None) for i, p in enumerate(points)), window_ns=10**9)
    rungs = ladder({**report(ranks=1, steps=1).document, "waterfall": rows}).rungs
    for above, below in itertools.pairwise(rungs):
        assert below.offset == above.offset + (above.points or 0)


def test_without_a_finding_the_largest_losses_are_named() -> None:
    rows = terms(("hfu", 30.0, None), ("non_matmul", 39.0, None), ("matmul_below_peak", 23.0, None),
                 ("idle_host", 8.0, None), window_ns=10**9)  # fmt: skip
    said = nothing_found({**report().document, "waterfall": rows})
    assert "other than matmul (39.0 points) and matmul below peak (23.0 points)" in said
    busy = terms(("hfu", 97.0, None), ("idle_host", 3.0, None), window_ns=10**9)
    assert nothing_found({**report().document, "waterfall": busy}) == "no rule found anything to fix"


def test_parts_of_the_largest_losses_are_named_too() -> None:
    rows = terms(("hfu", 31.0, None), ("non_matmul", 39.0, None), ("norm", 11.5, "non_matmul"),
                 ("elementwise", 13.2, "non_matmul"), ("copy", 1.0, "non_matmul"), window_ns=10**9)  # fmt: skip
    said = nothing_found({**report().document, "waterfall": rows})
    assert "other than matmul (39.0 points: elementwise 13.2, norm 11.5)" in said


def test_kernels_that_no_pattern_knows_are_not_called_other_than_matmul() -> None:
    rows = terms(("non_matmul", 46.0, None), ("unknown", 44.0, "non_matmul"), ("bubble", 54.0, None), window_ns=10**9)
    assert "compute of unknown kind" in [r.label for r in ladder({**report().document, "waterfall": rows}).rungs]
    rows = terms(("non_matmul", 46.0, None), ("unknown", 4.0, "non_matmul"), ("bubble", 54.0, None), window_ns=10**9)
    assert "other than matmul" in [r.label for r in ladder({**report().document, "waterfall": rows}).rungs]


def test_a_percentile_of_few_windows_says_of_how_many() -> None:
    document = report(ranks=8, steps=1).document
    document["throughput"] |= {"step_time_p50_ns": 14_300_000, "step_time_p95_ns": 17_700_000}
    document["quality"] |= {"steps_kept": 8}  # of all ranks together
    assert verdict(document).speed[0].startswith("step 14.3 ms median, 17.7 ms p95 of 8 windows on 8 ranks")
    document["quality"] |= {"steps_kept": 1000}
    assert verdict(document).speed[0].startswith("step 14.3 ms median, 17.7 ms p95")
    assert "windows" not in verdict(document).speed[0]


def test_a_note_of_many_ranks_is_said_once_with_how_often() -> None:
    document = bare().document
    document["quality"] = {**document["quality"], "notes": ["a: odd", "b: odd", "a: odd"]}
    assert doubts(document)[-2:] == ["a: odd (2 times)", "b: odd"]


def test_a_utilisation_that_is_tiny_is_not_called_nothing() -> None:
    document = report().document
    assert verdict({**document, "mfu": {**document["mfu"], "hfu": 1e-6}}).hfu == "< 0.01 %"


def test_a_loss_by_the_pace_is_explained_where_it_is_not_what_all_ranks_lost() -> None:
    place = {"where": "train.py:88", "lost_gpu_ms": 8.0, "idle_ms": 2.0}
    assert "sets the pace" in (pace_note([{"evidence": {"places": [place]}}]) or "")
    assert pace_note([{"evidence": {"places": [{**place, "idle_ms": 8.0}]}}, {"evidence": "text"}]) is None
    assert pace_note(report().document["findings"]) is None


def test_where_to_look_without_a_finding_depends_on_what_was_lost() -> None:
    unseen = terms(("non_matmul", 1.0, None), ("idle_unattributed", 99.0, None), window_ns=10**9)
    document = {**report().document, "waterfall": unseen}
    for missing, said in ((7, "profile with ProfilerActivity.CPU too"), (0, "no device work follows")):
        document["quality"] = {**document["quality"], "launches_missing": missing}
        assert said in nothing_found(document)
    talk = terms(("matmul", 20.0, None), ("exposed_comm", 80.0, None), window_ns=10**9)
    assert "see the collectives" in nothing_found({**report().document, "waterfall": talk})


def test_a_semicolon_inside_the_brackets_of_a_source_does_not_end_it() -> None:
    document = report().document
    source = "device_info.py (AMD rows; cites datasheets); a paper; a log"
    line = peak_line({**document, "hardware": {**document["hardware"], "source": source}})
    assert line.endswith("(device_info.py (AMD rows; cites datasheets), and 2 more)")


def test_shares_of_time_say_what_is_missing_for_points_of_peak() -> None:
    document = report().document
    mfu = {**document["mfu"], "value": None, "ladder_start": "time", "flops_coverage": 0.0}
    assert "record_shapes=True" in ladder({**document, "mfu": mfu}).title
    by_nsys = {**document["quality"], "sources": ["nsys"]}
    assert "nsys report has none" in ladder({**document, "mfu": mfu, "quality": by_nsys}).title
    nameless = {**document["hardware"], "peak_flops": None}
    assert ladder({**document, "mfu": mfu, "hardware": nameless}).title.endswith("as no peak is known")
