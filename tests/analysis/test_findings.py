"""Each rule finds what it should and nothing else: on simulated faults, on real traces, and on cases made by hand."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_kernels import shapes, tables
from test_waterfall import H100, NANOGPT, QWEN, TRACELENS, simulated
from trace_rows import Row, call, copy, kernel, op, span, step

from perfkit.analysis import findings
from perfkit.analysis.analyze import analyze, analyze_tables
from perfkit.analysis.findings import RULES, Finding
from perfkit.analysis.findings_device import _shapes
from perfkit.analysis.findings_job import _MAKES_LATE
from perfkit.errors import PerfkitError
from perfkit.report.report import Report
from perfkit.schema import FINDINGS, conform
from perfkit.simulate import Job, Mesh, parse_fault
from perfkit.simulate.simulation import simulate
from perfkit.sources.ingest import ingest
from tests.conftest import ROOT
from tests.sources.test_nsys import Report as Nsys

KINETO = "pytorch__kineto/tb_plugin/samples"
PUZZLERS = "anupambhatnagar__GPUPuzzlers"
US, MS = 1_000, 1_000_000


def ids(found: Report) -> list[str]:
    return [row["id"] for row in found.summary["findings"]]


def finding(found: Report, id: str) -> dict[str, Any]:
    return next(row for row in found.summary["findings"] if row["id"] == id)


@pytest.mark.parametrize(("name", "id", "published"), [("ST", "stage_imbalance", 0.152), ("AR", "straggler", 0.493)])
def test_published_jobs_have_the_cause_and_about_the_cost_that_their_authors_found(
    traces: Path, name: str, id: str, published: float
) -> None:
    path = traces / "ByteDance-Seed__StragglerAnalysis" / "data" / f"trace-{name}.parquet"
    if not path.exists():
        pytest.skip("not among the real traces here")
    found = analyze(path)
    assert found.summary["quality"]["steps_source"] == "step_records"
    assert finding(found, id)["points"] == pytest.approx(100 * published, rel=0.1)


def test_what_stages_wait_for_at_the_end_of_a_step_is_not_taken_for_a_slow_network(traces: Path) -> None:
    path = traces / "ByteDance-Seed__StragglerAnalysis" / "data" / "trace-ST.parquet"
    if not path.exists():
        pytest.skip("not among the real traces here")
    found = analyze(path)
    moved = found.summary["job"]["exposed_transfer_ns"] / found.summary["totals"]["window_ns"]
    assert finding(found, "exposed_communication")["points"] < 100 * 1.5 * moved
    bubble, stages = (finding(found, id)["points"] for id in ("pipeline_bubble", "stage_imbalance"))
    assert bubble + stages == pytest.approx(100 * found.summary["job"]["bubble"]["ratio"])  # no ns counts twice


def test_waiting_at_an_all_to_all_is_not_blamed_on_what_its_ranks_send(traces: Path) -> None:
    path = traces / "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz"
    found = analyze(path) if path.exists() else pytest.skip("not among the real traces here")
    row = finding(found, "skewed_all_to_all")  # 100 kB take 0.3 ms; 37 ms are waiting for hosts that launch late
    assert "mostly waiting, and its heaviest rank carries 1.62 times the mean" in row["title"]
    assert row["next"].startswith("its ranks arrive at different times")
    assert ids(found).index("host_bound") < ids(found).index("skewed_all_to_all")


# ------------------------------------------------------------------ simulated faults

MATCHING = {
    "data-stall": "data_bound", "late-rank": "host_bound", "slow-host": "host_bound", "sync-point": "sync_points",
    "allocator-churn": "allocator_churn", "recompute": "recompute", "small-bucket": "small_messages",
    "slow-link": "exposed_communication", "slow-rank": "slow_rank", "throttle": "slow_rank",
    "stream-stall": "stream_waits", "lost-launches": "profiler_distortion",
}  # fmt: skip
"""Every fault of the simulator, and the finding that names it."""


def names(found: Report, kind: str) -> bool:
    """Say whether the first finding is that of a fault; a slow link is one where another group can be compared."""
    return ids(found)[:1] in ([MATCHING[kind]], [kind.replace("-", "_")] if kind == "slow-link" else [])


def scenario(kind: str, seed: int) -> Job:
    """Return a job that runs well but for one fault, which costs a few percent of the time or more.

    Models, meshes, targets and sizes of the fault are drawn. Faults of launching and of synchronising cost next to
    nothing where kernels take milliseconds, so that they get a small model; it has no FSDP, because gathering
    small layers is a fault of its own.
    """
    dice = random.Random(f"{kind} {seed}")
    small = kind in ("sync-point", "slow-host")
    meshes = [Mesh(dp=4), Mesh(dp=8), Mesh(fsdp=4), Mesh(dp=2, fsdp=2)]
    mesh = dice.choice([Mesh(dp=2), Mesh(dp=4)] if small or kind == "small-bucket" else meshes)
    rank, hidden = dice.randrange(mesh.world_size), 1024 if small else dice.choice([3072, 4096, 5120])
    fault = {
        "data-stall": f"{kind}:{rank}:{dice.randint(20, 80)}ms", "late-rank": f"{kind}:{rank}:{dice.randint(20, 80)}ms",
        "slow-host": f"{kind}:0:{dice.randint(5, 10)}x", "sync-point": f"{kind}:{dice.choice(['all', rank])}",
        "allocator-churn": f"{kind}:{rank}:{dice.randint(3, 9)}ms", "recompute": kind,
        "small-bucket": f"{kind}:{dice.randint(12, 24)}x", "slow-link": f"{kind}:{rank}:{dice.randint(6, 16)}x",
        "slow-rank": f"{kind}:{rank}:{dice.randint(120, 180) / 100}x",
        "throttle": f"{kind}:{rank}:{dice.randint(125, 180) / 100}x",
        "stream-stall": f"{kind}:{rank}:{dice.randint(2, 6)}ms", "lost-launches": f"{kind}:all",
    }.get(kind)  # fmt: skip
    return Job(
        mesh=mesh, seed=seed, steps=2 if kind == "small-bucket" else dice.choice([3, 4, 5]),
        layers=dice.choice([4, 6]), hidden=hidden, ffn=hidden * dice.choice([3, 4]), seq_len=1024 if small else 4096,
        micro_batch=1 if small else dice.choice([2, 3]), micro_batches=8 if small else 1,
        faults=() if fault is None else (parse_fault(fault),),
    )  # fmt: skip


@cache
def of_scenario(kind: str, seed: int) -> Report:
    return simulated(scenario(kind, seed))


@pytest.mark.parametrize("kind", MATCHING)
def test_a_simulated_fault_is_named_first(kind: str) -> None:
    found = of_scenario(kind, 0)
    assert names(found, kind)
    conform(FINDINGS, found.tables["findings"])


def test_a_healthy_job_has_no_findings() -> None:
    assert [ids(of_scenario("healthy", seed)) for seed in range(2)] == [[], []]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", MATCHING)
def test_a_simulated_fault_is_named_first_in_95_of_100_jobs(kind: str) -> None:
    named = [names(simulated(scenario(kind, seed)), kind) for seed in range(100, 200)]
    assert sum(named) >= 95, [seed for seed, hit in enumerate(named, 100) if not hit]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_healthy_jobs_have_no_findings_in_99_of_100() -> None:
    clean = [not ids(simulated(scenario("healthy", seed))) for seed in range(100, 200)]
    assert sum(clean) >= 99, [seed for seed, hit in enumerate(clean, 100) if not hit]


def test_findings_of_faults_stay_apart() -> None:
    """No fault is taken for another one's."""
    for kind, expected in MATCHING.items():
        others = set(MATCHING.values()) - {expected}
        assert not others & set(ids(of_scenario(kind, 0))), kind


