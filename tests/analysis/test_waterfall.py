from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import shapes, tables
from test_real_traces import analyze_or_explain, kineto_files
from trace_rows import Row, call, copy, events, kernel, nccl, op, span, step

from perfkit.analysis.analyze import analyze, analyze_tables
from perfkit.analysis.waterfall import share_out
from perfkit.errors import UsageError
from perfkit.flops.calculator import compute_mfu
from perfkit.report.report import Report
from perfkit.schema import DEVICE_INFO, WATERFALL, conform, table_from_rows
from perfkit.simulate import Job, Mesh, sample_job, simulate

H100 = "NVIDIA H100 80GB HBM3"
MODEL = {"layers": 4, "hidden": 512, "heads": 8, "vocab": 32000, "seq_len": 1024, "n_params": 50_000_000,
         "ffn": 2048, "gated": False}  # fmt: skip
TRACELENS = "AMD-AGI__TraceLens/tests/traces"
QWEN = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
NANOGPT = "KellerJordan__modded-nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook"


def top(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["parent"] is None]


def points(found: Report) -> dict[str, float]:
    return {row["term"]: row["points"] for row in top(found.summary["waterfall"])}


def check_sums(found: Report) -> None:
    """Every ladder sums to its windows to the ns and to 100 points; children sum to their parent."""
    conform(WATERFALL, found.tables["waterfall"])
    scopes: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for row in found.tables["waterfall"].to_pylist():
        scopes[row["rank"], row["step"]].append(row)
    steps = found.tables["steps"].to_pylist()
    for (rank, number), rows in scopes.items():
        mine = [s for s in steps if rank in (None, s["rank"]) and number in (None, s["step"])]
        window = sum(s["window_ns"] for s in mine)
        assert sum(r["gpu_ns"] for r in top(rows)) == window
        if window:
            assert sum(r["points"] for r in top(rows)) == 100.0
        for parent in top(rows):
            children = [r for r in rows if r["parent"] == parent["term"] and r["measured"]]
            if children:
                assert sum(r["gpu_ns"] for r in children) == parent["gpu_ns"]
                assert window == 0 or sum(r["points"] for r in children) == parent["points"]
    ranks = {s["rank"] for s in steps}
    numbers = {s["step"] for s in steps} - {None}
    assert set(scopes) == {(None, None)} | {(r, None) for r in ranks} | {(None, n) for n in numbers}
    for row in found.summary["waterfall"]:
        assert row["measured"] == (row["ns"] is not None)
    value = found.summary["mfu"]["value"]
    assert value is None or 0 < value <= 1


# ------------------------------------------------------------------ exact sums


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=12), st.integers(1, 10**13))
def test_shares_add_up_to_what_was_shared_out_and_each_is_rounded_once(amounts: list[int], whole: int) -> None:
    units = 100 * 2**24
    exact = [amount * units / whole for amount in amounts]
    target = sum(amounts) * units // whole
    shares = share_out(amounts, units, whole, target)
    assert sum(shares) == target
    assert all(abs(share - value) <= 1 + 1e-6 * abs(value) for share, value in zip(shares, exact, strict=True))


SPAN = st.tuples(st.integers(0, 400), st.integers(0, 80)).map(lambda t: (t[0], t[0] + t[1]))


