"""Calls without a group are those of the whole job, until they cannot be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from perfkit.analysis.job import JobView, view_job
from perfkit.analysis.timeline import ints
from perfkit.simulate.faults import parse_fault
from perfkit.simulate.job import Job, Mesh
from perfkit.simulate.simulation import simulate
from tests.analysis.job_cases import simulated_parts


def without_groups(mesh: Mesh, *, hosts: bool = True, **more: Any) -> JobView:
    """Look at a job whose traces name no process group and number no call."""
    sim = simulate(Job(mesh=mesh, steps=4, seed=3, **more), flows=False)
    parts = simulated_parts(sim)
    for part in parts:
        for name in ("group", "group_desc", "group_ranks", "group_size", "seq", "peer"):
            at = part.calls.column_names.index(name)
            part.calls = part.calls.set_column(at, name, pa.nulls(len(part.calls), part.calls.schema.field(name).type))
    known = {rank: sim.identity.host(rank) if hosts else None for rank in sim.ranks}
    return view_job(parts, hosts=known, world_size=mesh.world_size)


@pytest.mark.parametrize("hosts", [True, False])
@pytest.mark.parametrize(
    "mesh", [Mesh(dp=8), Mesh(fsdp=8), Mesh(tp=8), Mesh(dp=8, ep=8)], ids=["dp", "fsdp", "tp", "ep"]
)
def test_a_job_of_one_group_needs_no_name_for_it(mesh: Mesh, hosts: bool) -> None:
    view = without_groups(mesh, hosts=hosts)
    assert view.unmatched == 0
    assert view.clock.aligned
    assert not any("process groups" in note for note in view.notes)


@pytest.mark.parametrize(
    "mesh", [Mesh(tp=4, dp=2), Mesh(tp=2, pp=4), Mesh(pp=4, dp=2)], ids=["tp4-dp2", "tp2-pp4", "pp4-dp2"]
)
def test_groups_that_nobody_named_are_not_taken_for_the_whole_job(mesh: Mesh) -> None:
    # (groups that run in step with each other give no sign, and nothing large is wrong with their sum)
    view = without_groups(mesh, layers=4, faults=(parse_fault("slow-rank:5:1.3x"),))
    assert len(view.instances) == 0
    assert any("do not name the process groups" in note for note in view.notes)
    assert view.layout is None or not view.layout.text
    # nobody is blamed for what cannot be known, and no time is lost
    assert view.blame.caused_ns == 0
    steps = view.steps
    assert ints(steps["unsplit_ns"]).sum() == ints(steps["exposed_comm_ns"]).sum() > 0
