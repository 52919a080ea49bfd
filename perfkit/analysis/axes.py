"""Axes of parallelism: their words, what a group's name says about them, and a mesh that the user gives.

    axes_of_name("DATA_PARALLEL_GROUP_WITH_CP") -> ("dp", "cp")        None: the name says nothing
    axis_of_dimension("dp_shard")               -> "fsdp"              one dimension of a DeviceMesh
    parse_mesh("dp=4,tp=2,pp=2", world_size=16) -> {"pp": 2, "dp": 4, "tp": 2}
    mesh_coordinates(degrees, ranks)            -> {"pp": [...], "dp": [...], ...}

`dp` replicates (DDP, the outer half of HSDP) and `fsdp` shards; torchtitan's dp_replicate and dp_shard. Ranks of a
mesh are numbered as Megatron-LM and torchtitan both do: tp varies fastest, then cp, fsdp, dp, and pp slowest. `ep`
is no axis of its own: it cuts the data ranks (dp × fsdp × cp) into blocks, and takes no part in the product.

A name is read as a whole: every word of it must be known, otherwise it says nothing (`dp_shard_mod_ep` is not `ep`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from perfkit.analysis.intervals import Ints
from perfkit.errors import UsageError

AXES = ("pp", "dp", "fsdp", "cp", "tp")
"""Axes whose degrees multiply to the world size, from the slowest to the fastest."""
ALL_AXES = (*AXES, "ep")
CHUNKS = "vpp"
"""Model chunks per pipeline stage: taken from the user, no axis."""
DATA_AXES = ("dp", "fsdp", "cp")
"""Axes that ep cuts into blocks."""
BATCH_AXES = ("dp", "fsdp")
"""Axes over which a batch is split: their degrees multiply to the number of replicas."""

_ALIASES = {
    "pipeline": "pp", "pipe": "pp", "stage": "pp", "ddp": "dp", "data": "dp", "replicate": "dp", "dp_replicate": "dp",
    "shard": "fsdp", "dp_shard": "fsdp", "zero": "fsdp", "hsdp": "fsdp", "context": "cp", "sp": "cp", "sequence": "cp",
    "ulysses": "cp", "tensor": "tp", "mp": "tp", "expert": "ep",
}  # fmt: skip
"""Other words for an axis, on the command line and in names of groups."""
_EXPERT = {"tensor": "etp", "tp": "etp", "model": "ep", "data": "edp", "dp": "edp", "pipeline": "pp", "pp": "pp"}
"""What a word means in a name that begins with `expert`."""
_NOISE = frozenset(("mesh", "parallel", "group", "groups", "pg", "with", "and", "gloo", "nccl", "comm", "process"))
_WORLD = frozenset(("default_pg", "world", "world_group", "default"))
_SILENT = frozenset(("", "undefined", "none", "null"))


def axis_of_dimension(name: str) -> str:
    """Return the axis that a mesh's dimension is: `dp_shard` and `shard` are fsdp. An unknown word stays as it is."""
    return _ALIASES.get(name.lower(), name.lower())


def axes_of_name(text: str | None) -> tuple[str, ...] | None:
    """Return the axes that a group's name or description lists, ("world",) for all ranks, None if it says nothing."""
    lowered = (text or "").strip().lower()
    if lowered in _SILENT:
        return None
    if lowered in _WORLD:
        return ("world",)
    words = [word for word in re.split(r"[^a-z0-9]+", lowered) if word and word not in _NOISE]
    while words and words[-1].isdigit():  # vLLM and SGLang number theirs: tp:0
        words.pop()
    if words == ["model"]:
        return ("pp", "tp")
    expert = len(words) > 1 and words[0] == "expert"
    found = [_EXPERT.get(word) for word in words[1:]] if expert else _read_words(words)
    if not found or None in found:
        return None
    return tuple(dict.fromkeys(axis for axis in found if axis is not None))


def _read_words(words: list[str]) -> list[str | None]:
    found: list[str | None] = []
    rest = list(words)
    while rest:
        pair = "_".join(rest[:2])
        if len(rest) > 1 and pair in _ALIASES:
            found.append(_ALIASES[pair])
            del rest[:2]
            continue
        word = rest.pop(0)
        if word == "model" and found:  # TENSOR_MODEL_PARALLEL: the word adds nothing
            continue
        word = _ALIASES.get(word, word)
        found.append(word if word in (*ALL_AXES, "etp", "edp") else None)
    return found


def parse_mesh(text: str, *, world_size: int | None = None) -> dict[str, int]:
    """Read `dp=4,tp=2,pp=2`; say what is wrong with it. Degrees must multiply to the world size, if that is known."""
    example = f"write for example --mesh dp=4,tp=2,pp=2 with any of {', '.join((*ALL_AXES, CHUNKS))}"
    degrees: dict[str, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text.strip())):
        match = re.fullmatch(r"(\w+)[=:](\d+)", part)
        axis = match and _ALIASES.get(match[1].lower(), match[1].lower())
        if not match or axis not in (*ALL_AXES, CHUNKS):
            raise UsageError(f"--mesh {text!r}: cannot read {part!r}", next_step=example)
        if axis in degrees:
            raise UsageError(f"--mesh {text!r}: {axis} is given twice", next_step=example)
        if int(match[2]) < 1:
            raise UsageError(f"--mesh {text!r}: a degree is at least 1", next_step=example)
        degrees[axis] = int(match[2])
    if not degrees:
        raise UsageError("--mesh is empty", next_step=example)
    degrees = {axis: degrees[axis] for axis in (*ALL_AXES, CHUNKS) if axis in degrees}
    _check_degrees(text, degrees, world_size)
    return degrees


def _check_degrees(text: str, degrees: Mapping[str, int], world_size: int | None) -> None:
    product = math.prod(degrees.get(axis, 1) for axis in AXES)
    if world_size is not None and product != world_size:
        detail = " × ".join(f"{axis} {degrees[axis]}" for axis in AXES if axis in degrees) or "1"
        raise UsageError(
            f"--mesh {text!r} is a mesh of {product} ranks ({detail}), the job has {world_size}",
            next_step="give every axis; ep is a part of the data axes and does not count",
        )
    data = math.prod(degrees.get(axis, 1) for axis in DATA_AXES)
    if degrees.get(CHUNKS, 1) > 1 and degrees.get("pp", 1) == 1:
        raise UsageError(f"--mesh {text!r}: {CHUNKS} is chunks per pipeline stage and needs pp")
    if data % degrees.get("ep", 1):
        raise UsageError(f"--mesh {text!r}: ep={degrees['ep']} does not divide dp × fsdp × cp = {data}")


def mesh_coordinates(degrees: Mapping[str, int], ranks: npt.ArrayLike) -> dict[str, Ints]:
    """Return each rank's number on every axis of a mesh in the usual order."""
    rest = np.asarray(ranks, np.int64)
    found: dict[str, Ints] = {}
    for axis in reversed(AXES):
        size = degrees.get(axis, 1)
        found[axis], rest = rest % size, rest // size
    data = np.zeros_like(rest)
    for axis in DATA_AXES:
        data = data * degrees.get(axis, 1) + found[axis]
    found["ep"] = data % degrees.get("ep", 1)
    return {axis: found[axis] for axis in ALL_AXES}


def mesh_text(degrees: Mapping[str, int]) -> str:
    """Return `pp=2 dp=4 tp=2`: axes of one rank are left out, unless there is nothing else."""
    shown = [f"{axis}={degrees[axis]}" for axis in ALL_AXES if degrees.get(axis, 1) > 1]
    return " ".join(shown) or "dp=1"