@st.composite
def random_rows(draw: st.DrawFn) -> list[Row]:
    """Events without any order: kernels of all kinds, launches, ops, syncs and steps that may overlap."""
    rows: list[Row] = []
    names = st.sampled_from(["gemm", "flash_fwd_kernel", "vectorized_elementwise_kernel", "no_idea"])
    for number, (start, end) in enumerate(sorted(draw(st.lists(SPAN, max_size=3)))):
        rows.append(step(number, start, end))
    for i, (start, end) in enumerate(draw(st.lists(SPAN, min_size=1, max_size=10))):
        corr = draw(st.sampled_from([None, i + 1]))
        kind = draw(st.sampled_from([kernel, kernel, nccl, copy]))
        device = draw(st.integers(0, 1))
        rows.append(
            kernel(start, end, corr, draw(names), device) if kind is kernel else kind(start, end, corr, device=device)
        )
        if corr and draw(st.booleans()):
            rows.append(call(max(0, start - draw(st.integers(0, 60))), start, corr, tid=draw(st.integers(1, 2))))
    for start, end in draw(st.lists(SPAN, max_size=6)):
        name = draw(st.sampled_from(["aten::mm", "aten::add", "autograd::engine::evaluate_function: MmBackward0"]))
        rows.append(shapes(op(start, end, name, tid=draw(st.integers(1, 2))), [64, 128], [128, 32]))
    for start, end in draw(st.lists(SPAN, max_size=3)):
        rows.append(span(start, end, draw(st.sampled_from(["enumerate(DataLoader)#x.__next__", "save_checkpoint"]))))
    return rows


@settings(max_examples=40, deadline=None)
@given(random_rows(), st.sampled_from(["step", "trace"]), st.sampled_from([None, 1e9, 1e15]))
def test_ladders_of_random_events_sum_exactly(rows: list[Row], window: str, peak: float | None) -> None:
    options = {} if peak is None else {"peak_flops": peak, "dtype": "bf16"}
    model = {"model": MODEL, "tokens_per_step": 1e-6, "world_size": 1}
    for question in (options, {**options, **model}):
        check_sums(analyze_tables(tables(*rows), window=window, **question))


def simulated(job: Job, **question: Any) -> Report:
    sim = simulate(job, flows=False)
    found = [sim.tables(rank) for rank in sim.ranks]
    joined = {name: pa.concat_tables([one[name] for one in found]) for name in found[0]}
    return analyze_tables(joined, world_size=job.mesh.world_size, **question)


@pytest.mark.parametrize("seed", range(6))
def test_ladders_of_simulated_jobs_and_faults_sum_exactly(seed: int) -> None:
    job = sample_job(seed)
    check_sums(simulated(job))
    check_sums(simulated(job, model=MODEL, tokens_per_step=job.tokens_per_step))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 106))
def test_ladders_of_a_hundred_more_jobs_sum_exactly(seed: int) -> None:
    job = sample_job(seed)
    check_sums(simulated(job))
    check_sums(simulated(job, model=MODEL, tokens_per_step=job.tokens_per_step))


def check_trace(path: Path) -> bool:
    """Check a trace in both windows, without and with a model; False if there is nothing to analyze in it."""
    for window in ("step", "trace"):
        if (found := analyze_or_explain(path, window)) is None:
            return False
        check_sums(found)
        check_sums(analyze(path, window=window, peak_flops=1e15, dtype="bf16", model=MODEL, tokens_per_step=1e3))
    return True


def test_ladders_of_small_real_traces_sum_exactly(traces: Path) -> None:
    assert sum(check_trace(p) for p in kineto_files(traces) if p.stat().st_size < 60_000) >= 8


@pytest.mark.slow
def test_ladders_of_all_real_traces_sum_exactly(traces: Path) -> None:
    more = ["GindaChen__nsys-ai/tests/fixtures/mfu_2gpu_before.sqlite", "NVIDIA__Fuser/report2.sqlite",
            "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz"]  # fmt: skip
    assert sum(check_trace(p) for p in [*kineto_files(traces), *(traces / m for m in more)]) >= 45


# ------------------------------------------------------------------ where it starts


def two_steps() -> list[Row]:
    """Two steps of 10 ms; each a product of 4 ms and an element-wise kernel of 2 ms."""
    ms, rows = 1_000_000, list[Row]()
    for n in range(2):
        at = 10 * ms * n
        rows += [
            step(n, at, at + 10 * ms), shapes(op(at + 1, at + ms, "aten::mm"), [8192, 8192], [8192, 8192]),
            call(at + 10, at + 20, 2 * n + 1), kernel(at + 100, at + 100 + 4 * ms, 2 * n + 1),
            op(at + 2 * ms, at + 3 * ms), call(at + 2 * ms + 10, at + 2 * ms + 20, 2 * n + 2),
            kernel(at + 100 + 4 * ms, at + 100 + 6 * ms, 2 * n + 2, name="vectorized_elementwise_kernel"),
        ]  # fmt: skip
    return rows


