"""What perfkit says about traces of real machines, against a plain recomputation and against what is known."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest

from perfkit.analysis.analyze import analyze
from perfkit.errors import PerfkitError
from perfkit.report.report import Report

HTA = "facebookresearch__HolisticTraceAnalysis/tests/data"
KINETO = "pytorch__kineto/tb_plugin/samples"
SMALL_BYTES = 200_000
CAUSES = ("host_late", "launch", "dependency", "unattributed")
PARTS = ("window_ns", "compute_ns", "exposed_comm_ns", "exposed_memcpy_ns", "idle_ns")


def kineto_files(folder: Path) -> list[Path]:
    others = ("ByteDance", "Primus", "Megatron", "linear_et", "same_priority_streams")
    files = [p for p in sorted(folder.rglob("*")) if p.name.endswith((".json", ".json.gz"))]
    return [p for p in files if not any(other in str(p) for other in others)]


def difference_from_plain(path: Path) -> dict[str, tuple[int, int]] | None:
    """Return parts that differ; None for a trace without GPU work."""
    intervals = plain.device_intervals(path)
    if not intervals:
        return None
    expected = plain.partition(intervals)
    got = analyze(path, window="trace").summary["ranks"]
    assert len(got) == 1
    return {name: (got[0][name], expected[name]) for name in PARTS if got[0][name] != expected[name]}


def test_small_gpu_traces_equal_the_plain_recomputation_to_the_ns(traces: Path) -> None:
    files = [p for p in kineto_files(traces) if p.stat().st_size < SMALL_BYTES]
    differences = {p.name: difference_from_plain(p) for p in files}
    assert sum(d is not None for d in differences.values()) >= 12
    assert not {name: d for name, d in differences.items() if d}


@pytest.mark.slow
def test_every_gpu_trace_equals_the_plain_recomputation_to_the_ns(traces: Path) -> None:
    differences = {str(p): difference_from_plain(p) for p in kineto_files(traces)}
    assert sum(d is not None for d in differences.values()) >= 35
    assert not {name: d for name, d in differences.items() if d}


WITH_STEPS = [
    *(f"{HTA}/{name}" for name in ("nccl_parser_config", "ns_resolution_trace", "negative_queue_length_values_check")),
    f"{HTA}/trace_diff/control", f"{KINETO}/resnet50_num_workers_0", f"{KINETO}/resnet50_num_workers_4",
    "pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer_3",
    "KellerJordan__modded-nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook",
]  # fmt: skip


@pytest.mark.parametrize(
    "folder", [pytest.param(f, marks=[] if "nccl_parser" in f else pytest.mark.slow) for f in WITH_STEPS]
)
def test_steps_and_idle_causes_equal_the_plain_recomputation_to_the_ns(traces: Path, folder: str) -> None:
    files = kineto_files(traces / folder)
    assert files
    for path in files:
        expected, causes = plain.steps_and_causes(path)
        found = analyze(path)
        assert found.summary["quality"]["steps_source"] == "ProfilerStep"
        rows = [{name: row[name] for name in expected[0]} for row in found.tables["steps"].to_pylist()]
        assert rows == expected
        idle = found.summary["idle"]
        assert {c: idle[f"{c}_ns"] for c in CAUSES if idle[f"{c}_ns"]} == causes


def analyze_or_explain(path: Path, window: str) -> Report | None:
    """Return the analysis; None if the error says what is missing."""
    try:
        return analyze(path, window=window)
    except PerfkitError as error:
        if "no device work and no framework ops" not in str(error):
            raise
        return None


def check_sums(found: Report, path: Path) -> None:
    summary = found.summary
    for row in [summary["totals"], *summary["ranks"], *summary["steps"]]:
        assert row["window_ns"] == sum(row[name] for name in PARTS[1:]), path
        assert min(row[name] for name in PARTS) >= 0, path
    causes = sum(summary["idle"][f"{c}_ns"] for c in CAUSES)
    assert causes == summary["totals"]["idle_ns"], path
    assert sum(c["ns"] for c in summary["idle"]["culprit_kinds"]) == summary["idle"]["host_late_ns"], path


def test_every_small_file_ends_in_a_result_whose_parts_sum_or_in_a_clear_error(traces: Path) -> None:
    for path in kineto_files(traces):
        if path.stat().st_size < SMALL_BYTES:
            for window in ("step", "trace"):
                if found := analyze_or_explain(path, window):
                    check_sums(found, path)


@pytest.mark.slow
def test_every_file_ends_in_a_result_whose_parts_sum_or_in_a_clear_error(traces: Path) -> None:
    unknown = compute = 0
    for path in kineto_files(traces):
        for window in ("step", "trace"):
            if found := analyze_or_explain(path, window):
                check_sums(found, path)
                unknown += found.summary["quality"]["unknown_kernel_ns"] or 0
                compute += found.summary["totals"]["compute_ns"]
    assert unknown < 0.02 * compute


def test_a_trace_that_is_not_json_is_a_clear_error(traces: Path) -> None:
    with pytest.raises(PerfkitError, match="not JSON"):
        analyze(traces / "anupambhatnagar__GPUPuzzlers/streams/same_priority_streams.json.gz")


def test_one_bad_file_does_not_hide_the_others(traces: Path) -> None:
    summary = analyze(traces / "anupambhatnagar__GPUPuzzlers/streams").summary
    assert len(summary["steps"]) == 2  # two files of one rank: two windows
    assert [r["path"].rsplit("/", 1)[-1] for r in summary["quality"]["rejected"]] == ["same_priority_streams.json.gz"]


def share(analysis: Report, ns: int) -> float:
    return ns / analysis.summary["totals"]["window_ns"]


def kinds(analysis: Report) -> dict[str, int]:
    return {c["kind"]: c["ns"] for c in analysis.summary["idle"]["culprit_kinds"]}


def test_resnet50_without_workers_waits_for_data_and_with_four_it_does_not(traces: Path) -> None:
    without = analyze(traces / KINETO / "resnet50_num_workers_0")
    with_four = analyze(traces / KINETO / "resnet50_num_workers_4")
    assert share(without, without.summary["io"]["data_wait_ns"]) > 0.2
    assert share(with_four, with_four.summary["io"]["data_wait_ns"]) < 0.01
    assert without.summary["idle"]["culprits"][0]["kind"] == "data_loader"
    assert without.summary["idle"]["culprits"][0]["where"].endswith("resnet50_profiler_api.py:42 <module>")


def test_the_h100_qwen_trace_shows_its_stream_synchronize(traces: Path) -> None:
    found = analyze(traces / "AMD-AGI__TraceLens/tests/traces/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    syncs = [c for c in found.summary["idle"]["culprits"] if c["kind"] == "sync"]
    assert syncs
    assert all("cudaStreamSynchronize" in c["where"] for c in syncs)


@pytest.mark.parametrize("window", ["step", "trace"])
def test_the_torchrec_trace_loses_most_host_time_to_the_allocator(traces: Path, window: str) -> None:
    found = analyze(traces / "pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer_3", window=window)
    assert found.summary["quality"]["ranks"] == [0, 1, 2, 3]
    assert found.summary["idle"]["culprit_kinds"][0]["kind"] == "allocator"
    assert {c["where"].split()[0] for c in found.summary["idle"]["culprits"] if c["kind"] == "allocator"} == {
        "cudaMalloc", "cudaFree"}  # fmt: skip


def test_a_puzzle_without_a_copy_to_the_host_has_no_sync_culprit(traces: Path) -> None:
    found = analyze(traces / "anupambhatnagar__GPUPuzzlers/d2h_sync/addition_second_sum.json.gz")
    assert "sync" not in kinds(found)
    assert found.summary["idle"]["culprits"][0]["where"].endswith("second_sum.py:4 second_sum")


def test_kernels_of_a_cuda_graph_are_attributed_through_its_launch(traces: Path) -> None:
    found = analyze(traces / "anupambhatnagar__GPUPuzzlers/launch_queue/files/cudagraph_mwe.json.gz").summary
    assert found["quality"]["launches_missing"] == 0
    assert found["quality"]["graph_coverage"] > 0.8
    assert found["idle"]["unattributed_ns"] == 0


def test_a_rank_without_a_device_has_gloo_work_as_communication(traces: Path) -> None:
    found = analyze(traces / HTA / "cpu_only").summary
    assert found["ranks"][0]["rank"] == 34
    assert found["scope"]["world_size"] == 300
    assert found["totals"]["exposed_comm_ns"] > 0.8 * found["totals"]["window_ns"]
    assert found["quality"]["launches_missing"] is None


def test_a_trace_with_runtime_calls_and_no_device_work_says_so(traces: Path) -> None:
    found = analyze(traces / HTA / "cupti_profiler").summary
    assert "no device work" in found["quality"]["notes"][0]


def test_layers_that_repeat_are_not_taken_for_steps(traces: Path) -> None:
    inference = traces / "AMD-AGI__TraceLens/tests/traces/inference/vllm_decode_full/graph_execution.json.gz"
    assert analyze(inference).summary["quality"]["steps_source"] == "trace"
    training = traces / "facebookresearch__param/et_replay/tests/inputs/linear_kineto.json.gz"
    assert analyze(training).summary["quality"]["steps_source"] == "periodicity"


def test_an_nsys_report_is_analyzed_like_a_kineto_trace(traces: Path) -> None:
    found = analyze(traces / "GindaChen__nsys-ai/tests/fixtures/mfu_2gpu_before.sqlite")
    check_sums(found, Path("mfu_2gpu_before.sqlite"))
    assert len(found.summary["ranks"]) == 2
    assert found.summary["totals"]["exposed_comm_ns"] > 0
    assert found.summary["idle"]["host_late_ns"] > 0


def test_an_archive_of_eight_ranks_is_one_run(traces: Path) -> None:
    found = analyze(traces / "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz").summary
    assert found["quality"]["ranks"] == list(range(8))
    assert found["scope"] == {"ranks_traced": 8, "world_size": 8, "steps": [10, 10]}


def test_host_times_of_a_gpu_job_are_not_measured_against_the_gpus_peak(traces: Path) -> None:
    found = analyze(traces / HTA / "distributed_info_unavailable").summary
    assert found["hardware"]["peak_flops"] == 19.5e12
    assert found["mfu"]["hfu"] is None
    assert found["mfu"]["ladder_start"] == "time"
    assert any("ProfilerActivity.CUDA" in message for message in found["mfu"]["messages"])
    assert "gemm_precision" not in {finding["id"] for finding in found["findings"]}


def test_a_board_that_may_be_one_of_two_with_different_peaks_is_said_to_have_none(traces: Path) -> None:
    found = analyze(traces / KINETO / "resnet50_num_workers_4").summary
    assert found["hardware"]["peak_flops"] is None
    assert any("V100-SXM2 or V100-PCIe" in message for message in found["mfu"]["messages"])
