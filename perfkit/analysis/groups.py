"""Which process groups the calls name, and who is in them.

    find_groups(calls, ranks, world_size) -> GROUPS, row of each call's group, notes

A group is its set of ranks; two groups over the same ranks are told apart by name. Without a list of ranks the name
stands for it, as long as no more ranks use the name than the group has members. A call that says nothing at all
is taken for one of the whole job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from perfkit.analysis.call_args import NONE, parse_ranks, ranks_text
from perfkit.analysis.calls import GROUPS
from perfkit.analysis.classify import encode_text
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import ints


def find_groups(calls: pa.Table, ranks: Sequence[int], world_size: int | None) -> tuple[pa.Table, Ints, list[str]]:
    """Return the groups, the row of each call's group, and what is wrong with them."""
    if not len(calls):
        return GROUPS.empty_table(), np.empty(0, np.int64), []
    columns = [encode_text(calls[name]) for name in ("group_ranks", "group", "group_desc")]
    keys = np.stack([*(codes.astype(np.int64) for codes, _ in columns), ints(calls["group_size"])])
    code = np.zeros(len(calls), np.int64)
    for key in keys:
        _, code = np.unique(code * (int(key.max()) + 2) + key + 1, return_inverse=True)
    first, users = _first_and_users(code, ints(calls["rank"]))
    texts = [[*values, None] for _, values in columns]
    listed = [(*(t[k] for t, k in zip(texts, at[:3], strict=True)), at[3]) for at in keys[:, first].T.tolist()]
    rows, gid_of = _merge(listed, np.argsort(first, kind="stable").tolist(), users, world_size)
    gid = gid_of[code]
    notes = _finish(rows, np.bincount(gid, minlength=len(rows)), set(ranks))
    return pa.Table.from_pylist(rows, schema=GROUPS), gid, notes


def _first_and_users(code: Ints, rank: Ints) -> tuple[Ints, list[set[int]]]:
    """Return the first row and the ranks of every code."""
    _, first = np.unique(code, return_index=True)
    pairs = np.unique(code * (int(rank.max()) + 1) + rank)
    owner, member = np.divmod(pairs, int(rank.max()) + 1)
    users: list[set[int]] = [set() for _ in range(len(first))]
    for i, one in zip(owner.tolist(), member.tolist(), strict=True):
        users[i].add(one)
    return first, users


def _merge(
    listed: list[tuple[Any, ...]], order: list[int], users: list[set[int]], world_size: int | None
) -> tuple[list[dict[str, Any]], Ints]:
    """Join descriptions that are one group."""
    world = None if world_size is None else list(range(world_size))
    described = []
    for text, name, desc, size in listed:
        members = parse_ranks(text)
        if members is None and world is not None and (size == world_size or (size < 0 and name is None)):
            members = world
        described.append((None if members is None else ranks_text(members), name, desc, size, members))
    per_rank = [(text, rank, name) for (text, name, *_), some in zip(described, users, strict=True) for rank in some]
    names = Counter((text, rank) for text, rank, name in set(per_rank) if name is not None)
    several = {text for (text, _), number in names.items() if number > 1}
    usual = {text: name for text, _, name in sorted(per_rank, key=str, reverse=True) if name is not None}
    rows: list[dict[str, Any]] = []
    found: dict[tuple[str | None, str | None], int] = {}
    gid = np.full(len(listed), NONE, np.int64)
    for i in order:
        text, name, desc, size, members = described[i]
        key = text, (name or usual.get(text)) if text is None or text in several else None
        if key not in found:
            found[key] = len(rows)
            known = len(members) if members else size if size > 0 else None
            row = {
                "gid": len(rows),
                "name": name or usual.get(text),
                "desc": desc,
                "ranks": members,
                "size": known,
                "users": set(),
            }
            rows.append(row)
        gid[i] = found[key]
        rows[found[key]]["users"] |= users[i]
    return rows, gid


def _finish(rows: list[dict[str, Any]], count: Ints, have: set[int]) -> list[str]:
    """Fill in the numbers of each group and say what does not fit."""
    notes = []
    for row, number in zip(rows, count.tolist(), strict=True):
        users = row.pop("users")
        row["traced"] = len(have & set(row["ranks"])) if row["ranks"] else len(users)
        row["calls"], row["role"] = number, None
        if strangers := users - set(row["ranks"] or users):
            notes.append(
                f"group {row['name']}: ranks {shown_ranks(strangers)} call it and are not in its list of ranks"
            )
        if row["ranks"] is None and row["size"] is not None and len(users) > row["size"]:
            notes.append(
                f"group {row['name']} has {row['size']} members and {len(users)} ranks use the name: its ranks are not "
                "recorded, so its calls are not matched"
            )
            row["traced"] = 0
    return notes


def shown_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text: runs as first-last, many cut short."""
    some = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in some:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(parts[:8]) + (" …" if len(parts) > 8 else "")