def with_device(name: str) -> dict[str, pa.Table]:
    info = table_from_rows(DEVICE_INFO, [{"rank": 0, "segment": 0, "device": 0, "name": name}])
    return {**tables(*two_steps()), "device_info": info}


def test_without_a_peak_the_ladder_is_time_alone_and_says_how_to_get_more() -> None:
    found = analyze_tables(with_device("Imaginary X1"))
    assert found.summary["mfu"]["ladder_start"] == "time"
    assert (found.summary["mfu"]["value"], found.summary["mfu"]["hfu"]) == (None, None)
    assert found.summary["hardware"]["peak_flops"] is None
    assert any("--peak-flops" in message for message in found.summary["mfu"]["messages"])
    assert found.summary["mfu"]["flops_coverage"] == 1.0
    shown = points(found)
    assert shown["matmul"] == pytest.approx(40, abs=0.1)
    assert "matmul_below_peak" not in shown


def test_without_matrix_products_their_number_format_is_not_asked_after() -> None:
    found = analyze_tables(tables(kernel(0, 100, name="saxpy")), hardware=H100)
    assert found.summary["mfu"]["messages"][0].startswith("the traces hold no matrix products")


def test_with_a_peak_and_no_model_the_ladder_starts_at_hfu() -> None:
    found = analyze_tables(with_device(H100))
    mfu = found.summary["mfu"]
    expected = 2 * 2 * 8192**3 / (989.5e12 * found.summary["totals"]["window_ns"] / 1e9)
    assert (mfu["ladder_start"], mfu["value"]) == ("hfu", None)
    assert mfu["hfu"] == pytest.approx(expected, rel=1e-6)
    assert points(found)["hfu"] == pytest.approx(100 * expected, rel=1e-6)
    assert found.summary["ranks"][0]["hfu"] == pytest.approx(expected, rel=1e-6)
    assert found.summary["hardware"]["dtype"] == "bf16"
    assert found.summary["hardware"]["source"]


def test_with_a_model_the_ladder_starts_at_the_mfu_that_the_calculator_gives() -> None:
    found = analyze_tables(with_device(H100), model=MODEL, tokens_per_step=8192)
    totals, mfu = found.summary["totals"], found.summary["mfu"]
    answer = compute_mfu(MODEL, hardware=H100, step_time=totals["window_ns"] / 2 / 1e9, tokens_per_step=8192, devices=1)
    assert mfu["value"] == pytest.approx(answer.mfu, rel=1e-6)
    assert points(found)["mfu"] == pytest.approx(100 * mfu["value"], rel=1e-6)
    assert mfu["convention"] == "palm"
    others = {name: one.mfu for name, one in answer.conventions.items() if name != "palm"}
    assert mfu["other_conventions"].keys() == others.keys()
    assert all(
        mfu["other_conventions"][n] == (v if v is None else pytest.approx(v, rel=1e-6)) for n, v in others.items()
    )
    assert others["megatron"] is not None
    below = [r for r in found.summary["waterfall"] if r["parent"] == "matmul_below_peak" and r["measured"]]
    assert {r["term"] for r in below} == {"gemm", "flops_beyond_model"}


