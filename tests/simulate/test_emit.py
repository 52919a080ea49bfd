from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from naive import load, to_ns

from perfkit import schema
from perfkit.analysis.classify import classify_events, kernel_family
from perfkit.simulate import Job, Mesh, sample_job, simulate, write_traces
from perfkit.sources.kineto import read_tables

SEEDS = (1, 4, 8, 14, 16)
EVENT_ARGS = {
    "External id": "external_id", "correlation": "correlation", "device": "device", "stream": "stream",
    "Python id": "python_id", "bytes": "bytes",
}  # fmt: skip
SIDE_ARGS: dict[str, dict[str, str]] = {
    "kernels_meta": {
        "context": "context", "registers per thread": "registers_per_thread", "shared memory": "shared_memory_bytes",
        "blocks per SM": "blocks_per_sm", "warps per SM": "warps_per_sm", "est. achieved occupancy %": "occupancy_pct",
        "queued": "queued", "memory bandwidth (GB/s)": "bandwidth_gbps",
    },
    "ops": {
        "Input Dims": "input_dims", "Input type": "input_types", "Concrete Inputs": "concrete_inputs",
        "Sequence number": "sequence_number", "Fwd thread id": "fwd_thread_id",
    },
    "collective_args": {
        "Collective name": "collective", "dtype": "dtype", "In msg nelems": "in_nelems", "Out msg nelems": "out_nelems",
        "In split size": "in_split", "Out split size": "out_split", "Process Group Name": "group_name",
        "Process Group Description": "group_desc", "Process Group Ranks": "group_ranks", "Group size": "group_size",
        "Seq": "seq", "Src Rank": "src_rank", "Dst Rank": "dst_rank",
    },
    "syncs": {"cuda_sync_kind": "kind"},
}  # fmt: skip
NOT_STORED = {"cbid", "grid", "block"}


def plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list) else value


def read_plainly(text: str, rank: int) -> dict[str, list[dict[str, Any]]]:
    """The tables that a reader of the JSON must arrive at, one dict per row."""
    trace = load(text)
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in ("events", *SIDE_ARGS)}
    position = -1
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        position += 1
        label = {"rank": rank, "segment": 0, "event_id": position}
        args = event.get("args", {})
        known = set(EVENT_ARGS) | NOT_STORED | {key for keys in SIDE_ARGS.values() for key in keys}
        assert set(args) <= known
        if event["cat"] == "gpu_user_annotation":  # its track says where it is
            args = {**args, "device": event["pid"], "stream": event["tid"]}
        tables["events"].append({
            **label, "phase": event["ph"], "category": event["cat"], "name": event["name"],
            "start_ns": trace["baseTimeNanoseconds"] + to_ns(event["ts"]),
            "dur_ns": to_ns(event["dur"]) if "dur" in event else None, "pid": event["pid"], "tid": event["tid"],
            "flow_id": event.get("id"), **{column: args.get(key) for key, column in EVENT_ARGS.items()},
        })  # fmt: skip
        for table, keys in SIDE_ARGS.items():
            if any(key in args for key in keys):
                row = {**label, **{column: plain(args.get(key)) for key, column in keys.items()}}
                if table == "kernels_meta":
                    for what in ("grid", "block"):
                        row |= {f"{what}_{axis}": v for axis, v in zip("xyz", args.get(what, [None] * 3), strict=True)}
                tables[table].append(row)
    return tables


@pytest.mark.parametrize("seed", SEEDS)
def test_json_and_arrow_hold_the_same_rows(seed: int) -> None:
    sim = simulate(sample_job(seed))
    for rank in (0, sim.ranks[-1]):
        tables = sim.tables(rank)
        for name, expected in read_plainly(sim.kineto(rank), rank).items():
            found = tables[name].to_pylist()
            assert len(found) == len(expected) > 0 or name in ("syncs", "collective_args")
            for have, want in zip(found, expected, strict=True):
                assert {key: have[key] for key in want} == want


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_the_file_gives_the_tables_that_are_made_directly(seed: int, tmp_path: Path) -> None:
    sim = simulate(sample_job(seed))
    paths = write_traces(sim, tmp_path)
    for rank in (0, sim.ranks[-1]):
        read = read_tables(paths[rank])
        for name, made in sim.tables(rank).items():
            columns = [column for column in made.column_names if (name, column) != ("tracks", "tid")]
            assert read[name].select(columns).to_pylist() == made.select(columns).to_pylist(), name


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_tables_conform_and_rows_that_json_cannot_tell_are_null(seed: int) -> None:
    tables = simulate(sample_job(seed)).tables(0)
    assert list(tables) == [table.name for table in schema.TRACE_TABLES]
    for name, table in tables.items():
        assert table.schema == schema.TABLES[name].arrow
        assert schema.conform(schema.TABLES[name], table) is not None
    side = {"ops": "input_strides", "collective_args": "comm_id", "events": "track"}
    for name, column in side.items():
        assert tables[name][column].null_count == len(tables[name])