def test_a_fault_of_one_rank_costs_all_of_them() -> None:
    job = Job(
        mesh=Mesh(dp=4), steps=4, hidden=4096, ffn=16384, seq_len=4096, faults=(parse_fault("data-stall:1:60ms"),)
    )
    found = simulated(job)
    alone = found.summary["io"]["data_wait_ns"] / found.summary["totals"]["window_ns"]
    # one rank stands still for data, three stand still for it
    assert finding(found, "data_bound")["points"] == pytest.approx(100 * 4 * alone, rel=0.15)
    assert "exposed_communication" not in ids(found)


def test_the_slow_rank_is_the_one_that_was_slowed_and_throttling_is_told_apart() -> None:
    for kind, throttled in (("slow-rank", False), ("throttle", True)):
        job = scenario(kind, 0)
        (fault,) = job.faults
        row = finding(of_scenario(kind, 0), "slow_rank")
        assert row["evidence"]["rank"] == fault.target
        assert ("clocks" in row["next"]) == throttled
        assert row["evidence"]["matrix_kernels"] == pytest.approx((fault.permille or 0) / 1000, rel=0.03)


def test_a_late_host_is_reported_with_its_place() -> None:
    evidence = finding(of_scenario("late-rank", 0), "host_bound")["evidence"]
    assert evidence["places"][0]["where"].startswith("train.py:88")


