from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.goodput.lemons import DAY_NS, HOUR_NS, binomial_tail, find_lemons, poisson_tail
from perfkit.schema import JOB_NODES, table_from_rows


def fleet(seed, *, nodes=40, runs=60, nodes_per_run=8, slow=(), since=0, failing=(), noise=0.012):
    """A cluster's job_nodes: each run on random nodes for a day; `slow` nodes are 20 % slower from run `since` on."""
    random = np.random.default_rng(seed)
    rows = []
    for run in range(runs):
        members = random.choice(nodes, nodes_per_run, replace=False)
        pace = 1 + noise * random.normal(size=nodes_per_run)
        pace[np.isin(members, slow) & (run >= since)] *= 1.2
        pace /= np.median(pace)
        culprits = [m for m in members if m in failing and random.random() < 0.5]
        for member, slowdown in zip(members.tolist(), pace.tolist(), strict=True):
            rows.append(
                {
                    "cluster": "prod",
                    "run": f"run-{run}",
                    "attempt": 0,
                    "node": f"n{member:03d}",
                    "start_ns": run * DAY_NS,
                    "end_ns": run * DAY_NS + 20 * HOUR_NS,
                    "num_nodes": nodes_per_run,
                    "slowdown": slowdown,
                    "interrupted": member in culprits or random.random() < 0.002,
                }
            )
    return table_from_rows(JOB_NODES, rows)


def found(table):
    lemons = find_lemons(table)
    return sorted(zip(lemons["node"].to_pylist(), lemons["kind"].to_pylist(), strict=True))


def test_a_node_that_is_slow_in_all_its_runs_is_found_with_its_evidence():
    lemons = find_lemons(fleet(1, slow=[7])).to_pylist()
    assert [(row["node"], row["kind"]) for row in lemons] == [("n007", "slow")]
    assert lemons[0]["bad"] == lemons[0]["of"]
    assert lemons[0]["slowdown"] == pytest.approx(1.2, abs=0.02)
    assert lemons[0]["p_value"] < 1e-4
    assert lemons[0]["runs"]


def test_a_node_that_went_bad_lately_does_not_hide_behind_a_good_year():
    lemons = find_lemons(fleet(2, runs=200, slow=[3], since=150)).to_pylist()
    assert [row["node"] for row in lemons] == ["n003"]
    assert lemons[0]["since_ns"] >= 100 * DAY_NS


def test_a_node_that_breaks_runs_is_found():
    assert found(fleet(3, failing=[11])) == [("n011", "failing")]


def test_both_kinds_of_several_nodes_are_found():
    assert found(fleet(4, runs=120, slow=[1, 2], failing=[5])) == [
        ("n001", "slow"),
        ("n002", "slow"),
        ("n005", "failing"),
    ]


def test_healthy_clusters_have_no_lemons():
    flagged = sum(bool(found(fleet(seed))) for seed in range(100, 150))
    assert flagged <= 2  # each at most 1 %: more than 2 of 50 has a chance below 2 %


def test_an_unlucky_run_is_not_a_lemon():
    table = fleet(5, runs=3, nodes=24)
    assert found(table) == []


def test_attempts_of_one_run_count_once():
    rows = fleet(6, runs=30).to_pylist()
    one = next(row for row in rows if row["node"] == "n000")
    again = [one | {"attempt": attempt, "slowdown": 1.5} for attempt in range(20)]
    assert found(table_from_rows(JOB_NODES, [*rows, *again])) == []


def test_unmeasured_slowdowns_and_empty_tables_are_no_evidence():
    assert found(table_from_rows(JOB_NODES, [])) == []
    rows = [row | {"slowdown": None, "interrupted": None} for row in fleet(7, slow=[7]).to_pylist()]
    assert found(table_from_rows(JOB_NODES, rows)) == []


def test_clusters_are_judged_apart():
    other = fleet(8)
    names = pa.array(["other"] * other.num_rows).dictionary_encode()
    other = other.set_column(other.schema.get_field_index("cluster"), "cluster", names.cast(other["cluster"].type))
    lemons = find_lemons(pa.concat_tables([fleet(9, slow=[7]), other]))
    assert lemons["cluster"].to_pylist() == ["prod"]


@given(st.integers(1, 40), st.data(), st.floats(0.001, 0.9))
def test_the_binomial_tail_is_the_sum_of_its_terms(of, data, rate):
    bad = data.draw(st.integers(0, of))
    exact = sum(math.comb(of, k) * rate**k * (1 - rate) ** (of - k) for k in range(bad, of + 1))
    assert binomial_tail(bad, of, rate) == pytest.approx(exact, rel=1e-6, abs=1e-12)


@given(st.integers(1, 12), st.floats(0.01, 20))
def test_the_poisson_tail_is_the_sum_of_its_terms(bad, expected):
    exact = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(bad, 120))
    assert poisson_tail(bad, expected) == pytest.approx(exact, rel=1e-4)
