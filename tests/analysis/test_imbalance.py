"""Compute time against load: a planted relation is found, its absence too, and silence stays silence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_tables import SimulatedView, simulated

from perfkit.analysis.calls import CALLS, MEMBERS
from perfkit.analysis.imbalance import expert_imbalance, token_imbalance
from perfkit.analysis.layout import Layout
from perfkit.analysis.stragglers import stragglers
from perfkit.simulate import Mesh, parse_fault

RANKS, STEPS = 8, 6


def view(calls=None, members=None, roles=("ep",), role_of=None):
    return SimpleNamespace(
        layout=Layout(roles=list(roles), role_of=role_of or dict.fromkeys(range(RANKS), "all")),
        calls=CALLS.empty_table() if calls is None else calls,
        members=MEMBERS.empty_table() if members is None else members,
    )


def tables(tokens: np.ndarray, compute: np.ndarray) -> tuple[pa.Table, pa.Table]:
    """Return attribution and step records; rows are ranks, columns steps."""
    rank, step = (a.ravel() for a in np.indices(tokens.shape))
    ranks = pa.array(rank, pa.int32())
    records = pa.table({"rank": ranks, "step": step, "tokens": pa.array(tokens.ravel().astype(np.int64))})
    return pa.table({"rank": ranks, "step": step, "compute_ns": compute.ravel().astype(np.int64)}), records


def draw(seed: int, slope: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    tokens = random.integers(2_000, 8_000, (RANKS, STEPS))
    return tokens, 10_000_000 + slope * tokens + random.normal(0, noise, tokens.shape)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_relation_that_is_there_is_found_with_its_cost(seed):
    tokens, compute = draw(seed, slope=2_000, noise=100_000)
    found = token_imbalance(view(), *tables(tokens, compute))
    assert found.verdict == "load"
    wanted = 2_000 * float((tokens.max(axis=0) - tokens.mean(axis=0)).sum())
    assert found.cost_ns == pytest.approx(wanted, rel=0.05)
    assert "compute time follows sequence length: r = 1.00" in found.sentence


def test_no_relation_is_rarely_taken_for_one():
    verdicts = [token_imbalance(view(), *tables(*draw(seed, slope=0, noise=1e6))).verdict for seed in range(200)]
    assert set(verdicts) <= {"no", "load"}
    assert verdicts.count("load") <= 2


def test_a_long_step_and_a_heavy_stage_do_not_count_as_imbalance():
    """Tokens and compute grow together from step to step and from role to role, but not from rank to rank."""
    random = np.random.default_rng(3)
    stage = np.repeat([0, 1], RANKS // 2)
    base = 1_000 * (1 + np.arange(STEPS))[None, :] + 50_000 * stage[:, None]
    tokens = base + random.integers(-200, 200, (RANKS, STEPS))
    compute = 1_000 * base + random.normal(0, 100_000, base.shape)
    roles = {rank: f"pp{stage[rank]}" for rank in range(RANKS)}
    assert token_imbalance(view(role_of=roles), *tables(tokens, compute)).verdict == "no"
    assert np.corrcoef(tokens.ravel(), compute.ravel())[0, 1] > 0.99


def test_tokens_that_nobody_recorded_are_not_recorded():
    steps, records = tables(*draw(0, 1, 1))
    empty = records.set_column(2, "tokens", pa.nulls(len(records), pa.int64()))
    for one in (None, records.slice(0, 0), empty):
        found = token_imbalance(view(), steps, one)
        assert found.verdict == "not recorded"
        assert found.r is None
        assert "not recorded" in found.sentence


def test_the_same_tokens_everywhere_are_even_and_two_pairs_are_too_few():
    compute = draw(1, 0, 1e5)[1]
    assert token_imbalance(view(), *tables(np.full((RANKS, STEPS), 4_096), compute)).verdict == "even"
    assert token_imbalance(view(), *tables(np.array([[1], [2]]), np.array([[1], [2]]))).verdict == "too few"


def exchanges(load: np.ndarray, recorded: bool = True) -> tuple[pa.Table, pa.Table]:
    """Return a dispatch and a combine per rank and step; `load` is what its experts receive."""
    rows = [
        {"rank": r, "step": s, "op": "all_to_all", "in_bytes": own, "out_bytes": got if recorded else None}
        for (r, s), received in np.ndenumerate(load)
        for own, got in ((4_096, int(received)), (int(received), 4_096))
    ]
    calls = pa.Table.from_pylist(rows, schema=CALLS)
    nothing = np.zeros(len(rows), np.int64)
    return calls, pa.table(dict.fromkeys(MEMBERS.names, nothing)).cast(MEMBERS)


def test_experts_that_receive_more_compute_longer():
    load, compute = draw(5, slope=500, noise=50_000)
    load[2] += 8_000
    compute[2] += 500 * 8_000
    steps, _ = tables(load, compute)
    found = expert_imbalance(view(*exchanges(load)), steps)
    assert found.verdict == "load"
    assert found.worst_rank == 2
    surplus = 2 * float((load.max(axis=0) - load.mean(axis=0)).sum())  # a token goes there and comes back
    assert found.cost_ns == pytest.approx(250 * surplus, rel=0.1)


def test_exchanges_without_sizes_or_of_other_groups_are_not_recorded():
    load, compute = draw(5, 1, 1)
    steps, _ = tables(load, compute)
    assert expert_imbalance(view(*exchanges(load, recorded=False)), steps).verdict == "not recorded"
    assert expert_imbalance(view(*exchanges(load), roles=("world",)), steps).verdict == "not recorded"
    assert expert_imbalance(view(), steps).verdict == "not recorded"


def test_a_simulated_hot_expert_is_found_and_a_healthy_job_is_even():
    large = {"hidden": 1024, "ffn": 4096, "head_dim": 128, "seq_len": 2048, "steps": 4, "mesh": Mesh(dp=4, ep=4)}
    hot = SimulatedView(simulated(faults=(parse_fault("hot-expert:2:2x"),), **large))
    found = expert_imbalance(hot, hot.detail("attribution"))
    assert (found.verdict, found.worst_rank) == ("load", 2)
    assert found.compute_ratio > 1.1
    assert found.cost_ns > 0
    table = stragglers(hot, hot.detail("attribution"), hot.detail("idle"), loads=[found])
    assert table.to_pylist()[0]["cause"] == "compute: experts"
    well = SimulatedView(simulated(**large))
    assert expert_imbalance(well, well.detail("attribution")).verdict == "even"
