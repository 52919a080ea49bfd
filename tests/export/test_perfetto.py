"""The exported trace against torch.profiler's own validator, and against the recording that it came from."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

import perfkit
from perfkit.errors import UsageError
from perfkit.export.perfetto import write_perfetto
from perfkit.simulate import Job, Mesh, simulate
from perfkit.simulate.hardware import H100
from perfkit.simulate.simulation import write_traces


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Traces of four ranks on two hosts whose clocks differ by milliseconds."""
    place = tmp_path_factory.mktemp("traces")
    job = Job(
        mesh=Mesh(dp=4), steps=4, layers=2, hidden=512, ffn=2048, head_dim=64, vocab=4096, seq_len=512,
        micro_batches=2, hardware=replace(H100, gpus_per_host=2), seed=5,
    )  # fmt: skip
    write_traces(simulate(job), place)
    return place


@pytest.fixture(scope="module")
def document(folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("out") / "all.json"
    write_perfetto(target, folder)
    return json.loads(target.read_text())


def violations(path):
    validator = pytest.importorskip("torch.profiler._trace_validator", reason="needs torch 2.13")
    return [str(violation) for violation in validator.validate_trace(str(path))[1]]


def exported(source, tmp_path, **options):
    target = tmp_path / "out.json"
    written = write_perfetto(target, source, **options)
    return json.loads(target.read_text()), written, target


def slices(document, pid=None, tid=None):
    return [
        event
        for event in document["traceEvents"]
        if event.get("cat") == "perfkit" and pid in (None, event["pid"]) and tid in (None, event["tid"])
    ]


def names_of(document, key):
    return {
        (event["pid"], event["tid"]) if key == "thread_name" else event["pid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == key
    }


def test_a_job_of_four_ranks_passes_torchs_validator(folder, tmp_path):
    _, written, target = exported(folder, tmp_path)
    assert violations(target) == []
    assert (written.ranks, written.aligned) == ([0, 1, 2, 3], True)


def test_ranks_do_not_share_processes_devices_or_ids(document):
    processes = names_of(document, "process_name")
    rank_of = {pid: name.split(" · ")[0] for pid, name in processes.items()}
    owners = defaultdict(set)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["cat"] != "perfkit":
            for key in ("External id", "correlation", "device"):
                if event["args"].get(key):
                    owners[key, event["args"][key]].add(rank_of[event["pid"]])
    assert len(set(rank_of.values())) == 4
    assert all(len(ranks) == 1 for ranks in owners.values())


def test_collectives_end_together_on_aligned_clocks(document):
    """Recorded, the two hosts' clocks are more than half a millisecond apart."""
    ends = defaultdict(list)
    for event in slices(document):
        if event["name"].startswith("transfer: all_reduce"):
            ends[event["args"]["instance"]].append(event["ts"] + event["dur"])
    apart = [max(times) - min(times) for times in ends.values() if len(times) == 4]
    assert len(apart) >= 6
    assert max(apart) < 50  # µs


def test_waits_name_the_rank_that_was_waited_for(document):
    names = {event["name"].split(":")[0] for event in slices(document)}
    assert any(name.startswith("wait for rank ") for name in names)


def test_the_partition_covers_every_nanosecond_of_the_windows_once(folder, document):
    report = perfkit.analyze(folder)
    tracks = names_of(document, "thread_name")
    spent = Counter()
    for (pid, tid), name in tracks.items():
        if name == "where the time went":
            mine = sorted(
                (round(e["ts"] * 1000), round(e["dur"] * 1000), e["name"]) for e in slices(document, pid, tid)
            )
            assert all(a[0] + a[1] <= b[0] + 1 for a, b in pairwise(mine))  # drift rounds
            for _, length, what in mine:
                spent[what.split(":")[0]] += length
    totals = report.document["totals"]
    assert spent["compute"] == totals["compute_ns"]
    assert spent["exposed copy"] == totals["exposed_memcpy_ns"]
    assert spent["idle"] == totals["idle_ns"]
    assert sum(spent.values()) == totals["window_ns"]


def test_one_rank_reads_back_as_it_was_recorded(folder, tmp_path):
    source = min(folder.glob("*.json.gz"))
    _, _, target = exported(source, tmp_path)
    before, after = perfkit.analyze(source), perfkit.analyze(target)
    assert after.tables["attribution"].equals(before.tables["attribution"])
    assert after.tables["kernels"].equals(before.tables["kernels"])
    assert after.document["idle"] == before.document["idle"]


def test_chosen_steps_come_with_the_launches_of_their_kernels(folder, tmp_path):
    first = perfkit.analyze(folder).document["scope"]["steps"][0]
    found, written, target = exported(folder, tmp_path, ranks=[1, 3], steps=(first + 1, first + 2))
    assert (written.ranks, written.steps) == ([1, 3], [first + 1])
    assert {e["name"] for e in slices(found) if e["name"].startswith("step ")} == {f"step {first + 1}"}
    launches = {e["args"].get("correlation") for e in found["traceEvents"] if e.get("cat") == "cuda_runtime"}
    kernels = [e["args"]["correlation"] for e in found["traceEvents"] if e.get("cat") == "kernel"]
    assert kernels
    assert set(kernels) <= launches
    assert violations(target) == []


def test_a_window_in_time_holds_what_overlaps_it(folder, tmp_path):
    everything, _, _ = exported(folder, tmp_path)
    base = everything["baseTimeNanoseconds"]
    kernels = sorted(e["ts"] for e in everything["traceEvents"] if e.get("cat") == "kernel")
    low, high = base + round(kernels[20] * 1000), base + round(kernels[60] * 1000)
    found, _, _ = exported(folder, tmp_path, window_ns=(low, high))
    there = [e for e in found["traceEvents"] if e.get("cat") == "kernel"]
    assert all(e["ts"] * 1000 + base < high + 1 and (e["ts"] + e["dur"]) * 1000 + base > low - 1 for e in there)
    assert 40 <= len(there) < len(kernels)


def test_a_run_in_a_store_is_exported_and_left_as_it_is(folder, tmp_path):
    perfkit.ingest(folder, store=tmp_path / "runs", run="job")
    before = sorted(str(path) for path in (tmp_path / "runs").rglob("*"))
    out = io.BytesIO()
    written = write_perfetto(out, "job", store=tmp_path / "runs", ranks=[2])
    assert json.loads(out.getvalue())["distributedInfo"]["rank"] == 2
    assert (written.run, written.ranks, written.bytes) == ("default/job/0", [2], len(out.getvalue()))
    assert sorted(str(path) for path in (tmp_path / "runs").rglob("*")) == before


def test_a_name_that_ends_in_gz_is_packed_and_simulated_runs_say_so(folder, tmp_path):
    write_perfetto(tmp_path / "a.json.gz", folder, ranks=[0], tracks=False)
    found = json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))
    assert found["perfkit_synthetic"] is True
    assert slices(found) == []


