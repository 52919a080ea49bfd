"""How B and E events become intervals, and what becomes of all that they say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.sources import json_stream, kineto_tables
from tests.sources.test_kineto import counts, read
from tests.sources.trace_files import document, op, write

NOW = 2e15
COLLECTIVE = {"Collective name": "allreduce", "In msg nelems": 4}


def edge(phase: str, ts: float, *, tid: int = 1, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": 1, "tid": tid, "ts": NOW + ts, **more}


def cut_into(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(json_stream, "FIRST_HEAD_BYTES", 100)


@pytest.fixture(params=[False, True], ids=["one chunk", "many chunks"])
def read_edges(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Read a few events; each in a chunk of its own, or all in one."""

    def read_edges(*edges: dict[str, Any], **options: Any) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
        if request.param:
            cut_into(monkeypatch, 500)
        events = [event for edge in edges for event in (edge, op(name="filler" * 50, ts=NOW))]
        tables, info = read(write(tmp_path / "t.json", document(*events)), rows_per_chunk=1, **options)
        tables["events"] = [row for row in tables["events"] if "filler" not in (row["name"] or "")]
        return tables, counts(info)

    return read_edges


def test_what_only_the_end_says_goes_to_the_pair(read_edges):
    args = {"correlation": 7, "External id": 8, "bytes": 9, "Sequence number": 10, "x": 11}
    tables, oddities = read_edges(edge("B", 0, name="a"), edge("E", 5, cat="cpu_op", args=args), keep_args=True)
    (pair,) = tables["events"]
    assert (pair["event_id"], pair["phase"], pair["name"], pair["dur_ns"]) == (0, "X", "a", 5000)
    assert [pair[column] for column in ("correlation", "external_id", "bytes", "args")] == [7, 8, 9, '{"x":11}']
    assert (pair["category"], pair["class"]) == ("cpu_op", "op")
    assert [(row["event_id"], row["sequence_number"]) for row in tables["ops"]] == [(0, 10)]
    assert oddities == {}


def test_what_both_say_of_a_side_table_is_one_row_and_the_beginning_counts(read_edges):
    begin = edge("B", 0, name="a", args={"Sequence number": 1, "kernel_name": "k", "correlation": 3})
    end = edge("E", 5, args={"Sequence number": 2, "num_warps": 4, "kernel_name": "k", "correlation": 4})
    tables, oddities = read_edges(begin, end)
    rows = [(row["event_id"], row["sequence_number"], row["kernel_name"], row["num_warps"]) for row in tables["ops"]]
    assert rows == [(0, 1, "k", 4)]
    assert tables["events"][0]["correlation"] == 3
    assert oddities == {"not_read": 2}


@pytest.mark.parametrize("where", ["B", "E"])
def test_a_kernel_is_communication_whichever_of_its_events_has_the_collective_args(read_edges, where):
    edges = [edge(phase, ts, name="k", cat="kernel", args={}) for phase, ts in (("B", 0), ("E", 5))]
    edges[where == "E"]["args"] = COLLECTIVE
    tables, _ = read_edges(*edges)
    assert [(row["event_id"], row["class"]) for row in tables["events"]] == [(0, "communication")]
    assert [(row["event_id"], row["in_nelems"]) for row in tables["collective_args"]] == [(0, 4)]


def test_without_a_partner_an_event_keeps_what_it_says(read_edges):
    edges = [edge(phase, 0, name=phase, args={"Sequence number": n}) for n, phase in enumerate("EB")]
    tables, oddities = read_edges(*edges)
    assert sorted((row["event_id"], row["sequence_number"]) for row in tables["ops"]) == [(0, 0), (2, 1)]
    assert sorted((row["event_id"], row["phase"]) for row in tables["events"]) == [(0, "E"), (2, "B")]
    assert oddities == {"unmatched_begin": 1, "unmatched_end": 1}


@pytest.mark.parametrize("key", ["pid", "tid"])
def test_a_thread_of_minus_one_is_another_than_none(read_edges, key):
    begin, end = edge("B", 0, name="a"), edge("E", 5)
    begin[key] = -1
    del end[key]
    _, oddities = read_edges(begin, end)
    assert oddities == {"unmatched_begin": 1, "unmatched_end": 1}


def test_times_too_far_apart_for_64_bits_are_no_duration(read_edges):
    edges = [{**edge(phase, 0, name="a"), "ts": ts} for phase, ts in (("B", -9e15), ("E", 9e15))]
    tables, oddities = read_edges(*edges)
    assert tables["events"][0]["dur_ns"] is None
    assert oddities["time_out_of_range"] == 1
    tables, oddities = read_edges({**edges[0], "ts": 9e15}, {**edges[1], "ts": -9e15})
    assert tables["events"][0]["dur_ns"] is None
    assert oddities["negative_dur"] == 1


@pytest.mark.parametrize("seed", range(20))
def test_pairs_equal_those_of_a_stack_for_each_thread(tmp_path, monkeypatch, seed):
    dice = random.Random(seed)
    cut_into(monkeypatch, dice.choice([300, 1000, 1 << 20]))
    threads = [(pid, tid) for pid in (None, -1, "a") for tid in (None, 0)]
    events: list[dict[str, Any]] = []
    for number in range(300):
        pid, tid = dice.choice(threads)
        where = {key: value for key, value in (("pid", pid), ("tid", tid)) if value is not None}
        args = {"Sequence number": number} if dice.random() < 0.5 else {}
        phase = dice.choice("BBE" if number < 150 else "BEE")
        events.append({"ph": phase, "name": "x", "ts": NOW + number, "args": args, **where})
    stacks: dict[Any, list[int]] = {}
    expected, said = {}, {}
    for number, event in enumerate(events):
        stack = stacks.setdefault((event.get("pid"), event.get("tid")), [])
        begin = stack.pop() if event["ph"] == "E" and stack else number
        expected[begin] = None if begin == number else (number - begin) * 1000
        if event["ph"] == "B":
            stack.append(number)
        if event["args"]:
            said.setdefault(begin, number)
    tables, _ = read(write(tmp_path / "t.json", document(*events)), rows_per_chunk=50)
    assert sorted((row["event_id"], row["dur_ns"]) for row in tables["events"]) == sorted(expected.items())
    assert sorted((row["event_id"], row["sequence_number"]) for row in tables["ops"]) == sorted(said.items())


def test_events_that_never_end_are_looked_at_once(tmp_path, monkeypatch):
    cut_into(monkeypatch, 1000)
    seen, nest = [], kineto_tables._nest
    monkeypatch.setattr(
        kineto_tables, "_nest", lambda thread, begin: (seen.append(len(np.asarray(thread))), nest(thread, begin))[1]
    )
    edges = [edge("B", number, name="open", tid=2) for number in range(1000)]
    edges[1::10] = [edge("E", number, tid=1) for number in range(100)]
    _, info = read(write(tmp_path / "t.json", document(*edges)))
    assert counts(info) == {"unmatched_begin": 900, "unmatched_end": 100}
    assert len(seen) > 50
    assert sum(seen) == 1000