def test_checkpoints_that_block_are_found() -> None:
    job = Job(mesh=Mesh(dp=2), steps=4, hidden=4096, ffn=16384, seq_len=4096, checkpoint_every=2, checkpoint_ns=60 * MS)
    assert ids(simulated(job))[0] == "checkpoint_stall"


def test_a_slow_step_is_found_beside_its_cause() -> None:
    job = Job(mesh=Mesh(dp=2), steps=8, hidden=4096, ffn=16384, seq_len=4096,
              faults=(parse_fault("late-rank:all:90ms@4"),))  # fmt: skip
    found = simulated(job)
    assert "slow_steps" in ids(found)
    assert [s["step"] for s in finding(found, "slow_steps")["evidence"]["steps"]] == [job.first_step + 3]
    assert "slow_steps" not in ids(of_scenario("late-rank", 0))  # every step is the same


# ------------------------------------------------------------------ real traces


def test_resnet_without_workers_is_data_bound_and_with_four_it_is_not(traces: Path) -> None:
    assert ids(analyze(traces / KINETO / "resnet50_num_workers_0"))[0] == "data_bound"
    assert "data_bound" not in ids(analyze(traces / KINETO / "resnet50_num_workers_4"))


def test_torchrec_runs_the_allocator_inside_steps(traces: Path) -> None:
    found = analyze(traces / "pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer_3")
    assert ids(found)[0] == "allocator_churn"
    assert "exposed_communication" in ids(found)


def test_copies_from_pageable_memory_are_found(traces: Path) -> None:
    found = analyze(traces / PUZZLERS / "streams/blocking")
    assert ids(found)[:2] == ["gemm_precision", "pageable_copies"]  # half of the time is sgemm on a device with TF32


def test_copies_between_devices_that_nothing_hides_are_found(traces: Path) -> None:
    found = analyze(traces / PUZZLERS / "collectives/p2p_copy.json.gz")
    assert ids(found)[0] == "exposed_copies"
    assert finding(found, "exposed_copies")["points"] > 90


def test_copies_that_are_hidden_or_pageable_are_not_exposed_copies() -> None:
    def found(*copied: Row) -> list[str]:
        return ids(analyze_tables(tables(kernel(0, 50), *copied, kernel(100, 150))))

    assert "exposed_copies" in found(copy(50, 100, name="Memcpy DtoD (Device -> Device)"))
    assert "exposed_copies" not in found(copy(0, 50, name="Memcpy DtoD (Device -> Device)"))
    assert "exposed_copies" not in found(copy(50, 100, name="Memcpy DtoH (Device -> Pageable)"))


def test_launch_calls_that_load_code_are_not_stream_waits(traces: Path) -> None:
    found = analyze(traces / "AMD-AGI__TraceLens/tests/traces/perf_model/normalization")
    assert ids(found)[0] == "slow_launches"
    assert "stream_waits" not in ids(found)


def test_only_the_time_inside_a_slow_call_is_its_own() -> None:
    def found(returns_ns: int) -> dict[str, float]:
        rows = [call(0, 1_000, 1), kernel(2_000, 100_000, 1), call(50_000, returns_ns, 2), kernel(500_000, 600_000, 2)]
        report = analyze_tables(tables(*rows))
        assert sum(report.tables["idle"]["idle_ns"].to_pylist()) == report.summary["totals"]["idle_ns"]
        return {row["id"]: row["points"] for row in report.summary["findings"]}

    window = 598_000
    assert found(60_000) == {"stream_waits": pytest.approx(100 * 400_000 / window)}
    assert found(500_000) == {"slow_launches": pytest.approx(100 * 400_000 / window)}
    half = found(300_000)
    assert half["slow_launches"] == half["stream_waits"] == pytest.approx(100 * 200_000 / window)