def kernel(name, ts, *, external, correlation, cat="kernel", **args):
    place = {"pid": 0, "tid": 7} if cat in ("kernel", "cuda_sync") else {"pid": 99, "tid": 99}
    where = {"device": 0, "stream": 7} if cat in ("kernel", "cuda_sync") else {}
    ids = {"External id": external, "correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 5, **place, "args": {**ids, **where, **args}}


def test_what_the_validator_objects_to_in_a_recording_is_left_out_and_counted(tmp_path):
    wait = {"cuda_sync_kind": "Stream Wait Event", "wait_on_cuda_event_record_corr_id": 77}
    events = [
        kernel("cudaLaunchKernel", 100, external=1, correlation=11, cat="cuda_runtime"),
        kernel("early", 90, external=1, correlation=11),
        kernel("cudaLaunchKernel", 110, external=2, correlation=12, cat="cuda_runtime"),
        kernel("fine", 120, external=2, correlation=12),
        kernel("Stream Wait Event", 130, external=3, correlation=13, cat="cuda_sync", **wait),
        kernel("Stream Sync", 122, external=4, correlation=14, cat="cuda_sync", cuda_sync_kind="Stream Sync"),
        kernel("record_param_comms", 140, external=5, correlation=None, cat="cpu_op"),
        *(
            kernel(f"autograd::engine::evaluate_function: {op}", ts, external=6, correlation=None, cat="cpu_op",
                   **{"Sequence number": 9})
            for op, ts in (("MmBackward0", 150), ("AddBackward0", 160))
        ),
    ]  # fmt: skip
    source = tmp_path / "rank0.json"
    source.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert len(violations(source)) == 5
    found, written, target = exported(source, tmp_path)
    assert violations(target) == []
    assert sorted(int(note.split()[0]) for note in written.notes) == [1, 2, 2]
    by_name = {e["name"]: e for e in found["traceEvents"] if e["ph"] == "X"}
    assert "External id" not in by_name["early"]["args"]
    assert by_name["fine"]["args"]["External id"] == 2
    assert by_name["record_param_comms"]["args"]["dtype"] is None
    assert by_name["early"]["dur"] == 5.0  # times are never touched
    assert found["perfkit"]["notes"] == written.notes


def test_names_that_would_break_json_or_a_page_stay_text(tmp_path):
    odd = 'a"b\\c</script>\u2028\n=cmd()'
    events = [
        kernel("cudaLaunchKernel", 1, external=1, correlation=11, cat="cuda_runtime"),
        kernel(odd, 10, external=1, correlation=11, **{"Input Dims": [[1, 2], []], "other": {"x": [1]}}),
    ]
    source = tmp_path / "rank0.json"
    source.write_text(json.dumps({"traceEvents": events}))
    found, _, _ = exported(source, tmp_path)
    (event,) = [e for e in found["traceEvents"] if e.get("cat") == "kernel"]
    assert event["name"] == odd
    assert event["args"]["Input Dims"] == [[1, 2], []]
    assert event["args"]["other"] == {"x": [1]}


def test_what_is_not_there_is_said_with_what_is(folder, tmp_path):
    with pytest.raises(UsageError, match=r"no trace of ranks \[9\]; there are \[0, 1, 2, 3\]"):
        write_perfetto(tmp_path / "x.json", folder, ranks=[9])
    with pytest.raises(UsageError, match="the run holds steps"):
        write_perfetto(tmp_path / "x.json", folder, steps=(1000, None))
    with pytest.raises(UsageError, match="does not exist"):
        write_perfetto(tmp_path / "x.json", tmp_path / "nothing")
    with pytest.raises(UsageError, match="two ways"):
        write_perfetto(tmp_path / "x.json", folder, steps=(1, 2), window_ns=(1, 2))
    assert not (tmp_path / "x.json").exists()


REAL = [
    "facebookresearch__param/et_replay/tests/inputs/dlrm_kineto.tar.gz",
    "pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer_3",
    "facebookresearch__HolisticTraceAnalysis/tests/data/nccl_parser_config",
    "facebookresearch__HolisticTraceAnalysis/tests/data/critical_path/alexnet",
    "facebookresearch__HolisticTraceAnalysis/tests/data/amd_trace",
    "AMD-AGI__TraceLens/tests/traces/mi210/gpu_only_trace",
]


@pytest.mark.parametrize("name", REAL)
def test_exports_of_real_traces_pass_torchs_validator(traces, tmp_path, name):
    _, written, target = exported(traces / name, tmp_path)
    assert written.events > 100
    assert violations(target) == []
