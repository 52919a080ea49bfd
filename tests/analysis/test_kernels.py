from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rows import Row, call, events, frame, kernel, nccl, op, span, step

from perfkit.analysis.analyze import analyze_tables
from perfkit.analysis.intervals import first_owner, union
from perfkit.analysis.kernels import with_roofline
from perfkit.report.report import Report
from perfkit.schema import KERNELS, OPS, table_from_rows
from perfkit.simulate import Job, Mesh, parse_fault, simulate
from perfkit.simulate.program import TASK_END, TASK_START

Shape = list[int]


def shapes(row: Row, *dims: Shape, dtype: str = "c10::BFloat16", **more: Any) -> Row:
    """Give an op its recorded shapes; `more` are columns of the `ops` table."""
    return {**row, "_ops": {"input_dims": json.dumps(dims), "input_types": json.dumps([dtype] * len(dims)), **more}}


def sequence(row: Row, number: int, forward_thread: int = 0) -> Row:
    return {**row, "_ops": {"sequence_number": number, "fwd_thread_id": forward_thread}}


def tables(*rows: Row) -> dict[str, pa.Table]:
    ops = [{"rank": 0, "segment": 0, "event_id": i, **row["_ops"]} for i, row in enumerate(rows) if "_ops" in row]
    plain = [{k: v for k, v in row.items() if k != "_ops"} for row in rows]
    return {"events": events(*plain), "ops": table_from_rows(OPS, ops)}


def analyzed(*rows: Row, **options: Any) -> Report:
    return analyze_tables(tables(*rows), **options)


def kernels(*rows: Row, **options: Any) -> list[dict[str, Any]]:
    return sorted(analyzed(*rows, **options).tables["kernels"].to_pylist(), key=lambda r: (r["name"], r["op"] or ""))


def test_a_kernel_belongs_to_the_op_around_its_launch() -> None:
    (row,) = kernels(op(0, 50, "aten::linear"), op(5, 40, "aten::addmm"), call(10, 12, 1), kernel(20, 90, 1))
    assert (row["op"], row["phase"], row["count"], row["total_ns"]) == ("aten::addmm", "forward", 1, 70)


def test_without_a_launch_call_the_external_id_names_the_op() -> None:
    (row,) = kernels({**op(0, 50, "aten::mm"), "external_id": 7}, {**kernel(60, 90), "external_id": 7})
    assert row["op"] == "aten::mm"


def test_a_kernel_that_nobody_launched_has_no_op_and_no_phase() -> None:
    (row,) = kernels(op(0, 50, "aten::mm"), kernel(60, 90))
    assert (row["op"], row["phase"], row["flops"]) == (None, None, None)


def test_the_module_is_the_path_of_python_frames_and_backward_has_that_of_its_forward() -> None:
    rows = kernels(
        frame(0, 100, "nn.Module: Block_3"), frame(5, 60, "nn.Module: Linear_0"),
        sequence(op(10, 50, "aten::linear"), 4), call(12, 13, 1), kernel(20, 90, 1, name="forward_gemm"),
        sequence(op(200, 300, "autograd::engine::evaluate_function: AddmmBackward0", tid=2), 4, 1),
        op(210, 290, "aten::mm", tid=2), call(220, 221, 2, tid=2), kernel(230, 260, 2, name="backward_gemm"),
    )  # fmt: skip
    assert [(r["name"], r["module"], r["phase"]) for r in rows] == [
        ("backward_gemm", "Block.Linear", "backward"), ("forward_gemm", "Block.Linear", "forward")]  # fmt: skip


# ------------------------------------------------------------------ phases


def phase_of(*around: Row) -> str | None:
    """Phase of a kernel that is launched at 50 on thread 1."""
    (row,) = kernels(*around, op(40, 60, "aten::gelu"), call(50, 51, 1), kernel(70, 80, 1))
    phase: str | None = row["phase"]
    return phase


NODE = "autograd::engine::evaluate_function: GeluBackward0"


def test_phases_follow_from_what_encloses_the_op() -> None:
    assert phase_of() == "forward"
    assert phase_of(sequence(op(0, 100, NODE), 1, 1)) == "backward"
    assert phase_of(op(0, 100, "CompiledFunctionBackward")) == "backward"
    assert phase_of(span(0, 100, "Optimizer.step#AdamW.step")) == "optimizer"


def test_an_op_that_runs_with_gradients_inside_backward_is_recomputed() -> None:
    # as torch 2.13 records checkpoint(use_reentrant=False): a forward op, with a number of its own
    assert phase_of(sequence(op(0, 100, NODE), 105, 1), sequence(op(30, 65, "aten::linear"), 107, 0)) == "recompute"


def test_reentrant_checkpoints_are_recomputed_and_the_backward_inside_them_is_not() -> None:
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    checkpoint = [op(0, 100, node), op(1, 99, "CheckpointFunctionBackward")]
    assert phase_of(*checkpoint) == "recompute"
    assert phase_of(*checkpoint, sequence(op(20, 90, NODE), 18, 1)) == "backward"


