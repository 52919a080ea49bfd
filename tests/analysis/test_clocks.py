"""Clocks of hosts on one time line: offset, drift, jumps, devices that are off, and what cannot be aligned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfkit.analysis.clock_fit import fit_clock, scatter
from perfkit.analysis.clocks import Clocks, align_clocks
from perfkit.analysis.matching import match_calls
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.simulation import Simulation
from tests.analysis.job_cases import EPOCH, cached_view, call, calls_table, simulated_view

MESHES = (Mesh(dp=16), Mesh(dp=4, tp=2, pp=2), Mesh(fsdp=8, tp=4), Mesh(dp=2, fsdp=4, tp=2))


def errors(sim: Simulation, clocks: Clocks) -> np.ndarray:
    """Return the error of every clock at five moments, over its uncertainty."""
    length = int(max(times.max() for times in sim.times))
    moments = np.linspace(0, length, 5).astype(np.int64)
    reference = clocks.hosts[0].ranks[0]
    found = []
    for host in clocks.hosts[1:]:
        rank = host.ranks[0]
        got = clocks.align(np.full(5, rank), sim.job.to_local(moments, rank))
        assert clocks.u_ns is not None
        found.append(np.abs(got - sim.job.to_local(moments, reference)) / clocks.u_ns)
    return np.concatenate(found)


def coverage(seeds: range, *, hosts: bool) -> float:
    inside = []
    for seed in seeds:
        job = Job(mesh=MESHES[seed % len(MESHES)], steps=3, layers=2, micro_batches=2, seed=seed)
        sim, view = simulated_view(job, hosts=hosts)
        inside.append(errors(sim, view.clock) <= 2)
    return float(np.mean(np.concatenate(inside)))


@pytest.mark.parametrize("hosts", [True, False], ids=["known hosts", "every rank its own clock"])
def test_simulated_clocks_lie_within_twice_the_uncertainty(hosts):
    assert coverage(range(4), hosts=hosts) >= 0.95


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_simulated_clocks_lie_within_twice_the_uncertainty_200_times():
    assert coverage(range(100), hosts=True) >= 0.95
    assert coverage(range(100, 200), hosts=False) >= 0.95


def test_the_uncertainty_is_of_the_size_of_the_noise():
    _, view = cached_view(Job(mesh=Mesh(dp=4, tp=2, pp=2), steps=3, layers=4, micro_batches=4, seed=4))
    assert view.clock.aligned
    assert view.clock.u_ns is not None
    assert view.clock.u_ns < 10_000  # ends differ by up to 1.5 µs, clocks by up to 4 ms


# ------------------------------------------------------------------ one pair of clocks


def seen(number: int, drift: float, noise: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    dice = np.random.default_rng(seed)
    time = EPOCH + np.cumsum(dice.integers(10**6, 10**8, number))
    return time, (1_000_000 + drift * (time - EPOCH)).astype(np.int64) + dice.integers(-noise, noise, number)


def test_offset_and_drift_are_found_among_outliers():
    time, difference = seen(200, 15e-6)
    difference[::7] += 3_000_000  # collectives that ended late on one side
    fit = fit_clock(time, difference)
    assert len(fit.pieces) == 1
    assert fit.pieces[0].drift == pytest.approx(15e-6, rel=0.02)
    want = 1_000_000 + 15e-6 * (time - EPOCH)
    assert np.abs(fit.at(time) - want).max() < 500
    assert fit.u_ns < 1_500


def test_a_clock_that_jumps_is_aligned_before_and_after():
    time, difference = seen(120, 0.0)
    difference[70:] += 25_000_000
    fit = fit_clock(time, difference)
    assert [round((b.offset_ns - a.offset_ns) / 1e6) for a, b in zip(fit.pieces, fit.pieces[1:], strict=False)] == [25]
    assert np.abs(fit.at(time) - difference).max() < 1_000


def test_noise_alone_is_no_jump():
    for seed in range(20):
        assert len(fit_clock(*seen(100, 5e-6, noise=20_000, seed=seed)).pieces) == 1


def test_few_points_have_no_drift():
    time, difference = seen(4, 0.0)
    assert fit_clock(time, difference).pieces[0].drift == 0.0


def test_scatter_is_the_standard_deviation_of_normal_noise():
    values = np.random.default_rng(1).normal(0, 1000, 20_000).astype(np.int64)
    assert scatter(values) == pytest.approx(1000, rel=0.05)


# ------------------------------------------------------------------ whole jobs, by hand


def job_of(offsets: dict[int, int], number: int = 12, groups: tuple[tuple[int, ...], ...] | None = None) -> Any:
    """Return calls of ranks whose clocks show `offsets` more; groups take turns."""
    groups = groups or (tuple(offsets),)
    rows = []
    for k in range(number):
        for g, group in enumerate(groups):
            end = 1_000_000 * (len(groups) * k + g + 1)
            for rank in group:
                text = str(list(group)).replace(" ", "")
                rows.append(
                    call(rank, end - 50_000 + offsets[rank], end + offsets[rank] + 100 * (rank % 3), step=k,
                         group=str(g), group_ranks=text, group_size=len(group))
                )  # fmt: skip
    return calls_table(rows)


def aligned(offsets: dict[int, int], hosts: dict[int, str | None], **more: Any) -> Clocks:
    calls = job_of(offsets, **more)
    return align_clocks(calls, match_calls(calls, list(offsets), len(offsets)).instance, hosts)


def test_hosts_that_never_meet_are_aligned_along_a_third():
    clocks = aligned({0: 0, 1: 5_000_000, 2: -3_000_000}, {0: "a", 1: "b", 2: "c"}, groups=((0, 1), (1, 2)))
    assert clocks.aligned
    ranks = np.array([0, 1, 2])
    got = clocks.align(ranks, EPOCH + np.array([0, 5_000_000, -3_000_000]))
    assert np.abs(got - EPOCH).max() < 1_000


def test_what_shares_no_collectives_is_not_aligned_and_said():
    clocks = aligned(dict.fromkeys(range(4), 0), {0: "a", 1: "a", 2: "b", 3: "b"}, groups=((0, 1), (2, 3)))
    assert not clocks.aligned
    assert clocks.hosts[1].u_ns is None
    assert any("2-3 are not aligned" in note for note in clocks.notes)


def test_one_host_is_aligned_by_itself():
    clocks = aligned(dict.fromkeys(range(4), 0), dict.fromkeys(range(4), "a"))
    assert clocks.aligned
    assert clocks.corrections == {}
    assert clocks.u_ns is not None
    assert clocks.u_ns < 1_000


def test_a_device_whose_time_stamps_are_off_gets_a_correction_that_is_reported():
    clocks = aligned({0: 0, 1: 0, 2: 30_000}, dict.fromkeys(range(3), "a"))
    assert clocks.corrections[2] == pytest.approx(30_000, abs=500)
    assert any("constant" in note for note in clocks.notes)
    got = clocks.align(np.array([0, 2]), EPOCH + np.array([0, 30_000]))
    assert abs(int(got[1] - got[0])) < 500


def test_cpu_ranks_of_one_host_read_one_clock():
    calls = job_of({0: 0, 1: 900_000})
    rows = [{**row, "device": None, "group_ranks": "[0,1]"} for row in calls.to_pylist()]
    calls = calls_table(rows)
    clocks = align_clocks(calls, match_calls(calls, [0, 1], 2).instance, {0: "a", 1: "a"})
    assert clocks.corrections == {}
    assert clocks.align(np.array([1]), np.array([EPOCH]))[0] == EPOCH


def test_a_jump_is_said_with_its_size():
    rows = []
    for row in job_of({0: 0, 1: 0}, number=30).to_pylist():
        late = row["rank"] == 1 and row["step"] >= 15
        rows.append({**row, **{n: row[n] + (8_000_000 if late else 0) for n in ("start_ns", "end_ns")}})
    calls = calls_table(rows)
    clocks = align_clocks(calls, match_calls(calls, [0, 1], 2).instance, {0: "a", 1: "b"})
    assert any("jumps" in note and "+8.000 ms" in note for note in clocks.notes)
    assert clocks.u_ns is not None
    assert clocks.u_ns < 1_000


def jumping(rank: int, hosts: dict[int, str | None], by: int = 50_000_000) -> Clocks:
    """Return the clocks of a job of which one rank's time stamps step half way."""
    rows = []
    for row in job_of(dict.fromkeys(hosts, 0), number=30).to_pylist():
        late = row["rank"] == rank and row["step"] >= 15
        rows.append({**row, **{n: row[n] + (by if late else 0) for n in ("start_ns", "end_ns")}})
    calls = calls_table(rows)
    return align_clocks(calls, match_calls(calls, list(hosts), len(hosts)).instance, hosts)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_that_jumps_inside_its_host_gets_a_clock_of_its_own(ranks):
    clocks = jumping(1, dict.fromkeys(range(ranks), "a"))
    assert any("jumps" in note and "50.000 ms" in note for note in clocks.notes)
    assert clocks.corrections == {}
    moments = EPOCH + np.array([1_000_000, 29_000_000])
    other = clocks.align(np.array([0, 0]), moments)
    mine = clocks.align(np.array([1, 1]), moments + np.array([0, 50_000_000]))
    assert np.abs(mine - other).max() < 2_000
    assert clocks.u_ns is not None
    assert clocks.u_ns < 2_000


def test_a_rank_that_is_off_all_the_time_does_not_jump():
    clocks = aligned({0: 0, 1: 0, 2: 3_600_000_000_000, 3: 0}, dict.fromkeys(range(4), "a"), number=30)
    assert len(clocks.hosts) == 1
    assert any("of rank 2 differ" in note and "3,600 s" in note for note in clocks.notes)
