"""Wait and transfer of collectives: by hand for each kind, against the simulator's truth, and conserved to the ns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.analysis.calls import EXPOSED
from perfkit.analysis.collectives import CLASSES, LABELS, TRANSFER, UNSPLIT, WAIT
from perfkit.simulate.job import Job, Mesh
from tests.analysis.job_cases import EPOCH, by_step, cached_view, call, calls_table, make_case


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_everybody_waits_for_the_last_to_arrive(op):
    #  rank 0 |wwwwwwww######|
    #  rank 1         |######|
    case = make_case(calls_table([call(0, 0, 140, op=op), call(1, 80, 140, op=op)], [0, 1]), world=2)
    assert case.sums() == {
        (0, "wait"): 80, (0, "transfer"): 60, (0, "unsplit"): 0,
        (1, "wait"): 0, (1, "transfer"): 60, (1, "unsplit"): 0,
    }  # fmt: skip
    assert case.split.rank[case.split.last_row].tolist() == [1]
    assert case.split.skew.tolist() == [80]


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_others_wait_for_the_root_alone(op):
    rows = [call(0, 50, 100, op=op, root=0), call(1, 0, 110, op=op, root=0), call(2, 70, 120, op=op, root=0)]
    sums = make_case(calls_table(rows, [0, 1, 2]), world=3).sums()
    assert [sums[r, "wait"] for r in range(3)] == [0, 50, 0]
    assert [sums[r, "transfer"] for r in range(3)] == [50, 60, 50]


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_the_root_waits_for_all_and_the_others_for_none(op):
    rows = [call(0, 0, 100, op=op, root=0), call(1, 10, 60, op=op, root=0), call(2, 70, 100, op=op, root=0)]
    sums = make_case(calls_table(rows, [0, 1, 2]), world=3).sums()
    assert [sums[r, "wait"] for r in range(3)] == [70, 0, 0]


def test_a_rooted_collective_without_its_root_stays_unsplit():
    rows = [call(0, 0, 100, op="broadcast"), call(1, 10, 100, op="broadcast")]
    case = make_case(calls_table(rows, [0, 1]), world=2)
    assert case.sums()[0, "unsplit"] == 100
    assert [CLASSES[k] for k in case.split.kind] == ["inconclusive"]


def test_a_receiver_waits_for_its_sender():
    rows = [call(0, 90, 100, op="send", peer=1), call(1, 0, 105, op="recv", peer=0)]
    sums = make_case(calls_table(rows, [0, 1]), world=2).sums()
    assert (sums[0, "wait"], sums[1, "wait"], sums[1, "transfer"]) == (0, 90, 15)


def test_a_wait_is_never_longer_than_the_call():
    case = make_case(calls_table([call(0, 0, 40), call(1, 80, 140)], [0, 1]), world=2)
    assert (case.sums()[0, "wait"], case.sums()[0, "transfer"]) == (40, 0)


def test_a_skew_below_twice_the_clock_error_is_inconclusive_if_it_matters():
    short = make_case(calls_table([call(0, 0, 100), call(1, 30, 100)], [0, 1]), world=2, u_ns=20)
    assert short.sums()[0, "unsplit"] == 100
    assert not short.split.telling.any()
    long = make_case(calls_table([call(0, 0, 10_000), call(1, 30, 10_000)], [0, 1]), world=2, u_ns=20)
    assert long.sums()[0, "unsplit"] == 0  # 30 ns of 10 µs: a transfer, whoever came first
    assert [CLASSES[k] for k in long.split.kind] == ["transfer"]
    assert not long.split.telling.any()


@pytest.mark.parametrize(("late", "kind"), [(10, "transfer"), (100, "mixed"), (900, "skew")])
def test_classes_follow_the_share_of_waiting(late, kind):
    case = make_case(calls_table([call(0, 0, late + 50), call(1, late, late + 50)], [0, 1]), world=2)
    assert [CLASSES[k] for k in case.split.kind] == [kind]


def test_with_a_member_missing_what_the_traced_ones_show_is_waiting_and_the_rest_unsplit():
    case = make_case(calls_table([call(0, 0, 100), call(1, 30, 100)], [0, 1, 2]), world=3)
    assert case.sums() == {
        (0, "wait"): 30, (0, "transfer"): 0, (0, "unsplit"): 70, (1, "wait"): 0, (1, "transfer"): 0, (1, "unsplit"): 70,
    }  # fmt: skip


def exposed_of(*pieces: tuple[int, int, int]) -> pa.Table:
    """Return EXPOSED from (rank, start, end)."""
    rows = [
        {"rank": r, "device": r, "segment": 0, "step": 0, "window_start_ns": EPOCH, "start_ns": EPOCH + a,
         "end_ns": EPOCH + b}
        for r, a, b in pieces
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=EXPOSED)


def test_where_collectives_overlap_a_transfer_covers_a_wait():
    #  group 01: rank 0 |wwwwwwwwww####|        group 02: rank 0      |w###|
    rows = [
        call(0, 0, 140, group_ranks="[0,1]", group_size=2), call(1, 100, 140, group_ranks="[0,1]", group_size=2),
        call(0, 50, 90, group="1", group_ranks="[0,2]", group_size=2),
        call(2, 60, 90, group="1", group_ranks="[0,2]", group_size=2),
    ]  # fmt: skip
    case = make_case(calls_table(rows), world=3, exposed=exposed_of((0, 0, 140)))
    length = case.pieces.end - case.pieces.start
    of = {LABELS[k]: int(length[case.pieces.label == k].sum()) for k in (TRANSFER, WAIT, UNSPLIT)}
    assert of == {"transfer": 30 + 40, "wait": 60 + 10, "unsplit": 0}


times = st.integers(0, 2_000)


@st.composite
def jobs(draw: st.DrawFn) -> pa.Table:
    """Draw calls of up to four ranks; some miss a call, some overlap, some groups are smaller."""
    ranks = draw(st.integers(1, 4))
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        group = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
        for rank in sorted(group):
            if draw(st.booleans()) or rank == min(group):
                start = draw(times)
                rows.append(
                    call(rank, start, start + draw(times), op=draw(st.sampled_from(["all_reduce", "broadcast"])),
                         group=str(sorted(group)), group_ranks=str(sorted(group)).replace(" ", ""), root=min(group),
                         group_size=len(group))
                )  # fmt: skip
    return calls_table(rows)


@settings(deadline=None, max_examples=200)
@given(jobs(), st.lists(st.tuples(st.integers(0, 3), times, times), max_size=6), st.integers(0, 100))
def test_every_ns_of_exposed_communication_has_exactly_one_label(calls, pieces, u_ns):
    cut = []
    for rank in range(4):
        edges = sorted({t for r, a, b in pieces if r == rank for t in (a, b)})
        cut += [(rank, a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    exposed = exposed_of(*cut)
    case = make_case(calls, world=4, u_ns=u_ns, exposed=exposed)
    split = case.split
    assert (split.wait + split.transfer + split.unsplit == split.end - split.start).all()
    assert min(split.wait.min(), split.transfer.min(), split.unsplit.min()) >= 0
    sums = np.bincount(case.pieces.exposed, case.pieces.end - case.pieces.start, len(exposed))
    assert sums.tolist() == (exposed["end_ns"].to_numpy() - exposed["start_ns"].to_numpy()).tolist()


JOBS = {
    "dp": Job(mesh=Mesh(dp=8), steps=3, layers=4, seed=3),
    "dp tp pp": Job(mesh=Mesh(dp=4, tp=2, pp=2), steps=3, layers=4, micro_batches=4, seed=4),
    "fsdp tp": Job(mesh=Mesh(fsdp=8, tp=2), steps=3, layers=4, seed=5),
    "experts": Job(mesh=Mesh(dp=8, ep=4), steps=2, layers=2, seed=6),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_split_is_the_simulated_one_within_the_clock_error(name):
    sim, view = cached_view(JOBS[name])
    assert view.clock.u_ns is not None
    truth = sim.collectives()
    for column in ("wait_ns", "transfer_ns"):
        got, want = (int(np.sum(t[column].to_numpy())) for t in (view.members, truth))
        assert abs(got - want) <= 2 * view.clock.u_ns * len(truth)
    assert len(view.calls) == len(truth)


@pytest.mark.parametrize("name", JOBS)
def test_labels_of_every_rank_and_step_sum_to_its_exposed_communication(name):
    sim, view = cached_view(JOBS[name])
    want = {(row["rank"], row["step"]): row for row in by_step(sim)}
    for row in view.steps.to_pylist():
        parts = [row[n] for n in ("exposed_transfer_ns", "exposed_wait_ns", "unsplit_ns", "bubble_ns")]
        assert sum(parts) == row["exposed_comm_ns"] == want[row["rank"], row["step"]]["exposed_comm_ns"]


def test_the_bubble_is_the_simulated_one_to_the_ns():
    sim, view = cached_view(JOBS["dp tp pp"])
    want = {(row["rank"], row["step"]): row["bubble_ns"] for row in by_step(sim)}
    assert {(r["rank"], r["step"]): r["bubble_ns"] for r in view.steps.to_pylist()} == want
