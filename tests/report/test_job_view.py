"""The job in text and HTML: worst ranks and groups, and the rank × step map."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from perfkit.analysis.blame import CELLS
from perfkit.report.job import MAX_HEAT_RANKS, MAX_HEAT_STEPS, heat_cells, job_lines
from perfkit.report.report import Report


def document(**job: Any) -> dict[str, Any]:
    rank = {"role": None, "host": None}
    return {
        "scope": {"ranks_traced": 2},
        "totals": {"window_ns": 1_000_000},
        "job": {
            "mesh": "dp=2", "mesh_source": "inferred", "calls": 10, "instances": 5, "calls_unmatched": 0,
            "calls_alone": 0, "wait_caused_ns": 90_000, "wait_unattributed_ns": 10_000, **job,
        },
        "ranks": [
            {**rank, "rank": 0, "wait_caused_ns": 5_000}, {**rank, "rank": 1, "role": "pp1", "wait_caused_ns": 85_000},
        ],
        "collectives": [
            {"group": "dp", "op": "all_reduce", "count": 5, "bytes": 5 * 2**24, "busbw_gbps": 100.0, "efficiency": 0.5,
             "exposed_wait_ns": 100_000, "exposed_transfer_ns": 30_000, "exposed_unsplit_ns": 0, "bubble_ns": 0},
        ],
    }  # fmt: skip


def test_the_worst_rank_comes_first_and_what_has_no_culprit_is_said():
    lines = {line.head: line.text for line in job_lines(document())}
    assert lines["mesh"] == "dp=2 (inferred) · 10 of 10 collective calls matched"
    assert lines["waits for"].startswith("rank 1 (pp1) 85.0 µs, 85 %")
    assert lines["waits for"].endswith("nobody can be named for 10.0 µs")
    assert lines["exposed in"] == "dp all_reduce transfer 30.0 µs, wait 100 µs, 100 GB/s bus, 50 % of the link"


def test_small_messages_do_not_speak_of_bandwidth():
    shown = document()
    shown["collectives"][0]["bytes"] = 5 * 1024
    assert "bus" not in next(line.text for line in job_lines(shown) if line.head == "exposed in")


def test_one_rank_or_no_collectives_have_no_lines():
    alone = document()
    alone["scope"]["ranks_traced"] = 1
    assert job_lines(alone) == []
    assert job_lines(document(instances=0)) == []
    assert job_lines({**document(), "job": None}) == []


def cells(ranks: int, steps: int) -> pa.Table:
    rows = [
        {"rank": r, "step": s, "wait_caused_ns": 10 * r + s, "exposed_wait_ns": 1}
        for r in range(ranks)
        for s in range(steps)
    ]
    return pa.Table.from_pylist(rows, schema=CELLS)


def test_the_map_holds_every_cell_of_a_small_job():
    heat = heat_cells(Report({}, {"blame_steps": cells(3, 4)}))
    assert heat is not None
    assert heat.values == [[10 * r + s for s in range(4)] for r in range(3)]
    assert (heat.ranks, heat.labels, heat.note) == ([0, 1, 2], ["0", "1", "2", "3"], "")


def test_the_map_of_a_large_job_is_cut_and_says_so():
    heat = heat_cells(Report({}, {"blame_steps": cells(200, 500)}))
    assert heat is not None
    assert len(heat.ranks) == MAX_HEAT_RANKS
    assert len(heat.labels) <= MAX_HEAT_STEPS
    assert heat.ranks[0] == 200 - MAX_HEAT_RANKS  # those that caused most
    assert "of 200 ranks" in heat.note
    assert "A column is 5 steps" in heat.note


def test_a_job_in_which_nobody_waited_has_no_map():
    nobody = pa.Table.from_pylist([{"rank": 0, "step": 1, "wait_caused_ns": 0, "exposed_wait_ns": 0}], schema=CELLS)
    assert heat_cells(Report({}, {"blame_steps": nobody})) is None
    assert heat_cells(Report({}, {})) is None