def test_with_some_ranks_traced_mfu_is_of_the_whole_job() -> None:
    one, many = (
        analyze_tables(with_device(H100), model=MODEL, tokens_per_step=8192 * n, world_size=n).summary["mfu"]["value"]
        for n in (1, 64)
    )
    assert many == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"tokens_per_step": 8192}, "--model"),
        ({"model": MODEL}, "--tokens-per-step"),
        ({"model": MODEL, "tokens_per_step": 8192, "hardware": "H10"}, "not in the peak registry"),
        ({"model": MODEL, "tokens_per_step": 8192, "window": "trace"}, "no steps are marked"),
        ({"model": MODEL, "tokens_per_step": 1e9}, "above 1: invalid"),
        ({"model": MODEL, "tokens_per_step": 8192, "hardware": H100, "dtype": "fp4"}, "no fp4 peak"),
        ({"model": MODEL, "tokens_per_step": 8192, "peak": "measured", "hardware": "H10"}, "hardware --calibrate"),
    ],
)
def test_mfu_is_null_and_says_why(question: dict[str, Any], message: str) -> None:
    found = analyze_tables(with_device(H100), **question)
    check_sums(found)
    assert found.summary["mfu"]["value"] is None
    assert any(message in one for one in found.summary["mfu"]["messages"]), found.summary["mfu"]["messages"]


def test_ranks_that_do_not_communicate_are_not_said_to_when_the_world_size_is_missing() -> None:
    both = pa.concat_tables([events(kernel(0, 10), rank=rank) for rank in (0, 1)])
    messages = " ".join(analyze_tables({"events": both}).summary["mfu"]["messages"])
    assert "they are of 2 ranks; pass --world-size" in messages
    assert "communicate" not in messages


def test_a_job_that_communicates_and_hides_its_world_size_has_no_mfu() -> None:
    rows = tables(*two_steps(), nccl(9_000_000, 9_500_000))
    question: Mapping[str, Any] = {"model": MODEL, "tokens_per_step": 8192, "hardware": H100}
    assert analyze_tables(rows, **question).summary["mfu"]["value"] is None
    assert analyze_tables(rows, **question, world_size=2).summary["mfu"]["value"] is not None


def test_nonsense_is_refused() -> None:
    for question in ({"tokens_per_step": 0}, {"peak_flops": -1.0}, {"world_size": 0}, {"modle": "gpt2"}, {"peak": "x"}):
        with pytest.raises(UsageError):
            analyze_tables({"events": events(kernel(0, 1))}, **question)


def test_hfu_of_a_simulated_job_is_the_simulators_own() -> None:
    sim = simulate(Job(mesh=Mesh(dp=2), steps=3))
    found = simulated(sim.job).summary["mfu"]
    assert found["flops_coverage"] == 1.0
    assert found["hfu"] == pytest.approx(sim.truth()["mfu"]["hfu"], rel=1e-3)  # a causal mask keeps the diagonal


def test_recomputed_products_are_lost_for_mfu_and_executed_for_hfu() -> None:
    ms = 1_000_000
    rows = [
        step(0, 0, 10 * ms), op(0, 9 * ms, "CheckpointFunctionBackward"),
        shapes(op(1, ms, "aten::mm"), [8192, 8192], [8192, 8192]), call(10, 20, 1), kernel(100, 100 + 4 * ms, 1),
    ]  # fmt: skip
    hfu = analyze_tables(tables(*rows), hardware=H100)
    mfu = analyze_tables(tables(*rows), hardware=H100, model=MODEL, tokens_per_step=1024)
    ideal = 2 * 8192**3 / 989.5e12 * 1e9
    by_term = [{r["term"]: r["ns"] for r in top(one.summary["waterfall"])} for one in (hfu, mfu)]
    assert by_term[0]["recompute"] == pytest.approx(4 * ms - ideal, abs=1)
    assert by_term[1]["recompute"] == 4 * ms
    assert by_term[1]["matmul_below_peak"] == -by_term[1]["mfu"]


