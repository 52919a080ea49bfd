"""What a call is: from arguments of kernels and ops, from names and shapes, from gloo, from grouped messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from perfkit.analysis.call_about import is_issuer, op_name
from perfkit.analysis.call_args import CallArgs, parse_ranks, ranks_text, shown_dtype
from perfkit.analysis.calls import CALLS
from perfkit.analysis.inputs import plan_inputs, read_input
from perfkit.schema import COLLECTIVE_ARGS, EVENTS, OPS, PROCESS_GROUPS, table_from_rows
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.simulation import Simulation, simulate
from tests.analysis.job_cases import rank_parts
from tests.conftest import ROOT

JOB = Job(mesh=Mesh(dp=2, tp=2, pp=2), steps=2, layers=4, micro_batches=2, seed=1)


@pytest.fixture(scope="module")
def sim() -> Simulation:
    return simulate(JOB, flows=False)


def calls_of(tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    return [row for part in rank_parts(tables) for row in part.calls.to_pylist()]


def without(tables: Mapping[str, pa.Table], *, on_kernels: bool, on_ops: bool) -> dict[str, pa.Table]:
    """Drop the arguments of kernels or of ops."""
    kernels = tables["events"].filter(pc.equal(tables["events"]["category"].cast(pa.utf8()), "kernel"))["event_id"]
    args = tables["collective_args"]
    of_kernel = pc.is_in(args["event_id"], kernels.combine_chunks())
    keep = pc.or_(pc.and_(of_kernel, not on_kernels), pc.and_(pc.invert(of_kernel), not on_ops))
    return {**tables, "collective_args": args.filter(keep)}


def test_every_simulated_exchange_is_a_call_with_its_group_number_and_size(sim):
    truth = sim.collectives().to_pandas()
    for rank in (0, 5):
        want = Counter(
            zip(*(truth[truth["rank"] == rank][c] for c in ("group_name", "seq", "step", "bytes")), strict=True)
        )
        got = Counter(
            (r["group"], r["seq"], r["step"], max(r["in_bytes"], r["out_bytes"])) for r in calls_of(sim.tables(rank))
        )
        assert got == want


def test_messages_know_the_other_end(sim):
    truth = sim.collectives().to_pandas()
    rows = [r for r in calls_of(sim.tables(1)) if r["op"] in ("send", "recv")]
    ends = truth[(truth["rank"] == 1) & (truth["group"] == "pp")]
    assert {(r["op"], r["peer"]) for r in rows} == {
        (op, int(d if op == "send" else s))
        for op, s, d in zip(ends["op"], ends["src_rank"], ends["dst_rank"], strict=True)
    }


@pytest.mark.parametrize(
    ("on_kernels", "on_ops", "source"),
    [(False, False, "kernel_args"), (True, False, "op_args"), (True, True, "op")],
)
def test_the_best_source_that_is_there_describes_a_call(sim, on_kernels, on_ops, source):
    rows = calls_of(without(sim.tables(0), on_kernels=on_kernels, on_ops=on_ops))
    full = calls_of(sim.tables(0))
    assert {row["source"] for row in rows} == {source}
    assert [row["op"] for row in rows] == [row["op"] for row in full]
    if source == "op_args":
        assert [(r["group_ranks"], r["in_bytes"], r["peer"]) for r in rows] == [
            (r["group_ranks"], r["in_bytes"], r["peer"]) for r in full
        ]
    if source == "op":
        assert {row["in_bytes"] is not None for row in rows} == {True}  # from the shapes of the ops


def test_a_kernel_without_a_telling_name_is_known_by_its_op(sim):
    tables = without(sim.tables(0), on_kernels=True, on_ops=True)
    names = tables["events"]["name"].cast(pa.utf8())
    generic = pc.if_else(
        pc.match_substring(names, "ncclDevKernel"), "ncclDevKernel_Generic_1(ncclDevKernelArgs)", names
    )
    at = tables["events"].column_names.index("name")
    tables["events"] = tables["events"].set_column(
        at, EVENTS.arrow.field(at), pc.dictionary_encode(generic).cast(EVENTS.arrow.field(at).type)
    )
    assert [r["op"] for r in calls_of(tables)] == [r["op"] for r in calls_of(sim.tables(0))]


def test_a_kernel_whose_launch_is_lost_is_known_by_its_name(sim):
    tables = without(sim.tables(0), on_kernels=True, on_ops=True)
    kinds = tables["events"]["category"].cast(pa.utf8())
    only = tables["events"].filter(pc.equal(kinds, "kernel"))
    rows = calls_of({**tables, "events": only})
    assert {row["source"] for row in rows} == {"name"}
    assert {row["op"] for row in rows} == {"all_reduce", "send_recv"}
    assert {row["host_start_ns"] for row in rows} == {None}


# ------------------------------------------------------------------ hand-made traces


def event(id: int, category: str, name: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    kinds = {"kernel": "communication", "cpu_op": "op", "user_annotation": "range", "cuda_runtime": "runtime"}
    row = {
        "rank": 0, "segment": 0, "event_id": id, "phase": "X", "category": category, "class": kinds[category],
        "name": name, "start_ns": start, "dur_ns": dur, "pid": 1, "tid": 1, **more,
    }  # fmt: skip
    return {**row, "device": 0} if category == "kernel" else row


def tables_of(events: list[dict[str, Any]], args: list[dict[str, Any]] = (), ops: list[dict[str, Any]] = (),
              groups: list[dict[str, Any]] = ()) -> dict[str, pa.Table]:  # fmt: skip
    own = {"rank": 0, "segment": 0}
    return {
        "events": table_from_rows(EVENTS, events),
        "collective_args": table_from_rows(COLLECTIVE_ARGS, [{**own, **row} for row in args]),
        "ops": table_from_rows(OPS, [{**own, **row} for row in ops]),
        "process_groups": table_from_rows(PROCESS_GROUPS, [{**own, **row} for row in groups]),
    }


def test_messages_that_were_grouped_into_one_kernel_are_a_row_each():
    #  isend and irecv are recorded; the kernel is launched where the group ends
    events = [
        event(0, "cpu_op", "record_param_comms", 100, 10), event(1, "cpu_op", "record_param_comms", 120, 10),
        event(2, "user_annotation", "nccl:coalesced", 140, 30),
        event(3, "cuda_runtime", "cudaLaunchKernel", 150, 5, correlation=7),
        event(4, "kernel", "ncclDevKernel_SendRecv(...)", 200, 50, correlation=7),
    ]  # fmt: skip
    same = {"dtype": "BFloat16", "in_nelems": 1024, "out_nelems": 1024, "group_name": "3", "group_ranks": "[0, 4]"}
    args = [
        {"event_id": 0, "collective": "send", "dst_rank": 4, **same},
        {"event_id": 1, "collective": "recv", "src_rank": 4, **same},
    ]
    rows = calls_of(tables_of(events, args))
    assert [(r["op"], r["peer"], r["in_bytes"], r["event_id"]) for r in rows] == [
        ("send", 4, 2048, 4),
        ("recv", 4, 2048, 4),
    ]


def test_ncclgroups_of_an_nsys_export_are_rows_of_their_kernel():
    events = [
        event(0, "user_annotation", "ncclAllReduce", 100, 10), event(1, "user_annotation", "ncclGroupEnd", 120, 40),
        event(2, "cuda_runtime", "cudaLaunchKernel", 150, 5, correlation=7),
        event(3, "kernel", "ncclDevKernel_Generic(...)", 200, 50, correlation=7),
    ]  # fmt: skip
    args = [{"event_id": 0, "message_bytes": 4096, "comm_id": 2**63 + 5, "group_size": 8}]
    (row,) = calls_of(tables_of(events, args))
    assert (row["op"], row["in_bytes"], row["group_size"], row["source"]) == ("all_reduce", 4096, 8, "op_args")
    assert row["group"] == f"comm {2**63 + 5:#x}"


@pytest.mark.parametrize(
    ("name", "in_bytes", "out_bytes"), [("ncclAllGather", 4096, None), ("ncclReduceScatter", None, 4096)]
)
def test_payloads_of_nccl_give_what_one_rank_contributes(name, in_bytes, out_bytes):
    events = [
        event(0, "user_annotation", name, 100, 60),
        event(1, "cuda_runtime", "cudaLaunchKernel", 150, 5, correlation=7),
        event(2, "kernel", "ncclDevKernel_Generic(...)", 200, 50, correlation=7),
    ]
    args = [{"event_id": 0, "message_bytes": 4096, "comm_id": 5, "group_size": 8}]
    (row,) = calls_of(tables_of(events, args))
    assert (row["in_bytes"], row["out_bytes"]) == (in_bytes, out_bytes)


def test_old_record_param_comms_carry_number_and_group_in_their_values():
    events = [
        event(0, "cpu_op", "c10d::allreduce_", 90, 60), event(1, "cpu_op", "record_param_comms", 100, 40),
        event(2, "user_annotation", "nccl:all_reduce", 105, 30),
        event(3, "cuda_runtime", "cudaLaunchKernel", 110, 5, correlation=7),
        event(4, "kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(...)", 200, 50, correlation=7),
    ]  # fmt: skip
    ops = [
        {"event_id": 1, "concrete_inputs": '["", "41", "94011", "0", "", "", ""]'},
        {"event_id": 2, "input_dims": "[[512, 2]]", "input_types": '["float"]'},
    ]
    (row,) = calls_of(tables_of(events, ops=ops))
    assert (row["op"], row["seq"], row["group"], row["in_bytes"], row["dtype"]) == (
        "all_reduce",
        41,
        "id 94011",
        4096,
        "float32",
    )
    assert row["host_start_ns"] == 90


@pytest.mark.parametrize(
    ("dims", "types", "in_bytes"),
    [
        ("[[]]", '["float"]', 4),
        ("[[]]", '["c10::BFloat16"]', 2),
        ("[[], []]", '["", "Scalar"]', None),  # arguments that are no tensors look the same
        ("[[3]]", '["float"]', 12),
    ],
)
def test_a_tensor_without_dimensions_has_one_element(dims: str, types: str, in_bytes: int | None) -> None:
    events = [
        event(0, "cpu_op", "c10d::allreduce_", 90, 60), event(1, "user_annotation", "gloo:all_reduce", 105, 30),
    ]  # fmt: skip
    ops = [
        {"event_id": 0, "input_dims": "[[[]], [], []]", "input_types": '["TensorList", "", "Scalar"]'},
        {"event_id": 1, "input_dims": dims, "input_types": types},
    ]
    (row,) = calls_of(tables_of(events, ops=ops))
    assert row["in_bytes"] == in_bytes


def test_the_root_of_a_broadcast_is_a_global_rank():
    events = [event(0, "kernel", "ncclDevKernel_Broadcast(...)", 200, 50)]
    args = [
        {
            "event_id": 0,
            "collective": "broadcast",
            "group_ranks": "[4, 5, 6, 7]",
            "group_rank": 2,
            "dtype": "Float",
            "in_nelems": 1,
        }
    ]
    (row,) = calls_of(tables_of(events, args))
    assert (row["op"], row["root"], row["group_ranks"]) == ("broadcast", 6, "[4,5,6,7]")


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        ({"global_rank_start": 0, "global_rank_stride": 2, "group_size": 40}, []),
        ({"group_size": 40}, [{"name": "7", "size": 40, "ranks": list(range(0, 80, 2))}]),
    ],
    ids=["from stride", "from the description of the group"],
)
def test_a_list_of_ranks_that_was_cut_short_is_rebuilt(more, groups):
    events = [event(0, "kernel", "ncclDevKernel_AllGather(...)", 200, 50)]
    cut = "[" + ", ".join(map(str, range(0, 60, 2))) + ", ...]"
    args = [{"event_id": 0, "collective": "_allgather_base", "group_name": "7", "group_ranks": cut, **more}]
    (row,) = calls_of(tables_of(events, args, groups=groups))
    assert row["group_ranks"] == ranks_text(range(0, 80, 2))
    assert row["group_size"] == 40


def test_a_list_of_another_length_than_the_group_is_not_believed():
    args = CallArgs.read(
        table_from_rows(
            COLLECTIVE_ARGS,
            [
                {
                    "rank": 0,
                    "segment": 0,
                    "event_id": 3,
                    "collective": "allreduce",
                    "group_ranks": "[0, 1]",
                    "group_size": 3,
                }
            ],
        )
    )
    assert args.group_ranks(args.row_of(pa.array([3, 4]).to_numpy())) == [None, None]


def test_gloo_work_arrives_with_its_c10d_call(tmp_path):
    for planned in plan_inputs([ROOT / "sample_traces/ddp_gloo"], tmp_path, []):
        for trace in read_input(planned):
            rows = calls_of(trace.tables)
            assert {(r["op"], r["dtype"], r["in_bytes"], r["device"]) for r in rows} == {
                ("all_reduce", "float32", 1_052_672, None)
            }
            assert all(r["host_start_ns"] < r["start_ns"] for r in rows)
            assert [r["step"] for r in rows] == [2, 3, 4, 5]


def test_a_trace_without_communication_has_no_calls():
    (part,) = rank_parts(tables_of([{**event(0, "kernel", "gemm", 0, 10), "class": "compute"}]))
    assert part.calls.equals(CALLS.empty_table())


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"), ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::recv_", "recv"), ("nccl:send 0->1", "send"), ("ncclDevKernel_SendRecv(...)", "send_recv"),
        ("void deep_ep::internode::dispatch<false, 8>(...)", "all_to_all"),
        ("deep_ep::intranode::combine", "all_to_all"),
        ("symm_mem::multimem_all_reduce_", "all_reduce"), ("ncclDevKernel_Generic(...)", "unknown"),
    ],
)  # fmt: skip
def test_names_say_which_collective_it_is(name, op):
    assert op_name(name) == op


def test_ops_that_hand_work_over_are_told_from_those_that_wait():
    assert all(
        map(
            is_issuer,
            (
                "c10d::allreduce_",
                "record_param_comms",
                "nccl:send 0->1",
                "_c10d_functional::all_reduce",
                "ncclAllGather",
            ),
        )
    )
    assert not any(map(is_issuer, ("_c10d_functional::wait_tensor", "aten::mm", "c10d::get_rank_size")))


def test_ranks_and_types_have_one_spelling():
    assert parse_ranks("[3, 1]") == [3, 1]
    assert ranks_text([3, 1, 3]) == "[1,3]"
    assert [parse_ranks(text) for text in (None, "", "[0, 1, ...]", "{}", "[]", '["0"]')] == [None] * 6
    assert [shown_dtype(t) for t in ("Float", "c10::BFloat16", "long int", None)] == [
        "float32",
        "bfloat16",
        "int64",
        None,
    ]


def test_deepep_kernels_of_real_traces_and_others_keep_a_row(traces: Path, tmp_path: Path):
    folder = traces / "AMD-AGI__TraceLens/tests/traces/b200/eager_trace.json.gz"
    for planned in plan_inputs([folder], tmp_path, []):
        for trace in read_input(planned):
            rows = calls_of(trace.tables)
    assert Counter(r["op"] for r in rows) == {"all_reduce": 73, "all_gather": 1}
    assert {r["group_ranks"] for r in rows if r["op"] == "all_gather"} == {"[0,1,2,3,4,5,6,7]"}
    assert all(r["in_bytes"] for r in rows)
