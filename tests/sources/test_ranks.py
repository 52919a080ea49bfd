"""Ranks come from the source, then from the name, then they are assigned; the store's numbers stay."""

from __future__ import annotations

from pathlib import Path

from perfkit.sources.base import Input, PartInfo
from perfkit.sources.ranks import TimeRange, overlapping, plan_parts
from perfkit.store.catalog import Place
from perfkit.store.commits import Commit


def peeked(*ranks: int | None, name: str = "a") -> tuple[Input, list[PartInfo]]:
    parts = [PartInfo(rank=rank, rank_source=None if rank is None else "distributedInfo") for rank in ranks]
    return Input(name, "kineto", Path(name), 1, identity=name), parts


def commit(rank: int, segment: int) -> Commit:
    return Commit("c", "r", 0, rank, segment, "f", (), 1)


def plan(
    *inputs: tuple[Input, list[PartInfo]], committed: tuple[Commit, ...] = (), unreadable: tuple[Place, ...] = ()
) -> list[list[list[tuple[int, int]]]]:
    groups = plan_parts(inputs, committed, unreadable)
    return [[[(part.rank, part.segment) for part in item.parts] for item in group] for group in groups]


def test_a_known_rank_is_kept_and_an_unknown_one_gets_the_smallest_free():
    assert plan(peeked(None), peeked(0), peeked(None), peeked(2)) == [[[(1, 0)]], [[(0, 0)]], [[(3, 0)]], [[(2, 0)]]]


def test_files_of_one_rank_are_segments_in_one_group():
    assert plan(peeked(5), peeked(6), peeked(5)) == [[[(5, 0)], [(5, 1)]], [[(6, 0)]]]


def test_files_named_after_one_process_are_segments_of_one_rank():
    names = [f"log/node-1_{pid}.{time}.pt.trace.json" for pid, time in ((71, 10**18), (71, 10**18 + 5), (72, 10**18))]
    assert plan(*(peeked(None, name=name) for name in names)) == [[[(0, 0)], [(0, 1)]], [[(1, 0)]]]


def test_an_input_of_several_ranks_joins_their_groups():
    assert plan(peeked(0), peeked(1), peeked(0, 1)) == [[[(0, 0)], [(1, 0)], [(0, 1), (1, 1)]]]


def test_what_the_store_holds_keeps_its_numbers():
    assert plan(peeked(None), peeked(0), committed=(commit(0, 0), commit(1, 0))) == [[[(2, 0)]], [[(0, 1)]]]


def test_parts_that_are_committed_already_keep_their_place():
    first = Commit("c", "r", 0, 4, 1, "a#0+args", (), 1)
    assert plan(peeked(None, None), committed=(first,)) == [[[(4, 1), (0, 0)]]]


def test_the_place_of_an_unreadable_commit_is_given_to_its_own_source_only():
    unreadable = (Place(0, 0, "a#0"), Place(1, 3, None))
    assert plan(peeked(0), unreadable=unreadable) == [[[(0, 0)]]]
    assert plan(peeked(0, name="other"), unreadable=unreadable) == [[[(0, 1)]]]
    assert plan(peeked(1, name="b"), unreadable=unreadable) == [[[(1, 4)]]]


def test_only_a_true_overlap_of_the_same_rank_counts():
    earlier = [TimeRange(0, 100, 200, "a", "/a")]
    assert overlapping(PartInfo(start_ns=150, end_ns=300), 0, earlier) == earlier[0]
    assert overlapping(PartInfo(start_ns=200, end_ns=300), 0, earlier) is None
    assert overlapping(PartInfo(start_ns=150, end_ns=300), 1, earlier) is None
    assert overlapping(PartInfo(), 0, earlier) is None
