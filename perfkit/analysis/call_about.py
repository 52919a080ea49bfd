"""What the host events around a collective say about it, where the library recorded no arguments.

    about = OpNotes(tree)                     names, shapes and values of the host's communication ops
    about.nearest(position)                   the op that issued a piece of work, -1 for none
    about.describe(positions) -> [Note]       operation, sizes, sequence number

`c10d::alltoall_base_` lists output then input, `nccl:all_to_all` the input alone, and the values of
`record_param_comms` hold the sequence number and group id in torch 2.1 and older. Kernels whose names tell
nothing (`ncclDevKernel_Generic`, DeepEP, NVSHMEM) become known this way.
"""

from __future__ import annotations

import json
import math
import re
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfkit.analysis.call_args import item_bytes, shown_dtype
from perfkit.analysis.classify import CLASSES
from perfkit.analysis.exchanges import collective_name
from perfkit.analysis.intervals import Ints
from perfkit.analysis.ops import CallTree
from perfkit.analysis.timeline import Mask

_ISSUER = re.compile(
    r"^(?:c10d::|_?c10d_functional::|nccl:|rccl:|gloo:|mpi:|ucc:|xccl:|symm_mem::|vllm::|sglang::|sgl_kernel::|_c_custom_ar::"
    r"|record_param_comms|nccl(?:all|reduce|broadcast|bcast|send|recv|group|gather|scatter))|deep_?ep|nvshmem|mscclpp"
)
_NOT_A_CALL = re.compile(r"wait_tensor|wait_work|monitored|_get_|size|rank\b")
_OUTPUT_FIRST = re.compile(r"^c10d::(?:_allgather_base_|alltoall_base_|_reduce_scatter_base_|reduce_scatter_tensor)")
_EXPERTS = re.compile(r"dispatch|combine")
_KINDS = [CLASSES.index("op"), CLASSES.index("range")]


class Note(NamedTuple):
    """What one op says; None is not said."""

    op: str | None = None
    dtype: str | None = None
    in_bytes: int | None = None
    out_bytes: int | None = None
    seq: int | None = None
    group_id: int | None = None

    def or_else(self, other: Note) -> Note:
        """Fill in what this one does not say."""
        return self._replace(**{k: v for k, v in other._asdict().items() if getattr(self, k) is None})


def op_name(text: str) -> str:
    """Return the collective that an op, range or kernel is, `unknown` if its name does not say.

    Sends and receives are told apart where the name does; expert dispatch and combine are all-to-all.
    """
    lowered = text.lower()
    sends, receives = "send" in lowered, "recv" in lowered
    found = collective_name(text)
    if found == "send_recv" and sends != receives:
        return "send" if sends else "recv"
    if found == "unknown" and _EXPERTS.search(lowered):
        return "all_to_all"
    return found


def is_issuer(name: str) -> bool:
    """Say whether a host event hands work to a communication library."""
    lowered = name.lower()
    return bool(_ISSUER.search(lowered)) and not _NOT_A_CALL.search(lowered)


