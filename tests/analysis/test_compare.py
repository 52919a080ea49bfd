from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from sim_tables import simulated

import perfkit
from perfkit.analysis.analyze import analyze_tables
from perfkit.analysis.compare import compare, recorded_step_times
from perfkit.errors import GateTripped, UsageError
from perfkit.report.comparison import check_change, headline, to_junit, to_markdown, to_text
from perfkit.report.gate import GateUnknown
from perfkit.schema import STEPS, table_from_rows
from perfkit.simulate import Mesh
from perfkit.simulate.faults import parse_fault


@pytest.fixture(scope="module")
def reports():
    """A healthy simulated job, the same with other noise, and one with a slow rank."""
    made = {}
    for name, seed, faults in (("base", 1, ()), ("again", 2, ()), ("slow", 3, ("slow-rank:1:6x",))):
        sim = simulated(Mesh(dp=2), seed=seed, steps=16, faults=tuple(parse_fault(fault) for fault in faults))
        ranks = [sim.tables(rank) for rank in sim.ranks]
        tables = {table: pa.concat_tables([one[table] for one in ranks]).unify_dictionaries() for table in ranks[0]}
        made[name] = analyze_tables(tables, synthetic=True)
    return made


def test_the_same_job_again_is_no_evidence(reports):
    found = compare(reports["base"], reports["again"])
    assert found.verdict == "no evidence"
    assert "no evidence" in headline(found)


def test_a_slow_rank_is_slower_and_its_cost_is_where_it_belongs(reports):
    found = compare(reports["base"], reports["slow"])
    assert found.verdict == "slower"
    assert found.quantities[0].low > 0.05
    assert any(row.status == "slower" for row in found.kernels)
    assert "slower" in to_text(found)
    assert "🔴" in to_markdown(found)


def test_the_cause_of_a_slow_rank_is_named(reports):
    found = compare(reports["base"], reports["slow"])
    assert any("Rank 1" in cause for cause in found.causes)
    assert any(cause.startswith(("kernel slower", "collective slower")) for cause in found.causes)
    first = to_text(found).splitlines()[:3]
    assert first[0].startswith("slower")
    assert "Rank 1" in first[2]  # verdict, title, cause
    assert found.as_json()["causes"] == list(found.causes)


def test_utilisation_has_the_interval_of_step_time(reports):
    found = {quantity.name: quantity for quantity in compare(reports["base"], reports["slow"]).quantities}
    hfu, time = found["hfu"], found["step_time"]
    assert hfu.low < hfu.change < hfu.high < 0
    assert hfu.verdict == "slower"
    assert (1 + hfu.high) / (1 + hfu.low) == pytest.approx((1 + time.high) / (1 + time.low))


def test_several_runs_of_a_side_are_one_side(reports):
    base, slow = [reports["base"], reports["again"]], [reports["slow"], reports["slow"]]
    found = compare(base, slow)
    assert found.runs == (2, 2)
    assert found.verdict == "slower"
    assert "of 2 and 2 runs" in headline(found)
    assert sum(term.base for term in found.terms) == pytest.approx(100, abs=1e-6)
    one, other = (compare(reports[name], reports["slow"]).kernels[0] for name in ("base", "again"))
    assert found.kernels[0].base_ns == pytest.approx((one.base_ns + other.base_ns) / 2)


def test_one_run_a_side_says_what_is_assumed(reports):
    assert any("assumed to differ" in note for note in compare(reports["base"], reports["again"]).notes)
    several = compare([reports["base"], reports["again"]], reports["slow"])
    assert not any("assumed to differ" in note for note in several.notes)


