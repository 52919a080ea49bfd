"""`perfkit whatif` on traces: what it prints, keeps and refuses, and real jobs played again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfkit.analysis.analyze import examine
from perfkit.analysis.replay.changes import parse_change
from perfkit.analysis.whatif import play, whatif
from perfkit.cli.main import main
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.simulation import simulate, write_traces
from perfkit.store import Store
from tests.analysis.replay_jobs import make_job

HTA = "facebookresearch__HolisticTraceAnalysis/tests/data"
KINETO = "pytorch__kineto/tb_plugin/samples"
STEPPED = (
    "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz",
    "pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer_3",
    "pytorch__torchrec/examples/golden_training/log/resnet18",
    f"{KINETO}/resnet50_num_workers_0", f"{KINETO}/resnet50_num_workers_4", f"{HTA}/nccl_parser_config",
    f"{HTA}/ns_resolution_trace", f"{HTA}/trace_diff/control",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of four ranks, of which rank 1 is slow."""
    path = tmp_path_factory.mktemp("whatif")
    write_traces(simulate(make_job("dp=4", steps=2, faults=(parse_fault("slow-rank:1:1.4x"),))), path)
    return path


def test_the_table_names_the_slow_rank_and_the_error_of_the_replay(folder, capsys):
    assert main(["whatif", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("SYNTHETIC  mean step ")
    assert "replay reproduces the measured step within 0.0 %" in text
    lines = text.split("\n\n")[1].splitlines()
    assert lines[0].split() == ["what", "if", "step", "time", "gain"]
    assert lines[1].startswith(("rank 1 like its peers", "all ranks like their peers"))
    assert "note: `perfkit analyze` says that rank 1 costs " in text  # another question, so another number
    assert "critical path" in text


def test_json_is_one_document_with_the_promised_keys(folder, capsys):
    assert main(["whatif", str(folder), "--healthy", "1", "--network", "2x", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {
        "schema_version", "synthetic", "scope", "measured", "replay", "predictions", "critical_path", "straggling",
        "notes",
    }  # fmt: skip
    (one,) = document["predictions"]
    assert one["name"] == "rank 1 like its peers + network 2x faster"
    assert 0.1 < one["gain"] < 0.5
    assert one["mfu"] is None
    assert sum(row["share"] for row in document["critical_path"]["by_kind"]) == pytest.approx(1)


def test_mfu_moves_with_the_step_time(folder):
    found = whatif(folder, changes=[parse_change("healthy", "1")], peak_flops=1e15, model=_MODEL, tokens_per_step=8192)
    (one,) = found.predictions
    assert found.mfu
    assert one.mfu / found.mfu == pytest.approx(found.step_time_ns / one.step_time_ns, rel=1e-6)


_MODEL = {
    "layers": 4, "hidden": 2048, "heads": 16, "ffn": 8192, "gated": False, "kv_heads": 16, "tied": False,
    "vocab": 32000, "seq_len": 2048,
}  # fmt: skip


def test_what_traced_ranks_show_is_waiting_although_others_have_no_trace(folder):
    examined = examine(folder, replay=True, ranks=[1, 2])
    (note,) = (note for note in play(examined).notes if "cannot be told from moving data" in note)
    members = examined.job.view.members
    waited, unsplit = (sum(members[name].to_pylist()) for name in ("wait_ns", "unsplit_ns"))
    share = 100 * unsplit / (waited + unsplit)
    assert int(note.split()[1]) == pytest.approx(share, abs=1)
    assert share < 95


def test_a_store_keeps_the_critical_path(folder, tmp_path, capsys):
    assert main(["whatif", str(folder), "--store", str(tmp_path / "runs"), "--run", "a"]) == 0
    rows = Store(tmp_path / "runs").read("critical_path", cluster="default", run="a", attempt=0)
    assert len(rows) > 10
    assert main(["whatif", str(folder), "--table", "critical_path", "-o", str(tmp_path / "path.parquet")]) == 0
    written = pq.read_table(tmp_path / "path.parquet")
    assert written["dur_ns"].to_pylist() == rows.sort_by("position")["dur_ns"].to_pylist()
    capsys.readouterr()


def test_bad_questions_end_with_one_line_and_2(folder, tmp_path, capsys):
    for arguments, message in (
        (["--network", "soon"], "is no factor"), (["--family", "gem=2x"], "is no family"),
        (["--healthy", "7"], "no trace of rank 7"), (["--table", "critical_path"], "needs a file"),
        (["--table", "other", "-o", str(tmp_path / "x.csv")], "no table"),
    ):  # fmt: skip
        assert main(["whatif", str(folder), *arguments]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert not captured.out


def test_a_trace_without_device_work_says_what_to_record(traces, capsys):
    assert main(["whatif", str(traces / HTA / "cpu_only")]) == 2
    assert "perfkit:" in capsys.readouterr().err


@pytest.mark.parametrize("name", STEPPED)
def test_real_jobs_are_reproduced_within_2_percent(name, traces):
    found = play(examine(traces / name, replay=True))
    assert abs(found.replay_error) < 1e-4
    assert abs(found.structure_error) < 0.02
    length = found.path["dur_ns"].to_numpy()
    start = found.path["start_ns"].to_numpy()
    assert (start[1:] == (start + length)[:-1]).all()
    assert all(one.step_time_ns is None or one.step_time_ns > 0 for one in found.predictions)


def test_waiting_for_data_is_what_the_slow_loader_loses(traces):
    slow, fast = (
        play(
            examine(traces / KINETO / f"resnet50_num_workers_{n}", replay=True), changes=[parse_change("no-data-wait")]
        )
        for n in (0, 4)
    )
    assert slow.predictions[0].gain > 0.2 > 10 * fast.predictions[0].gain


# ------------------------------------------------------------------ per-op traces of pipelines

PUBLISHED = {
    "AR": {"step_time_ns": 46.33637e9, "ideal_ns": 23.48470e9, "mw": 1.0017, "ms": -0.0012, "cause": "worker"},
    "ST": {"step_time_ns": 2.172697e9, "ideal_ns": 1.843296e9, "mw": 0.0314, "ms": 1.2194, "cause": "stage"},
}
"""result-*.json, mw-*.json and ms-*.json beside the traces."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_straggler_jobs_are_reproduced(name, traces):
    path = traces / "ByteDance-Seed__StragglerAnalysis" / "data" / f"trace-{name}.parquet"
    if not path.exists():
        pytest.skip("not among the real traces here")
    found = whatif(path)
    assert found.straggling is not None
    told = found.straggling.as_json()
    assert told["cause"] == PUBLISHED[name]["cause"]
    for key in ("step_time_ns", "ideal_ns"):
        assert told[key] == pytest.approx(PUBLISHED[name][key], rel=0.001)
    for key in ("mw", "ms"):
        assert told[key] == pytest.approx(PUBLISHED[name][key], abs=0.005)
    assert abs(found.replay_error) < 1e-4


def _op_trace(path: Path, *, slow_stage: int | None = None, slow_rank: int | None = None, stages: int = 2) -> Path:
    """Write a pipeline of two replicas, four micro-batches each, one step, with a stage or a rank twice as slow."""
    rows: list[dict[str, object]] = []
    for dp in range(2):
        for stage in range(stages):
            rank = dp * stages + stage
            factor = 2.0 if slow_stage == stage or slow_rank == rank else 1.0
            for op, count, length in (
                ("params-all-gather", 1, 0.01), ("forward-compute", 4, 0.1), ("backward-compute", 4, 0.2),
                ("gc", 1, 0.0), ("layernorm-grads-all-reduce", 1, 0.001), ("grads-reduce-scatter", 1, 0.01),
                ("optimizer-clip-main-grad", 1, 0.001), ("optimizer", 1, 0.02),
                *((("forward-recv", 4, 0.001), ("backward-send", 4, 0.001)) if stage else ()),
                *((("forward-send", 4, 0.001), ("backward-recv", 4, 0.001)) if stage < stages - 1 else ()),
                *((("embedding-grads-all-reduce", 1, 0.002),) if stage in (0, stages - 1) else ()),
            ):  # fmt: skip
                for seq in range(count):
                    passes = op.endswith("compute")
                    rows.append(
                        {
                            "dp_rank": dp, "stage": stage, "rank": rank, "step": 3, "optype": op,
                            "start_ts": _when(op, seq), "duration": length * (factor if passes else 1.0), "seq_id": seq,
                            "mc": 0, "mb_id": seq if passes else -1, "gmc": stage,
                        }
                    )  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _when(op: str, seq: int) -> float:
    """Return starts that only say in which order things come: all forwards, then all backwards, then the rest."""
    kinds = ("params", "forward", "backward", "gc", "layernorm", "embedding", "grads", "optimizer-clip", "optimizer")
    place = next(i for i, kind in enumerate(kinds) if op.startswith(kind))
    return 10.0 * place + seq + (0.5 if op.endswith("send") else -0.5 if op.endswith("recv") else 0.0)


def test_a_slow_stage_and_a_slow_worker_are_told_apart(tmp_path):
    stage = whatif(_op_trace(tmp_path / "stage.parquet", slow_stage=1)).straggling
    worker = whatif(_op_trace(tmp_path / "worker.parquet", slow_rank=2)).straggling
    healthy = whatif(_op_trace(tmp_path / "healthy.parquet")).straggling
    assert stage.cause == "stage"
    assert (worker.cause, worker.worst_ranks) == ("worker", [2])
    assert healthy.slowdown == pytest.approx(1.0)
    assert healthy.mw is None


def test_a_healthy_worker_gives_the_step_of_the_job_without_the_fault(tmp_path):
    slow = whatif(_op_trace(tmp_path / "a.parquet", slow_rank=2), changes=[parse_change("healthy", "2")])
    healthy = whatif(_op_trace(tmp_path / "b.parquet"))
    predicted = slow.predictions[0].gain
    assert predicted is not None
    assert (1 - predicted) * slow.straggling.step_time_ns == pytest.approx(healthy.straggling.step_time_ns, rel=1e-6)


def test_an_op_trace_prints_its_verdict(tmp_path, capsys):
    assert main(["whatif", str(_op_trace(tmp_path / "a.parquet", slow_rank=2))]) == 0
    text = capsys.readouterr().out
    assert "caused by worker (Mw" in text
    assert main(["whatif", str(tmp_path / "a.parquet"), "--no-data-wait"]) == 0
    assert "cannot be told" in capsys.readouterr().out


def test_a_damaged_op_trace_is_one_clear_line(tmp_path, capsys):
    path = _op_trace(tmp_path / "a.parquet")
    table = pq.read_table(path)
    pq.write_table(table.set_column(4, "optype", pa.array(["nap"] * len(table))), path)
    assert main(["whatif", str(path)]) == 2
    assert "unknown kinds: nap" in capsys.readouterr().err
    holes = pa.array(np.zeros(len(table)), mask=np.arange(len(table)) == 0)
    pq.write_table(table.set_column(5, "start_ts", holes), path)
    assert main(["whatif", str(path)]) == 2
    assert "nulls in start_ts" in capsys.readouterr().err


def test_an_op_trace_is_a_source_like_others(tmp_path):
    report = examine(_op_trace(tmp_path / "a.parquet", slow_rank=2)).report
    assert report.summary["scope"]["ranks_traced"] == 4
    busy = {row["rank"]: row["compute_ns"] for row in report.summary["ranks"]}
    assert busy == {0: 1.22e9, 1: 1.22e9, 2: 2.42e9, 3: 1.22e9}