class OpNotes:
    """The communication ops of a call tree."""

    def __init__(self, tree: CallTree, recorded: Mask | None = None) -> None:
        self.tree = tree
        names = tree.timeline.names
        used = np.unique(tree.name)
        lut = np.zeros(len(names), bool)
        lut[used] = [is_issuer(names[i]) for i in used.tolist()]
        self.issues: Mask = tree.named(lut) & np.isin(tree.kind, _KINDS)
        if recorded is not None:
            self.issues |= recorded
        self._near = tree.nearest(self.issues)

    def nearest(self, position: Ints) -> Ints:
        """Return the innermost communication op at or above each position, -1 for none."""
        result: Ints = np.append(self._near, -1)[position]
        return result

    def outermost(self, position: Ints) -> Ints:
        """Return the outermost communication op of the same stack: the call that the program made."""
        up = np.append(self.tree.above(self._near), -1)
        while True:
            higher = up[position]
            if (higher < 0).all():
                return position
            position = np.where(higher >= 0, higher, position)

    def describe(self, positions: Ints) -> list[Note]:
        """Return what the ops at and above each position say; a distinct stack is read once."""
        chains = self._chains(positions)
        seen: dict[tuple[tuple[int, ...], ...], Note] = {}
        result = []
        for chain in chains:
            key = tuple(chain)
            if key not in seen:
                seen[key] = self._note(key)
            result.append(seen[key])
        return result

    @cached_property
    def _texts(self) -> list[tuple[Ints, list[str]]]:
        return [self.tree.text(column) for column in ("input_dims", "input_types", "concrete_inputs")]

    def _chains(self, positions: Ints) -> list[list[tuple[int, ...]]]:
        """Return (name, dims, types, values) of the communication ops from each position upwards."""
        texts = [codes for codes, _ in self._texts]
        up = np.append(self.tree.above(self._near), -1)
        levels, now = [], positions
        while (now >= 0).any():
            levels.append(np.stack([np.append(self.tree.name, -1)[now], *(np.append(t, -1)[now] for t in texts), now]))
            now = up[now]
        chains: list[list[tuple[int, ...]]] = [[] for _ in range(len(positions))]
        for level in levels:
            for chain, (name, dims, types, values, at) in zip(chains, level.T.tolist(), strict=True):
                if at >= 0:
                    chain.append((name, dims, types, values))
        return chains

    def _note(self, chain: tuple[tuple[int, ...], ...]) -> Note:
        values = [texts for _, texts in self._texts]
        note = Note()
        for name, *codes in chain:  # innermost first
            text = self.tree.timeline.names[name]
            dims, types, concrete = (v[c] if c >= 0 else None for v, c in zip(values, codes, strict=True))
            op = op_name(text)
            if note.op is None and op != "unknown":
                note = note._replace(op=op)
            note = _with_sizes(note, text, _listed(dims), _listed(types))
            if text == "record_param_comms":
                note = _with_values(note, _listed(concrete))
        return note


def _listed(text: str | None) -> list[object]:
    if not text:
        return []
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _with_sizes(note: Note, name: str, dims: list[object], types: list[object]) -> Note:
    """Fill in what is not known yet from the shapes of one op."""
    kinds = [str(kind) for kind in types] + [""] * (len(dims) - len(types))
    elements = [_elements(entry, kind) for entry, kind in zip(dims, kinds, strict=False)]
    tensors = [i for i, number in enumerate(elements) if number]
    if not tensors:
        return note
    kind = next((kinds[i] for i in tensors if item_bytes(kinds[i])), note.dtype)
    size = item_bytes(kind)
    if size is None:
        return note
    first = (elements[tensors[0]] or 0) * size
    note = note if note.dtype else note._replace(dtype=shown_dtype(kind))
    if _OUTPUT_FIRST.search(name) and len(tensors) > 1:
        second = (elements[tensors[1]] or 0) * size
        return note._replace(out_bytes=first, in_bytes=note.in_bytes or second)
    return note if note.in_bytes else note._replace(in_bytes=first)


def _with_values(note: Note, values: list[object]) -> Note:
    """Read sequence number and group id, which torch recorded as plain numbers until 2.1."""
    numbers = [int(v) if isinstance(v, str) and re.fullmatch(r"-?\d+", v) else None for v in values]
    if len(numbers) > 3 and numbers[1] is not None and numbers[1] >= 0:
        note = note._replace(seq=numbers[1])
    if len(numbers) > 3 and numbers[2] is not None:
        note = note._replace(group_id=numbers[2])
    return note


def _elements(shape: object, kind: str) -> int | None:
    """Return how many elements a shape, or a list of shapes, holds; None for something that is no tensor.

    A tensor without dimensions is recorded as `[]` and has one element; so is an argument that is no tensor, and only
    the type tells them apart.
    """
    if not isinstance(shape, list):
        return None
    if not shape:
        return 1 if item_bytes(kind) else None
    if all(isinstance(n, int) for n in shape):
        return math.prod(shape)
    inner = [1 if one == [] and kind == "TensorList" else _elements(one, kind) for one in shape]
    return sum(n for n in inner if n) or None
