"""Degrees, roles and coordinates: from names, from operations, and against the simulator's own mesh."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_tables import calls_of, group_table, groups_of, simulated

from perfkit.analysis.axes import ALL_AXES, AXES, axes_of_name, mesh_coordinates, mesh_text, parse_mesh
from perfkit.analysis.calls import CALLS
from perfkit.analysis.layout import Layout, arrange
from perfkit.analysis.parallelism import infer_layout
from perfkit.errors import UsageError
from perfkit.simulate import Mesh

NO_CALLS = CALLS.empty_table()
MESHES = (
    Mesh(dp=4), Mesh(fsdp=4), Mesh(dp=2, fsdp=2), Mesh(tp=4), Mesh(dp=2, tp=2), Mesh(dp=2, fsdp=2, tp=2), Mesh(pp=2),
    Mesh(pp=4, dp=2), Mesh(pp=2, vpp=2), Mesh(pp=4, vpp=2, tp=2), Mesh(dp=4, ep=2), Mesh(pp=2, dp=2, tp=2),
    Mesh(pp=2, vpp=2, dp=2, ep=2),
)  # fmt: skip


def degrees_of(mesh: Mesh) -> dict[str, int]:
    return {axis: getattr(mesh, axis) for axis in ALL_AXES if getattr(mesh, axis, 1) > 1}


# ------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("default_pg", ("world",)), ("mesh_tp", ("tp",)), ("mesh_dp_shard", ("fsdp",)), ("mesh_dp_replicate", ("dp",)),
        ("mesh_dp_shard_cp", ("fsdp", "cp")), ("mesh_dp_cp", ("dp", "cp")), ("mesh_pp", ("pp",)), ("mesh_ep", ("ep",)),
        ("replicate", ("dp",)), ("mesh_shard", ("fsdp",)), ("mesh_fsdp", ("fsdp",)), ("tp:0", ("tp",)),
        ("TENSOR_MODEL_PARALLEL_GROUP", ("tp",)), ("PIPELINE_MODEL_PARALLEL_GROUP", ("pp",)),
        ("DATA_PARALLEL_GROUP", ("dp",)), ("DATA_PARALLEL_GROUP_GLOO", ("dp",)),
        ("DATA_PARALLEL_GROUP_WITH_CP", ("dp", "cp")), ("CONTEXT_PARALLEL_GROUP", ("cp",)),
        ("MODEL_PARALLEL_GROUP", ("pp", "tp")), ("EXPERT_MODEL_PARALLEL_GROUP", ("ep",)),
        ("EXPERT_TENSOR_PARALLEL_GROUP", ("etp",)), ("EXPERT_DATA_PARALLEL_GROUP", ("edp",)),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", ("etp", "ep")),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", ("tp", "cp")), ("sequence_parallel_group", ("cp",)),
        ("undefined", None), ("", None), (None, None), ("EMBEDDING_GROUP", None), ("mesh_dp_shard_mod_ep", None),
        ("17", None), ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", None), ("mesh_dim_0", None), ("step", None),
    ],
)  # fmt: skip
def test_a_name_says_its_axes_or_nothing(name, axes):
    assert axes_of_name(name) == axes


# ------------------------------------------------------------------ against the simulator


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_named_groups_give_the_simulated_mesh_without_a_doubt(mesh):
    sim = simulated(mesh)
    layout = infer_layout(groups_of(sim), calls_of(sim), world_size=mesh.world_size, ranks=list(sim.ranks))
    assert {axis: n for axis, n in layout.degrees.items() if n > 1} == degrees_of(mesh)
    assert layout.notes == []
    role_of_name = {g.name: g.role for r in sim.ranks for g in sim.identity.groups(r).values()}
    assert layout.roles == [role_of_name[name] for name in groups_of(sim)["name"].to_pylist()]
    for rank in sim.ranks:
        groups = sim.identity.groups(rank)
        for axis in degrees_of(mesh):
            assert layout.coordinates[rank][axis] == groups[axis].ranks.index(rank)
        assert layout.role_of[rank] == (f"pp{rank // mesh.stage_size}" if mesh.pp > 1 else "all")


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_rank_sets_and_operations_are_enough(mesh):
    sim = simulated(mesh, layers=2 * mesh.pp * mesh.vpp)
    groups, calls = groups_of(sim, named=False), calls_of(sim, named=False)
    layout = infer_layout(groups, calls, world_size=mesh.world_size, ranks=list(sim.ranks))
    assert {axis: n for axis, n in layout.degrees.items() if n > 1} == degrees_of(mesh)
    assert all(how != "names" for how in layout.evidence.values())
    if mesh.pp > 1:
        receives = {g for g, ranks in enumerate(groups["ranks"].to_pylist()) if len(ranks) == mesh.pp}
        assert receives & layout.pipeline_gids
        assert [layout.role_of[r] for r in sim.ranks] == [f"pp{r // mesh.stage_size}" for r in sim.ranks]


def test_two_of_many_ranks_tell_the_degrees_and_their_own_coordinates():
    sim = simulated(Mesh(pp=2, dp=4, tp=4))
    layout = infer_layout(groups_of(sim, [5, 22]), calls_of(sim, [5, 22]), world_size=32, ranks=[5, 22])
    assert layout.degrees == {"pp": 2, "dp": 4, "tp": 4}
    assert layout.coordinates == {
        5: {"pp": 0, "dp": 1, "fsdp": 0, "cp": 0, "tp": 1}, 22: {"pp": 1, "dp": 1, "fsdp": 0, "cp": 0, "tp": 2},
    }  # fmt: skip


# ------------------------------------------------------------------ frameworks, contradictions


def lines(world, size, stride):
    """Return the rank sets of an axis."""
    return np.arange(world).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size).tolist()


def test_megatron_groups_agree_with_each_other():
    # 16 ranks: tp 2, cp 2, dp 2, pp 2
    groups = [("0", "default_pg", list(range(16)))]
    for desc, size, stride in (
        ("TENSOR_MODEL_PARALLEL_GROUP", 2, 1), ("CONTEXT_PARALLEL_GROUP", 2, 2), ("DATA_PARALLEL_GROUP", 2, 4),
        ("DATA_PARALLEL_GROUP_GLOO", 2, 4), ("PIPELINE_MODEL_PARALLEL_GROUP", 2, 8),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", 4, 1), ("EXPERT_MODEL_PARALLEL_GROUP", 2, 1),
    ):  # fmt: skip
        groups += [("1", desc, ranks) for ranks in lines(16, size, stride)]
    groups += [("2", "DATA_PARALLEL_GROUP_WITH_CP", [b, b + 2, b + 4, b + 6]) for b in (0, 1, 8, 9)]
    groups += [("3", "EMBEDDING_GROUP", [r, r + 8]) for r in range(8)]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=16, ranks=range(16))
    assert layout.degrees == {"pp": 2, "dp": 2, "cp": 2, "tp": 2, "ep": 2}
    assert layout.notes == []
    assert layout.roles[-1] == "EMBEDDING_GROUP"
    assert "dp+cp" in layout.roles
    assert layout.coordinates[13] == {"pp": 1, "dp": 1, "fsdp": 0, "cp": 0, "tp": 1, "ep": 1}


def test_torchtitan_flattened_meshes_are_read_as_what_they_are():
    # 8 ranks: dp_replicate 2, dp_shard 2, tp 2; `dp` and `dp_cp` are both data axes flattened
    groups = [("0", "default_pg", list(range(8)))]
    for desc, size, stride in (("mesh_tp", 2, 1), ("mesh_dp_shard", 2, 2), ("mesh_dp_replicate", 2, 4)):
        groups += [("1", desc, ranks) for ranks in lines(8, size, stride)]
    groups += [("2", desc, [b, b + 2, b + 4, b + 6]) for desc in ("mesh_dp_cp",) for b in (0, 1)]
    groups += [("3", "mesh_dp_shard_cp", ranks) for ranks in lines(8, 2, 2)]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=8, ranks=range(8))
    assert {a: n for a, n in layout.degrees.items() if n > 1} == {"dp": 2, "fsdp": 2, "tp": 2}
    assert layout.degrees["cp"] == 1
    assert layout.notes == []


def test_a_dp_group_that_holds_the_shards_is_both_axes():
    groups = [("1", "mesh_dp_shard", ranks) for ranks in lines(8, 4, 1)] + [("2", "mesh_dp", list(range(8)))]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=8, ranks=range(8))
    assert layout.degrees == {"dp": 2, "fsdp": 4}
    assert layout.roles[-1] == "dp+fsdp"


def test_data_parallelism_without_a_group_is_what_is_left_and_said():
    groups = [("1", "mesh_tp", ranks) for ranks in lines(8, 2, 1)]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=8, ranks=range(8))
    assert layout.degrees == {"dp": 4, "tp": 2}
    assert layout.evidence == {"dp": "division", "tp": "names"}
    assert any("dp=4 has no group of its own" in note for note in layout.notes)


def test_a_product_that_is_not_the_world_size_is_said_and_nothing_is_invented():
    groups = [("1", "mesh_tp", [0, 1]), ("2", "mesh_dp", [0, 2, 4])]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=8, ranks=[0])
    assert any("a mesh of 6 ranks" in note and "world size is 8" in note for note in layout.notes)
    assert layout.coordinates[0] == {"pp": 0, "dp": 0, "fsdp": 0, "cp": 0, "tp": 0}


def test_groups_that_contradict_each_other_are_said():
    groups = [("1", "mesh_tp", [0, 1]), ("1", "mesh_tp", [1, 2]), ("1", "mesh_tp", [2, 3, 4, 5])]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=4, ranks=range(4))
    text = " | ".join(layout.notes)
    assert "names rank 5, but the world size is 4" in text
    assert "groups of different sizes (2, 4)" in text
    assert "rank 1 is in two different groups" in text


def test_an_irregular_mesh_is_placed_by_positions_and_said():
    groups = [("1", "mesh_tp", [0, 3]), ("1", "mesh_tp", [1, 2]), ("2", "mesh_dp", [0, 1]), ("2", "mesh_dp", [2, 3])]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=4, ranks=range(4))
    assert any("do not lie on a regular mesh" in note for note in layout.notes)
    assert layout.coordinates[3]["tp"] == 1


def test_another_order_of_the_axes_is_recognised_and_said():
    groups = [("1", "mesh_dp", ranks) for ranks in lines(8, 4, 1)] + [("2", "mesh_tp", r) for r in lines(8, 2, 4)]
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=8, ranks=range(8))
    assert any("fastest first: dp tp" in note for note in layout.notes)
    assert layout.coordinates[6] == {"pp": 0, "dp": 2, "fsdp": 0, "cp": 0, "tp": 1}


def test_no_groups_at_all_is_not_known_and_said():
    layout = infer_layout(group_table([]), NO_CALLS, world_size=8, ranks=range(8))
    assert layout.degrees == {}
    assert layout.role_of[3] is None
    assert layout.text is None
    assert any("no recorded process group tells" in note for note in layout.notes)


def reduces(sizes, ops=("all_reduce",), steps=1):
    """Return all-reduces (and others) on the default group of 8 ranks, seen from rank 0."""
    rows = [
        {
            "rank": 0,
            "op": op,
            "step": step,
            "in_bytes": size,
            "group_ranks": "[0,1,2,3,4,5,6,7]",
            "start_ns": i,
            "end_ns": i + 1,
        }
        for step in range(steps)
        for i, size in enumerate(sizes)
        for op in ops
    ]
    return CALLS.empty_table().from_pylist(rows, schema=CALLS)


@pytest.mark.parametrize(
    ("calls", "degrees"),
    [
        (reduces([8192, 9000] * 36), {"tp": 8}), (reduces([25 << 20] * 40), {}),
        (reduces([25 << 20, 24 << 20, 3 << 20]), {"dp": 8}),
        (reduces([None] * 40), {}), (reduces([4096] * 40, ops=("all_to_all",)), {}),
        (reduces([1, 2, 3], ops=("all_to_all", "all_reduce")), {"dp": 8}),
        (reduces([1, 2, 3], ops=("all_gather", "reduce_scatter")), {"fsdp": 8}),
    ],
)  # fmt: skip
def test_one_step_on_the_default_group_alone_tells_only_what_it_can(calls, degrees):
    groups = group_table([("0", "default_pg", range(8))])
    layout = infer_layout(groups, calls, world_size=8, ranks=[0])
    assert layout.degrees == degrees
    assert layout.notes


def test_a_ring_that_only_goes_round_is_no_pipeline():
    rows = [
        {"rank": r, "op": op, "peer": peer, "group_ranks": "[0,1,2,3]", "start_ns": 0, "end_ns": 1}
        for r in range(4)
        for op, peer in (("send", (r + 1) % 4), ("recv", (r - 1) % 4))
    ]
    calls = CALLS.empty_table().from_pylist(rows, schema=CALLS)
    layout = infer_layout(group_table([(None, None, range(4))]), calls, world_size=4, ranks=range(4))
    assert "pp" not in layout.degrees


# ------------------------------------------------------------------ the user's mesh


def test_the_users_mesh_overrules_and_contradictions_are_said():
    sim = simulated(Mesh(dp=2, tp=2))
    layout = infer_layout(
        groups_of(sim), calls_of(sim), world_size=4, ranks=list(sim.ranks), mesh="tp=4"
    )  # fmt: skip
    assert layout.source == "given"
    assert layout.degrees == {"tp": 4}
    assert any("'mesh_dp' is dp by its name or use, but does not lie along the axes" in note for note in layout.notes)
    assert [layout.coordinates[r]["tp"] for r in sim.ranks] == [0, 1, 2, 3]


def test_the_users_mesh_names_groups_that_have_no_name():
    sim = simulated(Mesh(pp=2, dp=2, tp=2))
    groups = groups_of(sim, named=False)
    layout = infer_layout(groups, NO_CALLS, world_size=8, ranks=list(sim.ranks), mesh="pp=2,dp=2,tp=2")
    by_ranks = dict(zip(map(tuple, groups["ranks"].to_pylist()), layout.roles, strict=True))
    assert by_ranks[0, 1] == "tp"
    assert by_ranks[0, 2] == "dp"
    assert by_ranks[0, 4] == "pp"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp=4,tp=3", "a mesh of 12 ranks"), ("dp=4,dp=2", "twice"), ("dp=four", "cannot read"), ("", "empty"),
        ("qq=8", "cannot read"), ("dp=0", "at least 1"), ("tp=8,ep=2", "ep=2 does not divide"),
    ],
)  # fmt: skip
def test_a_mesh_that_cannot_be_is_refused_with_the_reason(text, message):
    with pytest.raises(UsageError, match=message):
        parse_mesh(text, world_size=8)


def test_a_mesh_may_use_the_words_of_torchtitan():
    assert parse_mesh("dp_replicate=2 dp_shard=4,tensor=2", world_size=16) == {"dp": 2, "fsdp": 4, "tp": 2}
    assert mesh_text({"dp": 2, "fsdp": 4, "tp": 1}) == "dp=2 fsdp=4"


degrees = st.fixed_dictionaries({axis: st.integers(1, 4) for axis in AXES})


@settings(max_examples=60, deadline=None)
@given(degrees, st.data())
def test_any_regular_mesh_is_found_again_from_the_groups_of_any_of_its_ranks(shape, data):
    world = math.prod(shape.values())
    at = mesh_coordinates(shape, np.arange(world))
    seen = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=5))
    groups = []
    for axis in AXES:
        for rank in seen:
            others = np.all([at[o] == at[o][rank] for o in AXES if o != axis], axis=0)
            groups.append(("1", f"mesh_{axis}", np.flatnonzero(others).tolist()))
    layout = infer_layout(group_table(groups), NO_CALLS, world_size=world, ranks=sorted(seen))
    assert {a: layout.degrees.get(a, 1) for a in AXES} == shape
    assert not any("mesh" in note and "world size" in note for note in layout.notes)
    if layout.degrees:
        for rank in seen:
            assert {a: layout.coordinates[rank][a] for a in AXES} == {a: int(at[a][rank]) for a in AXES}


# ------------------------------------------------------------------ the grid


@settings(max_examples=60, deadline=None)
@given(degrees)
def test_every_rank_has_a_place_of_its_own_in_a_full_grid(shape):
    world = math.prod(shape.values())
    at = mesh_coordinates(shape, np.arange(world))
    layout = Layout(degrees=shape, coordinates={r: {a: int(at[a][r]) for a in at} for r in range(world)})
    grid = arrange(layout, range(world))
    places = set(zip(grid["row"].to_pylist(), grid["column"].to_pylist(), strict=True))
    assert len(places) == world
    assert (max(grid["row"].to_pylist()) + 1) * (max(grid["column"].to_pylist()) + 1) == world
    assert grid.equals(arrange(layout, list(reversed(range(world)))))


def test_without_coordinates_ranks_stand_in_rows_of_their_host():
    grid = arrange(Layout(), [0, 1, 2, 3], {0: "a", 1: "a", 2: "b", 3: "b"}).to_pylist()
    assert [(g["row"], g["column"]) for g in grid] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert grid[2]["row_label"] == "rank 2"


def test_the_table_has_a_row_per_rank_and_reads_like_a_position():
    sim = simulated(Mesh(pp=2, dp=2))
    layout = infer_layout(groups_of(sim), calls_of(sim), world_size=4, ranks=list(sim.ranks))
    assert layout.text == "pp=2 dp=2"
    rows = layout.table().to_pylist()
    assert rows[3]["position"] == "pp1 dp1"
    assert rows[3]["role"] == "pp1"
    assert rows[3]["tp"] == 0
