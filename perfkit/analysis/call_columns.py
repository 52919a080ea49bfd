"""The descriptive columns of a call: operation, group, sizes, sequence number, who is at the other end.

    describe_calls(timeline, found, args, notes) -> columns of perfkit.analysis.calls.CALLS

Each value comes from the best source that has it: the arguments of the work itself, those of the op that issued it,
then names and shapes of the ops around it, and last the kernel's own name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from perfkit.analysis.bandwidth import GROWING, SHRINKING
from perfkit.analysis.call_about import Note, OpNotes, op_name
from perfkit.analysis.call_args import NONE, CallArgs, item_bytes, ranks_text, shown_dtype
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Timeline

MESSAGES = ("send", "recv")
"""Operations between two ranks."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SOURCES = ("kernel_args", "op_args", "op", "name")
"""Where the description of a call comes from, best first."""
Columns: TypeAlias = dict[str, Any]


@dataclass
class Found:
    """Calls of one device before they are a table: arrays and lists of equal length."""

    event_id: Ints
    start: Ints
    end: Ints
    name: Ints
    """Index into timeline.names."""
    args: Ints
    """Row of the arguments that the work carries itself, -1 for none."""
    issuer: Ints
    """Position in the call tree of the op that issued it, -1 for none."""
    issued_args: Ints
    """Row of the arguments that its issuer carries."""
    inner: Ints
    """Position of the innermost host event that describes it: its issuer, or the gloo work itself."""

    def take(self, rows: Ints) -> Found:
        """Return some of the calls, or one more than once."""
        return Found(*(getattr(self, f.name)[rows] for f in fields(self)))


def describe_calls(timeline: Timeline, found: Found, args: CallArgs, notes: OpNotes) -> Columns:
    """Return the descriptive columns: the work's own arguments, then its issuer's, then what ops and names say."""
    number = len(found.start)
    own, issued = found.args, found.issued_args

    def numbers(name: str) -> Ints:
        mine, theirs = args.numbers(name, own), args.numbers(name, issued)
        return np.where(mine != NONE, mine, theirs)

    def texts(name: str) -> list[str | None]:
        return [a or b for a, b in zip(args.texts(name, own), args.texts(name, issued), strict=True)]

    said = texts("collective")
    bare = np.flatnonzero([text is None for text in said])
    told: list[Note] = [Note()] * number
    inner, outer = notes.describe(found.inner[bare]), notes.describe(found.issuer[bare])
    together: dict[tuple[Note, Note], Note] = {}  # a training loop says the same again and again
    for i, pair in zip(bare.tolist(), zip(inner, outer, strict=True), strict=True):
        if pair not in together:
            together[pair] = pair[0].or_else(pair[1])
        told[i] = together[pair]
    by_name = {i: op_name(timeline.names[i]) for i in np.unique(found.name).tolist()}
    ops = [
        (op_name(text) if text else None) or note.op or by_name[name]
        for text, note, name in zip(said, told, found.name.tolist(), strict=True)
    ]
    dtypes = [shown_dtype(d) or note.dtype for d, note in zip(texts("dtype"), told, strict=True)]
    sizes = [
        _size(numbers(f"{side}_nelems"), texts("dtype"), numbers("message_bytes"), ops, larger)
        for side, larger in (("in", SHRINKING), ("out", GROWING))
    ]
    in_bytes = [s if s is not None else note.in_bytes for s, note in zip(sizes[0], told, strict=True)]
    out_bytes = [s if s is not None else note.out_bytes for s, note in zip(sizes[1], told, strict=True)]
    seq = [s if s >= 0 else note.seq for s, note in zip(numbers("seq").tolist(), told, strict=True)]
    ranks = _group_ranks(args, own, issued)
    size = numbers("group_size")
    size = np.array([len(r) if r is not None else s for r, s in zip(ranks, size.tolist(), strict=True)], np.int64)
    peer, root = _peers(timeline.rank, ops, ranks, numbers)
    source = np.where(own >= 0, 0, np.where(issued >= 0, 1, np.where(found.issuer >= 0, 2, 3)))
    canonical: dict[int, str] = {}
    group_ranks = [None if r is None else canonical.setdefault(id(r), ranks_text(r)) for r in ranks]
    names = texts("group_name")
    communicators = numbers("comm_id")
    names = [
        n or (f"comm {c & (2**64 - 1):#x}" if c != NONE else _by_id(note))
        for n, c, note in zip(names, communicators.tolist(), told, strict=True)
    ]
    splits = {
        f"{side}_split": [None if s in (None, "[]", "") else s for s in texts(f"{side}_split")]
        for side in ("in", "out")
    }
    return {
        "group": pa.array(names, pa.utf8()), "group_desc": pa.array(texts("group_desc"), pa.utf8()),
        "group_ranks": pa.array(group_ranks, pa.utf8()), "group_size": pa.array(size, mask=size < 0),
        "op": pa.array(ops, pa.utf8()), "seq": pa.array(seq, pa.int64()), "dtype": pa.array(dtypes, pa.utf8()),
        "in_bytes": pa.array(in_bytes, pa.int64()), "out_bytes": pa.array(out_bytes, pa.int64()),
        "peer": pa.array(peer, mask=peer < 0), "root": pa.array(root, mask=root < 0),
        "source": pa.array([SOURCES[i] for i in source.tolist()], pa.utf8()),
        **{name: pa.array(values, pa.utf8()) for name, values in splits.items()},
    }  # fmt: skip


def _by_id(note: Note) -> str | None:
    return None if note.group_id is None else f"id {note.group_id}"


def _group_ranks(args: CallArgs, own: Ints, issued: Ints) -> list[list[int] | None]:
    mine, theirs = args.group_ranks(own), args.group_ranks(issued)
    return [a if a is not None else b for a, b in zip(mine, theirs, strict=True)]


def _size(
    elements: Ints, dtypes: list[str | None], message: Ints, ops: list[str], larger: Sequence[str]
) -> list[int | None]:
    """Return the bytes of one side. NCCL's payloads give the smaller one, which is not that of ops in `larger`."""
    sizes = {dtype: item_bytes(dtype) for dtype in set(dtypes)}
    found: list[int | None] = []
    for number, dtype, given, op in zip(elements.tolist(), dtypes, message.tolist(), ops, strict=True):
        item = sizes[dtype]
        told = None if number < 0 or item is None else number * item
        found.append(given if given >= 0 and op not in larger else told)
    return found


def _peers(
    rank: int, ops: list[str], ranks: list[list[int] | None], numbers: Callable[[str], Ints]
) -> tuple[Ints, Ints]:
    """Return the other end of each message and the root of each rooted collective as global ranks, -1 unknown."""
    names = ("src_rank", "dst_rank", "peer_rank", "root_rank", "group_rank")
    source, target, near, given, number = (numbers(name).tolist() for name in names)
    peer = np.full(len(ops), NONE, np.int64)
    root = peer.copy()
    for i, (op, members) in enumerate(zip(ops, ranks, strict=True)):
        if op in MESSAGES:
            other = source[i] if op == "recv" else target[i]
            if other < 0 and members is not None and 0 <= near[i] < len(members):
                other = members[near[i]]
            if other < 0 and members is not None and len(members) == 2:
                other = members[0] if members[1] == rank else members[1]
            peer[i] = other
        elif op in ROOTED:
            at = given[i] if given[i] >= 0 else number[i]  # torch records the root of a rooted collective as `Rank`
            if at >= 0:
                root[i] = (
                    members[at] if members is not None and at < len(members) else (at if members is None else NONE)
                )
    return peer, root