def test_a_host_that_the_trace_says_nothing_about_is_said_to_be_so(traces: Path) -> None:
    row = finding(analyze(traces / "AMD-AGI__TraceLens/tests/traces/mi210/gpu_only_trace"), "host_bound")
    assert "does not say why" in row["title"]
    assert "with_stack" in row["next"]


def test_a_profiler_that_stops_the_device_for_long_comes_first() -> None:
    flush = {**span(55, 75, "Activity Buffer Request"), "category": "overhead"}
    rows = [call(0, 1, 1), kernel(5, 50, 1), flush, call(5, 6, 2), kernel(80, 100, 2)]
    found = analyze_tables(tables(*rows))
    assert ids(found)[0] == "profiler_distortion"


def test_pinned_copies_and_hidden_ones_are_no_finding() -> None:
    def found(copied: Row) -> list[str]:
        return ids(analyze_tables(tables(kernel(0, 50), copied, kernel(100, 150))))

    pageable = "Memcpy HtoD (Pageable -> Device)"
    assert "pageable_copies" in found(copy(50, 100, name=pageable))
    assert "pageable_copies" not in found(copy(50, 100))
    assert "pageable_copies" not in found(copy(0, 50, name=pageable))


def test_a_small_bert_starves_between_tiny_kernels_and_a_large_batch_does_not(traces: Path) -> None:
    bert = analyze(traces / TRACELENS / "h100/gaunernst_bert-small-uncased__1016001.json.gz")
    assert {"host_bound", "tiny_kernels"} <= set(ids(bert))
    assert "tiny_kernels" not in ids(analyze(traces / TRACELENS / "h100" / QWEN))


def test_eager_qwen_is_bound_by_elementwise_kernels_and_compiled_nanogpt_is_not(traces: Path) -> None:
    assert ids(analyze(traces / TRACELENS / "h100" / QWEN)) == ["memory_bound_elementwise"]
    compiled = analyze(traces / NANOGPT / "modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz")
    assert "memory_bound_elementwise" not in ids(compiled)


# ------------------------------------------------------------------ cases made by hand


def device_ops(*calls: tuple[str, list[list[int]], str, int], dtype: str = "c10::BFloat16") -> Report:
    """One step of ops (name, shapes, kernel, µs), each launched ahead of time and run back to back."""
    rows: list[Row] = [step(0, 0, 100 * MS)]
    at = 10 * MS
    for i, (name, dims, kernel_name, length) in enumerate(calls):
        rows += [
            shapes(op(i * 10_000, i * 10_000 + 9_000, name), *dims, dtype=dtype),
            call(i * 10_000 + 100, i * 10_000 + 200, i + 1), kernel(at, at + length * US, i + 1, kernel_name),
        ]  # fmt: skip
        at += length * US
    rows[0] = step(0, 0, at)
    return analyze_tables(tables(*rows), hardware=H100)


def test_products_that_tensor_cores_cannot_load_are_compared_with_those_that_they_can() -> None:
    good = ("aten::mm", [[4096, 4096], [4096, 4096]], "nvjet_gemm", 200)

    def bad(microseconds: int, columns: int = 50257) -> tuple[str, list[list[int]], str, int]:
        return "aten::mm", [[4096, 4096], [4096, columns]], "nvjet_gemm_odd", microseconds

    found = device_ops(good, bad(9_000))
    row = finding(found, "gemm_alignment")
    expected = 9_000 - 200 * 50257 / 4096
    assert row["points"] == pytest.approx(100 * expected / 9_200, rel=1e-3)
    assert json.loads(row["evidence"]["shapes"][0]["input_dims"])[1] == [4096, 50257]
    assert "gemm_alignment" not in ids(device_ops(good, bad(2_400)))  # no slower than the aligned ones
    assert "gemm_alignment" not in ids(device_ops(good, bad(9_000, columns=50304)))


def test_fp32_products_are_found_on_a_device_that_has_bf16() -> None:
    product = ("aten::mm", [[4096, 4096], [4096, 4096]], "ampere_sgemm_128x64_tn", 4_000)
    found = device_ops(product, dtype="float")
    assert ids(found)[0] == "gemm_precision"
    assert finding(found, "gemm_precision")["points"] > 80
    assert "gemm_precision" not in ids(device_ops((*product[:2], "nvjet_gemm", 400)))