def test_every_kernel_is_known_to_the_classifier() -> None:
    names: set[str] = set()
    for mesh in (Mesh(dp=2, tp=2), Mesh(fsdp=2), Mesh(dp=2, ep=2), Mesh(pp=2)):
        job = Job(mesh=mesh, layers=2, micro_batches=mesh.pp, steps=1, checkpoint_every=1)
        events = simulate(job).tables(0)["events"]
        for row in events.select(["category", "name", "class"]).to_pylist():
            if row["category"] == "kernel":
                names.add(row["name"])
                assert (row["class"] == "communication") == row["name"].startswith("nccl")
    unnamed = pa.array(sorted(names))
    by_name = classify_events(pa.array(["kernel"] * len(unnamed)), unnamed).to_pylist()
    assert by_name == ["communication" if n.startswith("nccl") else "compute" for n in unnamed.to_pylist()]
    compute = [name for name, kind in zip(unnamed.to_pylist(), by_name, strict=True) if kind == "compute"]
    assert "unknown" not in kernel_family(pa.array(compute)).to_pylist()


def test_a_trace_says_that_it_is_synthetic_and_who_wrote_it() -> None:
    job = Job(mesh=Mesh(dp=2, pp=2), layers=2, steps=1, micro_batches=2)
    trace = load(simulate(job).kineto(3, "rank3.json"))
    assert trace["perfkit_synthetic"] is True
    assert trace["traceName"] == "rank3.json"
    assert trace["distributedInfo"]["rank"] == 3
    assert trace["distributedInfo"]["world_size"] == 4
    groups = {g["pg_desc"]: g["ranks"] for g in trace["distributedInfo"]["pg_config"]}
    assert groups == {"default_pg": [0, 1, 2, 3], "mesh_dp": [2, 3], "mesh_pp": [1, 3]}
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "M"} >= {"process_name", "thread_name"}
    assert "\x01" not in json.dumps(trace, default=str)


def test_flows_join_a_launch_with_its_kernel_and_can_be_left_out() -> None:
    job = Job(steps=1, layers=1)
    events = simulate(job).tables(0)["events"].to_pylist()
    calls = {e["correlation"]: e for e in events if e["category"] == "cuda_runtime"}
    work = {e["correlation"]: e for e in events if e["category"] in ("kernel", "gpu_memcpy", "gpu_memset")}
    starts = [e for e in events if e["phase"] == "s"]
    assert len(starts) == len(set(calls) & set(work)) > 20
    for flow in starts:
        assert flow["start_ns"] == calls[flow["flow_id"]]["start_ns"]
    for flow in (e for e in events if e["phase"] == "f"):
        assert flow["start_ns"] == work[flow["flow_id"]]["start_ns"]
    without = simulate(job, flows=False).tables(0)["events"]
    assert len(without) == len(events) - 2 * len(starts)


def test_files_are_complete_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    job = sample_job(5)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        paths = write_traces(simulate(job), folder)
        assert [path.name for path in paths] == [f"rank{r:05d}.pt.trace.json.gz" for r in range(job.mesh.world_size)]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    for name in names[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name
    with gzip.open(folders[0] / "rank00000.pt.trace.json.gz", "rt") as file:
        assert json.load(file)["perfkit_synthetic"] is True
    truth = json.loads((folders[0] / "truth.json").read_text())
    assert truth["synthetic"] is True
    assert len(truth["clocks"]) == job.num_hosts


def test_events_carry_the_arguments_that_real_ones_do(traces: Path) -> None:
    real: dict[str, set[str]] = {}
    for path in traces.glob("KellerJordan__modded-nanogpt/**/*current*.json.gz"):
        with gzip.open(path, "rt") as file:
            events = json.load(file)["traceEvents"]
        for event in events:
            real.setdefault(event.get("cat", event["ph"]), set()).update(event.get("args", {}))
    assert real
    trace = json.loads(simulate(Job(mesh=Mesh(dp=2), steps=1, layers=1)).kineto(0))
    newer = {"Seq"}
    seen = set()
    for event in trace["traceEvents"]:
        category = event.get("cat", event["ph"])
        if category in real:
            seen.add(category)
            assert set(event.get("args", {})) - newer <= real[category], event
    assert seen >= {"kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation", "ac2g"}
