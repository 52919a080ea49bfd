from __future__ import annotations

import numpy as np
import pytest

from perfkit.errors import UnknownHardware, UsageError
from perfkit.simulate import Job, Mesh, resolve_hardware, simulate


def test_a_mesh_is_read_and_must_fit_the_ranks() -> None:
    assert Mesh.parse("dp=4,tp=2", 8) == Mesh(dp=4, tp=2)
    assert Mesh.parse("tp=2", 8) == Mesh(dp=4, tp=2)
    assert Mesh.parse("", 3) == Mesh(dp=3)
    assert Mesh.parse("fsdp=2,pp=2,vpp=2", 4) == Mesh(fsdp=2, pp=2, vpp=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("dp=3", "3 ranks, not 8"), ("xp=2", "cannot read"), ("dp=2,dp=4", "cannot read"), ("dp=8,ep=3", "divide"),
     ("dp=8,vpp=2", "needs pp"), ("tp=0", "at least 1")],
)  # fmt: skip
def test_a_bad_mesh_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Mesh.parse(text, 8)


def test_groups_follow_the_order_of_ranks() -> None:
    mesh = Mesh(dp=2, fsdp=2, tp=2, pp=2, ep=4)
    members = {role: mesh.members(role)[5].tolist() for role in ("tp", "fsdp", "dp", "ep", "pp", "world")}
    assert members == {
        "tp": [4, 5], "fsdp": [5, 7], "dp": [1, 5], "ep": [1, 3, 5, 7], "pp": [5, 13], "world": list(range(16)),
    }  # fmt: skip
    for role in members:
        for rank, group in enumerate(mesh.members(role)):
            assert rank in group
            assert all((mesh.members(role)[other] == group).all() for other in group)


@pytest.mark.parametrize(
    ("values", "reason"),
    [({"layers": 3, "mesh": Mesh(pp=2)}, "do not divide"), ({"steps": 0}, "at least 1"),
     ({"mesh": Mesh(tp=3)}, "do not divide"), ({"mesh": Mesh(dp=3, ep=3)}, "experts"),
     ({"mesh": Mesh(pp=2, vpp=2), "micro_batches": 3}, "interleaved")],
)  # fmt: skip
def test_an_impossible_job_is_refused_with_its_reason(values: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Job(**values)


def test_ranks_of_a_host_share_a_clock_and_clocks_never_run_backwards() -> None:
    job = Job(mesh=Mesh(dp=16), clock_drift_ppb=500_000, seed=4)
    times = np.arange(0, 10**9, 977)
    clocks = [job.to_local(times, rank) for rank in range(16)]
    assert all((clock == clocks[0]).all() for clock in clocks[:8])
    assert (clocks[8] != clocks[0]).all()
    assert all((np.diff(clock) > 0).all() for clock in clocks)
    offset, drift = (int(values[1]) for values in job.clocks)
    ideal = Job(mesh=job.mesh, clock_offset_ns=0, clock_drift_ppb=0).to_local(times, 8)
    error = clocks[8] - ideal - offset
    assert abs(int(error[-1]) - times[-1] * drift / 1e9) <= 1


def test_hardware_has_a_name_or_an_error_that_lists_names() -> None:
    assert resolve_hardware("NVIDIA H100 80GB HBM3") is resolve_hardware("h100")
    with pytest.raises(UnknownHardware, match="a100"):
        resolve_hardware("h1")


def test_hardware_may_be_any_device_of_the_registry_that_is_known_well_enough() -> None:
    model = resolve_hardware("nvidia b200")
    assert (model.device, model.peak_flops, model.link_bandwidth) == ("NVIDIA B200", 2250e12, 900e9)
    assert simulate(Job(hardware=model, steps=1, layers=1)).truth()["mfu"]["device"] == "NVIDIA B200"
    assert resolve_hardware("AMD Instinct MI300X").link_bandwidth == 448e9
    with pytest.raises(UnknownHardware, match="V100-SXM2, V100-PCIe"):
        resolve_hardware("V100")
    with pytest.raises(UnknownHardware, match="no bf16 or fp16 peak of 'GH200'"):
        resolve_hardware("GH200")


@pytest.mark.parametrize(
    "mesh", [Mesh(dp=2, fsdp=2, tp=2, pp=2, ep=2), Mesh(fsdp=4, ep=4), Mesh(dp=4, ep=2, pp=3)], ids=str
)
def test_coordinates_are_positions_in_the_groups(mesh: Mesh) -> None:
    for role in ("pp", "dp", "fsdp", "tp", "ep"):
        members = mesh.members(role)
        for rank in range(mesh.world_size):
            assert members[rank].tolist().index(rank) == mesh.coordinates(rank)[role]