def test_a_frame_of_the_checkpoint_module_says_recompute() -> None:
    assert phase_of(op(0, 100, NODE), frame(10, 90, "torch/utils/checkpoint.py(1657): recompute_fn")) == "recompute"
    assert phase_of(frame(0, 100, "torch/utils/checkpoint.py(354): checkpoint")) == "forward"


def test_recompute_of_a_simulated_job_is_found_to_the_ns() -> None:
    job = Job(mesh=Mesh(), steps=2, layers=2, hidden=512, ffn=2048, seq_len=512, faults=(parse_fault("recompute"),))
    sim = simulate(job, flows=False)
    again = sum(
        int(sim.times[0][one.point + TASK_END, 0] - sim.times[0][one.point + TASK_START, 0])
        for one in sim.programs[0].instructions
        if one.task is not None and one.kind != "ghost" and one.task.category == "kernel" and not one.task.model_flops
    )
    found = analyze_tables(sim.tables(0)).tables["kernels"].to_pylist()
    measured = sum(r["total_ns"] for r in found if r["phase"] == "recompute")
    assert measured == pytest.approx(again, rel=1e-4)  # the host's clock drifts
    assert {r["phase"] for r in found} == {"forward", "backward", "optimizer", "recompute"}


# ------------------------------------------------------------------ FLOPs


def test_flops_and_bytes_come_from_the_innermost_op_that_knows_them_once() -> None:
    rows = kernels(
        shapes(op(0, 50, "aten::linear"), [64, 128], [32, 128]), shapes(op(5, 40, "aten::mm"), [64, 128], [128, 32]),
        call(10, 12, 1), kernel(20, 90, 1),
    )  # fmt: skip
    assert [(r["op"], r["flops"], r["dtype"]) for r in rows] == [("aten::mm", 2 * 64 * 128 * 32, "bf16")]
    assert rows[0]["bytes"] == 2 * (64 * 128 + 128 * 32 + 64 * 32)
    assert json.loads(rows[0]["input_dims"]) == [[64, 128], [128, 32]]


def test_an_op_shares_its_flops_among_its_matrix_kernels_by_duration() -> None:
    rows = kernels(
        shapes(op(0, 50, "aten::mm"), [64, 128], [128, 32]), call(10, 11, 1), call(12, 13, 2), call(14, 15, 3),
        kernel(20, 50, 1, name="gemm_a"), kernel(50, 60, 2, name="gemm_splitkreduce"),
        kernel(60, 65, 3, name="void at::native::vectorized_elementwise_kernel<4, FillFunctor>"),
    )  # fmt: skip
    whole = 2 * 64 * 128 * 32
    assert [r["flops"] for r in rows] == [whole * 3 / 4, whole / 4, None]


def test_a_kernel_whose_op_has_no_formula_looks_further_up() -> None:
    causal = json.dumps(["", "", "", "", "0.", "True", ""])
    (row,) = kernels(
        shapes(op(0, 60, "aten::scaled_dot_product_attention"), [1, 2, 64, 32], [1, 2, 64, 32], [1, 2, 64, 32],
               concrete_inputs=causal),
        op(5, 50, "aten::_flash_attention_forward"), call(10, 11, 1), kernel(20, 90, 1, name="flash_fwd_kernel"),
    )  # fmt: skip
    assert (row["op"], row["family"]) == ("aten::_flash_attention_forward", "attention")
    assert row["flops"] == 2 * (64 * 65 // 2) * 4 * 32


def test_fp32_products_on_tensor_cores_are_tf32() -> None:
    def dtype(name: str) -> str:
        mm = shapes(op(0, 50, "aten::mm"), [64, 128], [128, 32], dtype="float")
        return str(kernels(mm, call(10, 11, 1), kernel(20, 50, 1, name=name))[0]["dtype"])

    assert dtype("ampere_sgemm_128x64_tn") == "fp32"
    assert dtype("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128") == "tf32"


def test_a_kernel_that_crosses_a_window_is_cut_with_its_flops() -> None:
    rows: list[Row] = []
    for n in range(2):
        at = 100 * n
        rows += [
            step(n, at, at + 100), shapes(op(at + 1, at + 90, "aten::mm"), [64, 128], [128, 32]),
            call(at + 5, at + 6, n + 1), kernel(at + 10, at + 110, n + 1),
        ]  # fmt: skip
    everything, first = analyzed(*rows), analyzed(*rows, last_step=1)
    whole = 2 * 64 * 128 * 32
    assert [r["flops"] for r in everything.tables["kernels"].to_pylist()] == [2 * whole]
    assert [(r["total_ns"], r["flops"]) for r in first.tables["kernels"].to_pylist()] == [(100, whole)]


def test_the_flops_of_a_simulated_job_are_those_that_it_executed() -> None:
    job = Job(mesh=Mesh(dp=2), steps=2, layers=2, hidden=512, ffn=2048, seq_len=512)
    sim = simulate(job, flows=False)
    launched = [one.task for one in sim.programs[0].instructions if one.task is not None and one.kind != "ghost"]
    executed = [sum(task.flops for task in launched if ("flash" in task.name) == flash) for flash in (False, True)]
    rows = analyze_tables(sim.tables(1)).tables["kernels"].to_pylist()
    assert sum(r["flops"] for r in rows if r["family"] == "gemm") == executed[0]
    # the simulator halves the square, a causal mask keeps its diagonal
    attention = sum(r["flops"] for r in rows if r["family"] == "attention")
    assert attention == executed[1] * (job.seq_len + 1) // job.seq_len


# ------------------------------------------------------------------ one owner

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda t: (t[0], t[0] + t[1])), max_size=20)