def test_a_kernel_of_several_ranks_is_one_line_of_evidence() -> None:
    row = {"op": "aten::mm", "input_dims": "[[8,8]]", "dtype": "fp32", "name": "sgemm", "owned_ns": 2 * MS, "count": 3}
    found = _shapes([row, {**row, "owned_ns": MS}, {**row, "name": "other", "owned_ns": MS}])
    assert [(r["kernel"], r["ms"], r["count"]) for r in found] == [("sgemm", 3.0, 6), ("other", 1.0, 3)]


def test_products_of_a_cpu_are_not_called_too_precise() -> None:
    product = shapes(op(50, 9 * MS, "aten::mm"), [512, 512], [512, 512], dtype="float")
    found = analyze_tables(tables(step(0, 0, 10 * MS), product), hardware=H100)  # whatever the peaks
    assert found.summary["totals"]["compute_ns"] > 8 * MS
    assert "gemm_precision" not in ids(found)


def test_without_shapes_the_kernels_name_tells_fp32_and_the_advice_is_for_what_the_device_has() -> None:
    rows = [step(0, 0, 10 * MS), op(0, 50, "aten::mm"), call(10, 20, 1), kernel(100, 9 * MS, 1, "volta_sgemm_64x64_nt")]
    volta = finding(analyze_tables(tables(*rows), hardware="Tesla V100-SXM2-32GB"), "gemm_precision")
    hopper = finding(analyze_tables(tables(*rows), hardware=H100), "gemm_precision")
    assert "float16" in volta["next"]
    assert "GradScaler" in volta["next"]
    assert "TF32" not in volta["next"]  # it has none
    assert "bfloat16" in hopper["next"]
    assert "TF32" in hopper["next"]


def test_attention_that_writes_its_scores_is_found() -> None:
    scores, heads = [8, 16, 1024, 1024], [128, 1024, 64]
    unfused = [
        ("aten::bmm", [heads, [128, 64, 1024]], "gemm_qk", 300), ("aten::div", [scores], "elementwise_kernel", 300),
        ("aten::_softmax", [scores], "cunn_SoftMaxForward", 500),
        ("aten::bmm", [[128, 1024, 1024], heads], "gemm_pv", 300),
    ]  # fmt: skip
    row = finding(device_ops(*unfused), "unfused_attention")
    assert row["points"] == pytest.approx(100 * 800 / 1400, rel=0.01)
    # the softmax of a classifier is not attention
    classifier = [("aten::mm", [[4096, 4096], [4096, 4096]], "gemm", 300),
                  ("aten::_softmax", [[4096, 32000]], "cunn_SoftMaxForward", 500)]  # fmt: skip
    assert "unfused_attention" not in ids(device_ops(*classifier))


def test_profilers_that_stop_the_device_are_found_and_those_that_do_not_are_not() -> None:
    def found(start: int) -> list[str]:
        flush = {**span(start, start + 20, "Activity Buffer Request"), "category": "overhead"}
        rows = [call(0, 1, 1), kernel(5, 50, 1), flush, call(5, 6, 2), kernel(80, 150, 2)]
        return ids(analyze_tables(tables(*rows)))

    assert "profiler_distortion" in found(55)
    assert "profiler_distortion" not in found(10)


def test_python_frames_distort_a_host_bound_step_only() -> None:
    def found(late: int) -> list[str]:
        rows = [
            call(0, 1, 1),
            kernel(10, 1000, 1),
            call(1000 + late, 1001 + late, 2),
            kernel(1010 + late, 2000 + late, 2),
        ]
        frames = [{**span(i, i + 1, f"train.py({i}): f"), "category": "python_function"} for i in range(50)]
        return ids(analyze_tables(tables(*rows, *frames)))

    assert "profiler_distortion" in found(late=500)
    assert "profiler_distortion" not in found(late=-500)


def test_what_to_do_about_a_distorted_profile_follows_from_what_distorted_it() -> None:
    lost = simulated(Job(mesh=Mesh(), steps=3, faults=(parse_fault("lost-launches:all"),)))
    advice = finding(lost, "profiler_distortion")["next"]
    assert "synchronize" in advice
    assert "with_stack" not in advice  # no frames were recorded


