"""How the job was split over its ranks, from its process groups and from what was exchanged on them.

    infer_layout(groups, calls, world_size=…, ranks=…, mesh="dp=4,tp=2,pp=2") -> Layout

Three witnesses, in this order: what the user says, what groups are called (torchtitan, Megatron-LM, vLLM and plain
DeviceMesh names), and which operations they carry (perfkit.analysis.group_ops). They are checked against each other:
degrees multiply to the world size, groups of one axis are as large as each other and hold a rank once, and all
groups lie along the axes of one mesh. What contradicts is said in `notes`, and the groups keep their own word.

A rank lists only the groups that it is in, so a few ranks of many tell all degrees, and where the mesh is regular
the coordinates too. Data parallelism that has no group of its own is what is left of the world size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from perfkit.analysis.axes import ALL_AXES, AXES, CHUNKS, axes_of_name, mesh_coordinates, mesh_text, parse_mesh
from perfkit.analysis.group_ops import Usage, read_usage
from perfkit.analysis.intervals import Ints
from perfkit.analysis.layout import Layout
from perfkit.analysis.mesh_fit import Found, Members, Names, axes_of_members, place_ranks

Shape = tuple[int, int]
"""Size and stride of a group."""
WORLD = ("world",)
MAX_NOTES = 20


def infer_layout(
    groups: pa.Table,
    calls: pa.Table,
    *,
    world_size: int | None,
    ranks: Sequence[int],
    mesh: str | None = None,
    gid: Ints | None = None,
) -> Layout:
    """Return degrees, roles and coordinates; `gid` says which group each call belongs to, if that is known.

    Raises `UsageError` if `mesh` cannot be read or does not fit the world size.
    """
    usage = read_usage(groups, calls, gid)
    found = _read_groups(groups)
    if world_size is None:
        world_size = next((size for size, a in zip(found.sizes, found.axes, strict=True) if a == WORLD and size), None)
    highest = max([*ranks, *(m[-1] for m in found.members if m)], default=-1)
    if world_size is not None and highest >= world_size:
        found.notes.append(f"a group or trace names rank {highest}, but the world size is {world_size}")
    pipelines = _pipelines(found, usage, world_size)
    _guess_roles(found, usage, world_size)
    if mesh is not None:
        return _given(found, parse_mesh(mesh, world_size=world_size), ranks)
    _find_degrees(found, pipelines)
    _divide(found, usage, world_size)
    coordinates = place_ranks(found, pipelines, world_size, ranks)
    return _layout(found, coordinates, ranks, "inferred")


def _read_groups(groups: pa.Table) -> Found:
    names, descs, ranks, sizes = (groups[column].to_pylist() for column in ("name", "desc", "ranks", "size"))
    members = [None if r is None else tuple(sorted({int(v) for v in r})) for r in ranks]
    return Found(
        members=members,
        sizes=[len(m) if m is not None else size for m, size in zip(members, sizes, strict=True)],
        labels=[
            d if d and d != "undefined" else n or f"group {i}"
            for i, (d, n) in enumerate(zip(descs, names, strict=True))
        ],
        axes=[axes_of_name(d) or axes_of_name(n) for d, n in zip(descs, names, strict=True)],
    )


# ------------------------------------------------------------------ roles from what groups carry


def _pipelines(found: Found, usage: Usage, world_size: int | None) -> list[Members]:
    """Return the rank sets of the pipelines; groups that carry them and have no name become `pp`."""
    if found.on("pp"):
        return found.rank_sets("pp")
    chains = usage.chains(skip={g for g, axes in enumerate(found.axes) if axes is not None and axes != WORLD})
    if chains:
        found.evidence["pp"] = "pairs"
    chain_of = {rank: set(chain) for chain in chains for rank in chain}
    for g, members in enumerate(found.members):
        inside = bool(members) and set(members or ()) <= chain_of.get((members or (-1,))[0], set())
        if found.axes[g] is None and inside and usage.is_message(g) and found.sizes[g] != world_size:
            found.axes[g] = ("pp",)
    return chains


def _guess_roles(found: Found, usage: Usage, world_size: int | None) -> None:
    """Give groups without a telling name the axis that their operations point to, all of one shape alike."""
    shapes: dict[Shape, list[int]] = {}
    for g, members in enumerate(found.members):
        if found.axes[g] is not None or members is None or len(members) < 2:
            continue
        if len(members) == world_size:
            found.axes[g] = WORLD
        else:
            shapes.setdefault((len(members), members[1] - members[0]), []).append(g)
    taken = {axes for axes in found.axes if axes is not None}
    guesses = {shape: usage.vote(same) for shape, same in shapes.items()}
    guesses |= _tell_reducers(shapes, guesses, usage, taken)
    for (size, stride), same in sorted(shapes.items(), key=lambda item: item[0][1]):
        axis = guesses[size, stride] or ""
        if (axis,) in taken:  # of two that look alike the faster one was taken; the slower one replicates
            axis = {"tp": "dp", "fsdp": "dp"}.get(axis, "")
        if not axis or (axis,) in taken:
            continue
        taken.add((axis,))
        for g in same:
            found.axes[g] = (axis,)
        found.evidence[axis] = "ops"
        found.notes.append(
            f"{axis}: {len(same)} group(s) of {size} ranks with stride {stride} have no telling name; "
            "taken for it by what they carry"
        )


def _tell_reducers(
    shapes: Mapping[Shape, list[int]], guesses: Mapping[Shape, str | None], usage: Usage, taken: set[Names]
) -> dict[Shape, str]:
    """Tell tensor from data parallelism where something can be compared.

    Of several kinds of groups that all-reduce, the one with the shortest silence is tp. One alone beside shards is tp
    if it is faster than they are, and replicates them if it is slower.
    """
    reducing = sorted((usage.pause(same), shape) for shape, same in shapes.items() if usage.is_reducing(same))
    if len(reducing) > 1 and ("tp",) not in taken:
        return {shape: "tp" if i == 0 else "dp" for i, (_, shape) in enumerate(reducing)}
    shards = [stride for (_, stride), axis in guesses.items() if axis == "fsdp"]
    if len(reducing) == 1 and shards:
        shape = reducing[0][1]
        return {shape: "tp" if shape[1] < min(shards) else "dp"}
    return {}


# ------------------------------------------------------------------ degrees


def _find_degrees(found: Found, pipelines: Sequence[Members]) -> None:
    for axis in ALL_AXES:
        sizes = Counter(size for g in found.on(axis) if (size := found.sizes[g]) is not None)
        if axis == "pp" and found.evidence.get("pp") == "pairs":  # a group may be a pair of neighbours
            sizes = Counter(len(chain) for chain in pipelines)
        if not sizes:
            continue
        found.degrees[axis] = sizes.most_common(1)[0][0]
        found.evidence.setdefault(axis, "names")
        if len(sizes) > 1:
            found.notes.append(f"{axis}: groups of different sizes ({', '.join(map(str, sorted(sizes)))})")
        counted = Counter(rank for members in found.rank_sets(axis) for rank in members)
        twice = [rank for rank, n in counted.items() if n > 1]
        if twice and found.evidence[axis] != "pairs":
            found.notes.append(f"{axis}: rank {min(twice)} is in two different groups of this axis")
    _split_data(found)
    _read_composites(found)


def _split_data(found: Found) -> None:
    """Where a `dp` group holds its ranks' `fsdp` group, it is both axes together: replicas are what is left."""
    shard_of = {rank: set(members) for members in found.rank_sets("fsdp") for rank in members}
    groups = {g: set(found.members[g] or ()) for g in found.on("dp")}
    if not groups or not shard_of or not all(shard_of.get(min(m, default=-1), {-1}) <= m for m in groups.values()):
        return
    for g, members in groups.items():
        found.axes[g] = ("fsdp",) if members == shard_of[min(members)] else ("dp", "fsdp")
    found.degrees["dp"] = max(1, found.degrees["dp"] // found.degrees["fsdp"])
    found.evidence["dp"] = "size"


def _read_composites(found: Found) -> None:
    """Learn an axis from a group over several where the others are known; the first unknown one takes it all."""
    for g, axes in enumerate(found.axes):
        size = found.sizes[g]
        if axes is None or len(axes) < 2 or size is None or not set(axes) <= set(AXES):
            continue
        if "dp" in axes and "fsdp" in found.degrees and "fsdp" not in axes:  # torchtitan's dp is both together
            found.axes[g] = axes = tuple(axis for axis in AXES if axis in (*axes, "fsdp"))
        unknown = [axis for axis in axes if axis not in found.degrees]
        known = math.prod(found.degrees[axis] for axis in axes if axis in found.degrees)
        if unknown and size % known == 0:
            found.degrees[unknown[0]] = size // known
            found.evidence[unknown[0]] = "size"
        elif size != known:
            found.notes.append(
                f"group {found.labels[g]!r} has {size} ranks, but {' × '.join(axes)} make {known} by their own groups"
            )


def _divide(found: Found, usage: Usage, world_size: int | None) -> None:
    """Check the product, and give data parallelism what is left if no group of it was seen."""
    product = math.prod(found.degrees.get(axis, 1) for axis in AXES)
    if world_size is None or product == world_size:
        return
    if world_size % product or "dp" in found.degrees or "fsdp" in found.degrees:
        found.notes.append(
            f"the groups make a mesh of {product} ranks ({mesh_text(found.degrees)}), the world size is {world_size}"
        )
        return
    if set(found.degrees) & set(AXES):
        found.degrees["dp"], found.evidence["dp"] = world_size // product, "division"
        found.notes.append(f"dp={world_size // product} has no group of its own: it is what is left of {world_size}")
        return
    world = [g for g, axes in enumerate(found.axes) if axes == WORLD and usage.carries(g)]
    guesses = ["fsdp" if usage.shards(g) else usage.reduces(g) for g in world]
    if "ep" in found.degrees:  # experts lie on the data axes
        guesses = [guess if guess == "fsdp" else "dp" for guess in guesses]
    axis = next((guess for wanted in ("fsdp", "tp", "dp") for guess in guesses if guess == wanted), None)
    if axis is None:
        why = "what the default group carries does not tell" if world else "no recorded process group tells"
        found.notes.append(f"{why} how the job is split; say it with --mesh")
        return
    found.degrees[axis], found.evidence[axis] = world_size, "ops"
    found.notes.append(
        f"{axis}={world_size}: all ranks exchange on the default group; taken for {axis} by what it carries"
    )


# ------------------------------------------------------------------ the user's word, and the result


def _given(found: Found, degrees: dict[str, int], ranks: Sequence[int]) -> Layout:
    """Take the user's mesh, read the axes of each group off it, and say which names contradict it."""
    highest = max([*ranks, *(m[-1] for m in found.members if m)], default=0)
    at = mesh_coordinates(degrees, np.arange(max(highest + 1, math.prod(degrees.get(axis, 1) for axis in AXES))))
    for g, members in enumerate(found.members):
        own = found.axes[g]
        if members is None or len(members) < 2 or own == WORLD:
            continue
        axes = axes_of_members(degrees, at, members)
        if own is not None and len(own) == 1 and own[0] in ALL_AXES and axes != own:
            lies = f"lies along {'+'.join(axes)}" if axes else "does not lie along the axes"
            found.notes.append(
                f"group {found.labels[g]!r} is {own[0]} by its name or use, but {lies} of the given mesh"
            )
        found.axes[g] = axes or own
    found.degrees, found.evidence = degrees, dict.fromkeys(degrees, "given")
    coordinates = {rank: {axis: int(at[axis][rank]) for axis in ALL_AXES} for rank in ranks}
    return _layout(found, coordinates, ranks, "given")


def _layout(found: Found, coordinates: dict[int, dict[str, int]], ranks: Sequence[int], source: str) -> Layout:
    staged = found.degrees.get("pp", 1) > 1

    def role(rank: int) -> str | None:
        if not staged:
            return "all" if found.degrees else None
        stage = coordinates.get(rank, {}).get("pp")
        return None if stage is None else f"pp{stage}"

    loose = staged and found.evidence.get("pp") in ("pairs", "given")  # messages may go over any group
    carriers = {g for g, axes in enumerate(found.axes) if axes == ("pp",) or (loose and axes in (WORLD, None))}
    notes = list(dict.fromkeys(found.notes))
    return Layout(
        degrees={axis: found.degrees[axis] for axis in (*ALL_AXES, CHUNKS) if axis in found.degrees},
        roles=["+".join(axes) if axes else label for axes, label in zip(found.axes, found.labels, strict=True)],
        coordinates=coordinates,
        role_of={rank: role(rank) for rank in ranks},
        notes=[*notes[:MAX_NOTES], *([f"and {len(notes) - MAX_NOTES} more"] if len(notes) > MAX_NOTES else [])],
        source=source,
        evidence={axis: found.evidence[axis] for axis in ALL_AXES if axis in found.evidence},
        pipeline_gids=frozenset(carriers if staged else ()),
    )