def test_one_run_a_side_has_no_verdict_where_steps_swing(reports):
    """On a machine that others use as well, one run of each knows nothing of the next."""
    swinging = [1 + 0.3 * (np.arange(200) // 20 % 2)] * 2

    def recorded(scale, times):
        ends = np.cumsum(1e8 * scale * times).astype(np.int64)
        return table_from_rows(
            STEPS, [{"rank": 0, "step": i, "start_ns": 0, "end_ns": int(e)} for i, e in enumerate(ends)]
        )

    base, new = (recorded(scale, times) for scale, times in zip((1, 1.5), swinging, strict=True))
    found = compare(reports["base"], reports["again"], steps=([base], [new]))
    assert (found.verdict, found.doubt) == ("unknown", "swing")
    assert (
        headline(found)
        == "no verdict: step time +50.0%, but steps swing and one run a side cannot tell that from noise"
    )
    assert any("give several runs of each side" in note for note in found.notes)
    assert all(quantity.low is None for quantity in (*found.quantities, *found.parts, *found.terms))
    with pytest.raises(GateUnknown):
        check_change(found, "step_time>+3%")
    assert compare(reports["base"], reports["again"], steps=([base], [new]), run_spread=0.01).verdict == "slower"


def test_parts_of_a_step_sum_to_it(reports):
    found = compare(reports["base"], reports["slow"])
    steps = reports["slow"].tables["steps"]["window_ns"].to_numpy()
    assert sum(part.new for part in found.parts) == pytest.approx(steps.mean())


def test_terms_of_both_runs_sum_to_a_hundred(reports):
    found = compare(reports["base"], reports["slow"])
    assert sum(term.base for term in found.terms) == pytest.approx(100, abs=1e-6)
    assert sum(term.new for term in found.terms) == pytest.approx(100, abs=1e-6)


def test_terms_are_those_of_the_analysis(reports):
    """Ratios of sums, not means of ratios."""
    told = {row["term"]: row["points"] for row in reports["slow"].summary["waterfall"]}
    for term in compare(reports["base"], reports["slow"]).terms:
        assert term.new == pytest.approx(told[term.name], abs=1e-6)


def test_the_gate_trips_only_on_evidence(reports):
    slow = compare(reports["base"], reports["slow"])
    with pytest.raises(GateTripped, match="step_time changed by"):
        check_change(slow, "step_time>+3%")
    check_change(slow, "step_time<-3%")
    check_change(compare(reports["base"], reports["again"]), "step_time>+0%")


def test_an_unknown_change_never_passes(reports):
    found = compare(reports["base"], reports["again"])
    with pytest.raises(GateUnknown, match="mfu is unknown"):
        check_change(found, "mfu<-2%")


@pytest.mark.parametrize("expression", ["step_time", "step_time>3", "nonsense>+3%", "step_time>+3points"])
def test_a_condition_that_makes_no_sense_is_refused(reports, expression):
    with pytest.raises(UsageError):
        check_change(compare(reports["base"], reports["again"]), expression)


def test_junit_carries_the_failure(reports):
    found = compare(reports["base"], reports["again"])
    assert 'failures="0"' in to_junit(found, None)
    assert '<failure message="a &lt; b"/>' in to_junit(found, "a < b")


def test_recorded_steps_are_end_to_end_without_the_profiled_ones():
    rows = [
        {"rank": rank, "step": step, "start_ns": 0, "end_ns": 100 * step + rank, "profiled": step == 5}
        for rank in (0, 1)
        for step in range(10)
    ]
    times = recorded_step_times(table_from_rows(STEPS, rows))
    assert times.tolist() == [100.0] * 7  # nine gaps, without those into and out of step 5
    assert len(recorded_step_times(table_from_rows(STEPS, []))) == 0


def test_recorded_steps_are_preferred(reports):
    random = np.random.default_rng(0)

    def recorded(scale):
        ends = np.cumsum(scale * (1 + 0.01 * random.normal(size=100))).astype(np.int64)
        return table_from_rows(
            STEPS, [{"rank": 0, "step": i, "start_ns": 0, "end_ns": int(e)} for i, e in enumerate(ends)]
        )

    found = compare(reports["base"], reports["again"], steps=([recorded(1e8)], [recorded(1.05e8)]))
    assert (found.step_source, found.verdict) == ("recorded", "slower")


def test_the_nanogpt_pair_can_be_read(traces):
    folder = traces / "KellerJordan__modded-nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook"
    base, new = (
        perfkit.analyze(folder / f"modded-nanogpt-{name}-gpu-rank-00-chrome-trace.json.gz")
        for name in ("current", "hook")
    )
    found = compare(base, new)
    assert found.verdict == "unknown"  # four steps each
    assert headline(found).startswith("no verdict: step time −0.9%")
    parts = {part.name: part for part in found.parts}
    assert parts["exposed_comm"].new < parts["exposed_comm"].base  # the hook starts gradient exchange earlier
    assert any(row.name.startswith("reduce_scatter") for row in found.collectives)


def test_the_trace_diff_pair_says_what_differs(traces):
    folder = traces / "facebookresearch__HolisticTraceAnalysis/tests/data/trace_diff"
    found = compare(*(perfkit.analyze(folder / f"{name}/{name}.json.gz") for name in ("control", "test")))
    assert found.verdict == "unknown"  # six steps each
    assert [note.split(":")[0] for note in found.notes[:2]] == ["device differs", "world size differs"]
    assert any("HFU and matmul below peak cannot be compared" in note for note in found.notes)
    assert {q.name: q.change for q in found.quantities}["hfu"] is None
    assert not any("below peak" in cause for cause in found.causes)
    added = {row.name for row in found.kernels if row.status == "added"}
    assert {"CompiledFunction", "CompiledFunctionBackward"} <= added  # `test` is compiled, `control` is not