def test_idle_time_beside_a_distorted_profile_is_that_of_the_waterfall() -> None:
    faults = tuple(map(parse_fault, ("lost-launches:all", "late-rank:1:5ms")))
    found = simulated(Job(mesh=Mesh(dp=2), steps=3, faults=faults))
    shown = finding(found, "profiler_distortion")["evidence"]
    terms = {row["term"]: row["points"] for row in found.summary["waterfall"]}
    late = sum(terms[name] for name in ("idle_host", "idle_data", "idle_checkpoint"))
    assert shown["host_late_points"] == pytest.approx(late, abs=1e-3)
    assert shown["unattributed_idle_points"] == pytest.approx(terms["idle_unattributed"], abs=1e-3)


def test_a_job_on_a_device_of_which_only_the_host_was_traced_is_told_so_first(traces: Path) -> None:
    path = traces / "facebookresearch__HolisticTraceAnalysis/tests/data/distributed_info_unavailable"
    found = analyze(path) if path.exists() else pytest.skip("not among the real traces here")
    first = found.summary["findings"][0]
    assert first["id"] == "no_device_work"
    assert "ProfilerActivity.CUDA" in first["next"]
    rows = [op(0, 100, "aten::mm"), op(200, 300, "aten::mm")]  # a job on a CPU has no device to miss
    assert "no_device_work" not in ids(analyze_tables(tables(*rows)))


@pytest.mark.parametrize("name", ["aten::cudnn_convolution", "aten::_flash_attention_forward", "nccl:all_reduce"])
def test_ops_that_only_a_device_has_give_away_that_its_work_was_not_recorded(name: str) -> None:
    rows = [op(0, 100, "aten::add"), op(100, 200, name), op(200, 300, "aten::add")]
    found = analyze_tables(tables(*rows))
    assert ids(found)[0] == "no_device_work"
    assert "memory_bound_elementwise" not in ids(found)  # the time of an op on the host is not its kernel's
    assert name in found.summary["quality"]["notes"][0]