@given(INTERVALS)
def test_owned_stretches_are_the_union_and_do_not_overlap(intervals: list[tuple[int, int]]) -> None:
    start, end = (np.array([i[k] for i in intervals], np.int64) for k in (0, 1))
    own_start, own_end = first_owner(start, end)
    assert (own_start >= start).all()
    assert (own_end <= np.maximum(end, own_start)).all()
    assert int((own_end - own_start).sum()) == union(start, end).total == union(own_start, own_end).total


def test_where_kernels_overlap_the_first_keeps_the_time() -> None:
    # first  |##########|
    # second      |##########|
    rows = kernels(kernel(0, 100, name="first_gemm"), kernel(50, 150, name="second_gemm"), nccl(120, 170))
    assert [(r["name"], r["total_ns"], r["owned_ns"]) for r in rows] == [
        ("first_gemm", 100, 100), ("second_gemm", 100, 50)]  # fmt: skip


def test_a_rank_without_a_device_has_the_own_time_of_its_ops() -> None:
    found = analyzed(
        step(0, 0, 200), shapes(op(10, 110, "aten::linear"), [64, 128], [32, 128], dtype="float"),
        shapes(op(20, 100, "aten::addmm"), [32], [64, 128], [128, 32], dtype="float"), op(120, 150, "aten::relu"),
    )  # fmt: skip
    rows = {r["op"]: r for r in found.tables["kernels"].to_pylist()}
    assert {name: r["owned_ns"] for name, r in rows.items()} == {
        "aten::linear": 20,
        "aten::addmm": 80,
        "aten::relu": 30,
    }
    assert rows["aten::addmm"]["flops"] == 2 * 64 * 128 * 32
    assert rows["aten::linear"]["flops"] is None
    assert rows["aten::linear"]["count"] == 1  # in two stretches
    assert sum(r["owned_ns"] for r in rows.values()) == found.summary["totals"]["compute_ns"]


def test_without_shapes_an_op_is_known_by_its_name() -> None:
    found = analyzed(
        step(0, 0, 200), op(10, 110, "aten::addmm"), op(120, 150, "aten::sum"), op(150, 160, "aten::t"),
        op(160, 165, "mine::thing"),
    )  # fmt: skip
    families = {r["op"]: r["family"] for r in found.tables["kernels"].to_pylist()}
    assert families == {"aten::addmm": "gemm", "aten::sum": "reduction", "aten::t": "other", "mine::thing": "unknown"}


def test_a_convolution_of_unknown_cost_is_one_and_a_wrapper_of_known_cost_is_not() -> None:
    found = analyzed(
        step(0, 0, 200), shapes(op(10, 60, "aten::conv2d"), [1, 2, 8, 8]), shapes(op(70, 170, "aten::linear"),
        [64, 128], [32, 128]), shapes(op(80, 160, "aten::addmm"), [32], [64, 128], [128, 32]),
    )  # fmt: skip
    families = {r["op"]: r["family"] for r in found.tables["kernels"].to_pylist()}
    assert families == {"aten::conv2d": "conv", "aten::linear": "other", "aten::addmm": "gemm"}


# ------------------------------------------------------------------ roofline


def roofline(
    flops: float | None, moved: float | None, total: int, dtype: str | None = "bf16"
) -> tuple[int | None, str]:
    row = {"rank": 0, "name": "k", "count": 1, "total_ns": total, "flops": flops, "bytes": moved, "dtype": dtype}
    (found,) = with_roofline(table_from_rows(KERNELS, [row]), {"bf16": 1e12}, 1e12).to_pylist()
    return found["waste_ns"], found["bound"]


def test_waste_is_the_time_beyond_the_roofline() -> None:
    assert roofline(1e6, 1e3, 3000) == (2000, "compute")
    assert roofline(1e3, 2e6, 3000) == (1000, "memory")
    assert roofline(0.0, 2e6, 3000, None) == (1000, "memory")


def test_waste_is_unknown_where_flops_bytes_or_the_peak_are_and_never_negative() -> None:
    assert roofline(None, 1e3, 3000) == (None, "unknown")
    assert roofline(1e6, None, 3000) == (None, "unknown")
    assert roofline(1e6, 1e3, 3000, "fp8") == (None, "unknown")
    assert roofline(1e7, 1e3, 3000) == (0, "compute")