def test_a_model_that_the_matrix_products_had_no_time_for_is_doubted() -> None:
    ms = 1_000_000
    rows = [
        step(0, 0, 10 * ms), shapes(op(1, ms, "aten::mm"), [8192, 8192], [8192, 8192]), call(10, 20, 1),
        kernel(100, 100 + 2 * ms, 1),
    ]  # fmt: skip

    def said(tokens: int) -> list[str]:
        return analyze_tables(tables(*rows), hardware=H100, model=MODEL, tokens_per_step=tokens).summary["mfu"][
            "messages"
        ]

    fitting = int(1.9 * ms * 1e-9 * 989.5e12 / compute_mfu(MODEL, hardware=H100, step_time=1, tokens_per_step=1,
                                                            devices=1).flops_per_token)  # fmt: skip
    assert not any("inside the matrix products" in message for message in said(fitting))
    assert any("inside the matrix products: MFU is too high" in message for message in said(2 * fitting))


def test_a_name_that_several_devices_have_is_the_one_that_the_traces_record() -> None:
    rows = [step(0, 0, 1000), op(1, 900, "aten::mm"), call(10, 20, 1), kernel(100, 500, 1)]
    recorded = table_from_rows(DEVICE_INFO, [{"rank": 0, "segment": 0, "device": 0, "name": H100}])
    found = analyze_tables({**tables(*rows), "device_info": recorded}, hardware="h100", dtype="bf16")
    assert found.summary["hardware"]["device"] == "H100-SXM5-80GB"
    alone = analyze_tables(tables(*rows), hardware="h100", dtype="bf16")
    assert alone.summary["hardware"]["peak_flops"] is None


# ------------------------------------------------------------------ real machines


def test_the_hook_of_modded_nanogpt_lowers_exposed_communication(traces: Path) -> None:
    before, after = (
        analyze(traces / NANOGPT / f"modded-nanogpt-{name}-gpu-rank-00-chrome-trace.json.gz")
        for name in ("current", "hook")
    )
    assert points(after)["unsplit_comm"] < points(before)["unsplit_comm"]
    assert before.summary["totals"]["exposed_comm_ns"] - after.summary["totals"]["exposed_comm_ns"] > 500_000
    ideal = [{r["term"]: r["ns"] for r in top(one.summary["waterfall"])}["hfu"] for one in (before, after)]
    assert ideal[0] == ideal[1]  # the same model: the same FLOPs


def test_one_model_on_two_vendors_can_be_read_side_by_side(traces: Path) -> None:
    nvidia = analyze(traces / TRACELENS / "h100" / QWEN)
    amd = analyze(traces / TRACELENS / "mi300" / QWEN, hardware="AMD Instinct MI300X")
    assert list(points(nvidia)) == list(points(amd))
    flops = [sum(r["flops"] or 0 for r in one.summary["kernels"] if r["family"] == "gemm") for one in (nvidia, amd)]
    assert flops[0] == pytest.approx(flops[1], rel=1e-9)
    for one in (nvidia, amd):
        assert one.summary["mfu"]["flops_coverage"] == 1.0
        assert 0.05 < one.summary["mfu"]["hfu"] < 0.5


def test_the_cpu_sample_has_an_mfu_against_a_calibrated_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"device": "This CPU", "date": "2026-01-01", "backend": "numpy", "matmul_tflops": {"fp32": 0.1}}
    (tmp_path / "measured.json").write_text(json.dumps({"devices": [entry]}))
    monkeypatch.setattr("perfkit.hardware.overrides.measured_path", lambda: tmp_path / "measured.json")
    folder = Path(__file__).parents[2] / "sample_traces" / "ddp_gloo"
    toy = {"n_params": 4 * 256 * 257, "layers": 4, "hidden": 256, "heads": 1, "seq_len": 1, "vocab": 1}
    found = analyze(folder, model=toy, tokens_per_step=128, hardware="This CPU", peak="measured")
    check_sums(found)
    mfu = found.summary["mfu"]
    assert 0.01 < mfu["value"] < 0.5, mfu
    assert mfu["value"] == pytest.approx(mfu["hfu"], rel=0.3)  # no recompute: two counts of the same products
    assert found.summary["hardware"]["dtype"] == "fp32"