def test_a_trace_that_is_cut_may_have_lost_the_device_and_nothing_else_was_done_wrong(tmp_path: Path) -> None:
    names = ("aten::add", "aten::cudnn_convolution", "aten::add")
    rows = [{"ph": "X", "cat": "cpu_op", "name": n, "ts": i, "dur": 1, "pid": 1, "tid": 1} for i, n in enumerate(names)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": rows})[:-20])
    advice = finding(analyze(tmp_path), "no_device_work")["next"]
    assert advice.startswith("copy the trace again")
    assert "ProfilerActivity" not in advice


@pytest.mark.parametrize("name", ["aten::mkldnn_convolution", "aten::_scaled_dot_product_flash_attention_for_cpu"])
def test_ops_of_a_cpu_give_no_device_away(name: str) -> None:
    assert "no_device_work" not in ids(analyze_tables(tables(op(0, 100), op(100, 200, name), op(200, 300))))


def test_advice_names_variables_of_the_runtime_that_was_traced() -> None:
    def found(runtime: str) -> Report:
        calls = [call(0, 500 * US, 1), call(900 * US, 1_000 * US, 2), call(1_100 * US, 1_700 * US, 3)]
        calls = [{**row, "name": f"{runtime}{'LaunchKernel'}"} for row in calls]
        calls[1]["name"] = f"{runtime}Free"
        return analyze_tables(tables(*calls, kernel(490 * US, 600 * US, 1), kernel(1_690 * US, 1_800 * US, 3)))

    for id, cuda in (("slow_launches", "CUDA_MODULE_LOADING"), ("allocator_churn", "expandable_segments")):
        assert cuda in finding(found("cuda"), id)["next"]
        assert cuda not in finding(found("hip"), id)["next"]


def test_who_recorded_with_nsys_is_told_the_options_of_nsys(tmp_path: Path) -> None:
    recorded = Nsys().clock()
    for i in range(3):  # a launch call that takes long itself, and a host of which the report says nothing
        at = i * MS
        recorded.call(at, at + 300 * US, 2 * i + 1).kernel(at + 290 * US, at + 400 * US, 2 * i + 1)
        recorded.call(at + 900 * US, at + 905 * US, 2 * i + 2).kernel(at + 910 * US, at + 980 * US, 2 * i + 2)
    path = recorded.sqlite(tmp_path)
    ingest(path, store=tmp_path / "store", run="r")
    for found in (analyze(path), analyze("r", store=tmp_path / "store")):
        assert found.summary["quality"]["sources"] == ["nsys"]
        assert "--capture-range" in finding(found, "slow_launches")["next"]
        assert "--trace=cuda,nvtx" in finding(found, "host_bound")["next"]
        text = found.to_text(details=True)
        assert "torch.profiler" not in text
        assert "ProfilerActivity" not in text


def test_a_report_of_ranges_alone_is_told_how_nsys_records_the_rest(tmp_path: Path) -> None:
    path = Nsys().clock().range(0, 10 * US).sqlite(tmp_path)
    with pytest.raises(PerfkitError, match="no device work") as raised:
        analyze(path)
    assert "--trace=cuda,nvtx" in str(raised.value)
    assert "ProfilerActivity" not in str(raised.value)


def test_a_slow_rank_is_not_said_to_cost_more_than_the_others_would_gain() -> None:
    job = Job(mesh=Mesh(dp=4), steps=4, layers=2, seed=3, faults=(parse_fault("slow-rank:1:2x"),))
    found = simulated(job)
    assert finding(found, "slow_rank")["points"] <= finding(found, "straggler")["points"]


def test_waits_on_a_device_that_runs_graphs_may_be_work_that_was_not_recorded(traces: Path) -> None:
    path = traces / "facebookresearch__HolisticTraceAnalysis/tests/data/negative_queue_length_values_check"
    found = analyze(path) if path.exists() else pytest.skip("not among the real traces here")
    row = finding(found, "stream_waits")
    assert row["evidence"]["graph_coverage"] > 0.2
    assert "cuda-graph-trace" in row["next"]
    assert "slow_steps" not in ids(found)  # the last window only holds what the others hand on
    stalled = of_scenario("stream-stall", 0)
    assert "graph" not in finding(stalled, "stream_waits")["next"]


def test_findings_are_ranked_by_points_and_those_without_points_come_last() -> None:
    both = simulated(Job(mesh=Mesh(dp=4), steps=4, hidden=4096, ffn=16384, seq_len=4096,
                         faults=(parse_fault("recompute"), parse_fault("lost-launches:all"))))  # fmt: skip
    assert ids(both) == ["recompute", "profiler_distortion"]
    assert [row["points"] is None for row in both.summary["findings"]] == [False, True]


def test_every_rule_has_a_name_of_its_own_and_says_what_to_do() -> None:
    names = [rule.__name__ for rule in RULES]
    assert len(set(names)) == len(names) == 27
    seen = {row["id"]: row for kind in MATCHING for row in of_scenario(kind, 0).summary["findings"]}
    assert set(seen) <= set(names)
    assert all(row["next"] and row["title"] and row["evidence"] for row in seen.values())


def test_with_an_mfu_a_finding_says_what_would_be_reached() -> None:
    spec = {"layers": 4, "hidden": 4096, "heads": 32, "vocab": 32000, "seq_len": 4096, "n_params": 10**9}
    job = Job(mesh=Mesh(dp=4), steps=3, hidden=4096, ffn=16384, seq_len=4096, faults=(parse_fault("recompute"),))
    found = simulated(job, model=spec, tokens_per_step=job.tokens_per_step)
    row, mfu = finding(found, "recompute"), found.summary["mfu"]["value"]
    assert row["evidence"]["mfu_without_it"] == pytest.approx(mfu / (1 - row["points"] / 100))


def test_a_trace_of_the_device_alone_is_not_a_profiler_that_lost_launches() -> None:
    sim = simulate(Job(mesh=Mesh(), steps=3), flows=False)
    events = sim.tables(0)["events"]
    device = events.filter(pc.is_in(events["category"].cast(pa.utf8()), pa.array(["kernel", "gpu_memcpy"])))
    found = analyze_tables({"events": device}, synthetic=True)
    quality = found.summary["quality"]
    assert 0 < quality["launches_missing"] == quality["device_events"] <= len(device)
    assert "profiler_distortion" not in ids(found)


@pytest.mark.parametrize(("kind", "rows"), [("slow-link", "collectives"), ("small-bucket", "messages")])
def test_a_group_has_one_name_in_findings_and_in_the_table_of_collectives(kind: str, rows: str) -> None:
    found = of_scenario(kind, 0)
    evidence = finding(found, MATCHING[kind])["evidence"][rows]
    known = {(row["op"], row["group"]) for row in found.summary["collectives"]}
    assert {(row["op"], row["group"]) for row in evidence} <= known


def test_a_sync_on_one_rank_comes_before_the_straggler_that_it_makes() -> None:
    """The sync itself costs 3 points, and the rank that launches late after each of them much more."""
    job = Job(mesh=Mesh(dp=4), steps=3, layers=4, hidden=1024, ffn=3072, seq_len=1024, micro_batch=1, micro_batches=8,
              seed=104, faults=(parse_fault("sync-point:1"),))  # fmt: skip
    first, second = simulated(job).summary["findings"][:2]
    assert (first["id"], second["id"]) == ("sync_points", "straggler")
    assert second["points"] > first["points"]


def ranked(monkeypatch: pytest.MonkeyPatch, *found: Finding) -> list[str]:
    monkeypatch.setattr(findings, "RULES", tuple((lambda facts, one=one: one) for one in found))
    empty = pa.table({})
    facts = findings.Facts(steps=empty, terms=empty, kernels=empty, idle=empty, exchanges=empty, copies=empty)
    return list(findings.find(facts)["id"].to_pylist())


def test_communication_that_is_left_without_the_straggler_does_not_come_before_it(monkeypatch) -> None:
    """The pace-setting rank's exposed communication is what is left when nobody is waited for: no cause of a wait."""
    late = Finding("straggler", "", 20.0, "", cause=False, explained_by=_MAKES_LATE)
    other = [Finding(id, "", 12.0, "") for id in ("exposed_communication", "memory_bound_elementwise")]
    assert ranked(monkeypatch, *other, late)[0] == "straggler"
    assert ranked(monkeypatch, Finding("data_bound", "", 12.0, ""), late) == ["data_bound", "straggler"]
    assert ranked(monkeypatch, Finding("data_bound", "", 8.0, ""), late) == ["straggler", "data_bound"]


def test_a_slow_link_comes_before_the_communication_that_it_exposes() -> None:
    found = of_scenario("slow-link", 0)
    assert ids(found)[:2] == ["slow_link", "exposed_communication"]
    assert finding(found, "exposed_communication")["points"] > finding(found, "slow_link")["points"]


def test_every_cause_of_a_straggler_is_a_finding_that_exists() -> None:
    named = {rule.__name__ for rule in RULES} | {"expert_imbalance", "sequence_imbalance"}
    assert named >= _MAKES_LATE


def test_on_a_cpu_a_slow_rank_is_named_first_and_no_gpu_is_suspected() -> None:
    found = analyze([ROOT / "sample_traces" / "reference_slow_rank"])
    first = found.summary["findings"][0]
    assert (first["id"], first["evidence"]["rank"]) == ("straggler", 1)
    assert "GPU" not in first["next"]


def reductions(number: int) -> Report:
    """Steps of a rank on a CPU: 50 µs of compute, 100 in the call of a reduction, 40 while gloo moves it, 10 more."""
    rows: list[Row] = []
    for n in range(3):
        first = n * number * 200 * US
        rows.append(step(n, first, first + number * 200 * US))
        for start in range(first, first + number * 200 * US, 200 * US):
            rows += [op(start, start + 50 * US, "aten::mm"), op(start + 50 * US, start + 160 * US, "c10d::allreduce_")]
            rows.append(shapes(span(start + 150 * US, start + 190 * US, "gloo:all_reduce", tid=2), [], dtype="float"))
    return analyze_tables(tables(*rows))


def test_calls_of_many_small_messages_are_their_cost_and_not_a_late_hosts() -> None:
    many, few = reductions(20), reductions(8)
    assert ids(many)[0] == "small_messages"
    assert finding(many, "small_messages")["points"] == pytest.approx(20 + 50)
    assert "4 bytes" in finding(many, "small_messages")["title"]
    assert finding(many, "host_bound")["points"] == pytest.approx(5)
    assert "small_messages" not in ids(few)
    assert finding(few, "host_bound")["points"] == pytest.approx(55)
