"""Read the dumps that PyTorch's Flight Recorder leaves when a job hangs.

    read_dumps(folder) -> Recording: one Dump per rank, and what could not be read

A dump is a pickle (`TORCH_NCCL_DUMP_ON_TIMEOUT`, `_dump_nccl_trace()`) or JSON with the same keys: `entries` (the
collectives still in the ring buffer), `pg_config` (groups and their ranks) and `pg_status` (the last collective
enqueued and completed, per group). A dump does not hold its own rank: it is in the file name. `pg_status` is keyed by a
number that only entries translate into a group; for a group without entries the order of creation does, when there
are as many groups as numbers.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from perfkit.errors import InputError, UnsupportedInput, UsageError
from perfkit.sources.inputs import GZIP_MAGIC, ZSTD_MAGIC
from perfkit.sources.kinds import HEAD_BYTES, SQLITE_MAGIC
from perfkit.sources.unpickle import Loaded, load_plain_pickles

MAX_JSON_BYTES = 1 << 30
MAX_FOLDERS_SEARCHED = 1000
"""Folders that are looked into for a hint where the dumps are."""
FILES_TRIED_PER_FOLDER = 20
_PEER = re.compile(r"(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")
_TRAILING_NUMBER = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")


@dataclass(frozen=True)
class Group:
    """A process group as one rank knows it."""

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A collective or message that was still in the ring buffer; pending if the device had not finished it."""

    group: str
    seq: int
    op: str
    pending: bool
    is_p2p: bool
    peer: int | None
    created_ns: int
    shape: str
    stack: tuple[str, ...]


@dataclass(frozen=True)
class Progress:
    """How far a rank came in a group."""

    enqueued: int
    completed: int


@dataclass(frozen=True)
class Dump:
    """What one rank recorded."""

    rank: int
    path: Path
    groups: dict[str, Group]
    progress: dict[str, Progress]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Recording:
    """The dumps of a job."""

    dumps: tuple[Dump, ...]
    rejected: tuple[InputError, ...] = field(default_factory=tuple)


class TraceInstead(UnsupportedInput):
    """What a profiler writes, where a dump was expected."""


def read_dumps(folder: Path) -> Recording:
    """Read every dump of a folder (or one file); what is none is reported and costs nothing else."""
    if not folder.exists():
        raise UsageError(
            f"{folder}: no such file or folder", next_step="name the folder of TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
        )
    paths = sorted(_files(folder)) if folder.is_dir() else [folder]
    if not paths:
        below = folders_with_dumps(folder)
        raise UsageError(
            f"{folder} holds no files" + (f", but there are dumps in {', '.join(map(str, below))}" if below else ""),
            next_step=f"`perfkit hang {below[0]}` reads one folder"
            if below
            else "point at the folder of TORCH_NCCL_DEBUG_INFO_TEMP_FILE (one dump per rank)",
        )
    dumps: dict[int, Dump] = {}
    traces = {path: what for path in paths if (what := _kind_of_trace(_head(path)))}
    rejected: list[InputError] = [
        TraceInstead(
            f"{what}, not a Flight Recorder dump", path=str(path), next_step=f"`perfkit analyze {path}` reads traces"
        )
        for path, what in traces.items()
    ]
    for loaded in _load([path for path in paths if path not in traces]):
        try:
            dump = _understand(loaded)
            if dump.rank in dumps:
                raise InputError(
                    f"also says that it is of rank {dump.rank}, like {dumps[dump.rank].path.name}; the first was used",
                    path=str(loaded.path),
                    next_step="keep the dumps of one job and one attempt in a folder",
                )
            dumps[dump.rank] = dump
        except InputError as error:
            rejected.append(error)
    return Recording(tuple(dumps[rank] for rank in sorted(dumps)), tuple(rejected))


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins like this is a dump; profilers write the groups into their traces too."""
    if head.startswith(b"\x80"):
        return b"pg_config" in head or b"collective_seq_id" in head
    if b'"traceEvents"' in head or b'"distributedInfo"' in head:
        return False
    return head.lstrip()[:1] == b"{" and b'"pg_config"' in head


def _kind_of_trace(head: bytes) -> str | None:
    """Name what `perfkit analyze` reads and PyTorch never writes a dump as."""
    if head.startswith((GZIP_MAGIC, ZSTD_MAGIC)):
        return "compressed data"
    if head.startswith(SQLITE_MAGIC):
        return "a database"
    text = head.lstrip()
    is_trace = (text[:1] == b"{" and b'"traceEvents"' in text) or (text[:1] == b"[" and b'"ph"' in text)
    return "a profiler trace" if is_trace else None


def folders_with_dumps(root: Path, limit: int = 3) -> list[Path]:
    """Return the nearest folders below `root` that hold dumps; only the heads of some files are read."""
    found: list[Path] = []
    waiting = deque(_subfolders(root))
    for _ in range(MAX_FOLDERS_SEARCHED):
        if not waiting or len(found) == limit:
            break
        folder = waiting.popleft()
        try:
            if any(looks_like_dump(_head(path)) for path in islice(_files(folder), FILES_TRIED_PER_FOLDER)):
                found.append(folder)
        except OSError:  # a folder without permission holds nothing for us
            continue
        waiting.extend(_subfolders(folder))
    return found


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:
        return []
    return [folder / name for name in names]


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if (
            path.is_file()
            and not path.is_symlink()
            and not path.name.startswith(".")
            and path.suffix not in (".log", ".txt", ".md")
        ):
            yield path


def _load(paths: list[Path]) -> Iterator[Loaded]:
    pickles = []
    for path in paths:
        if _head(path).lstrip()[:1] == b"{":
            yield _load_json(path)
        else:
            pickles.append(path)
    yield from load_plain_pickles(pickles)


def _load_json(path: Path) -> Loaded:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return Loaded(path, problem=f"larger than {MAX_JSON_BYTES} bytes")
        return Loaded(path, json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        return Loaded(path, problem=f"not valid JSON: {error}")


def _understand(loaded: Loaded) -> Dump:
    path, content = loaded.path, loaded.content
    if loaded.problem is not None:
        raise InputError(
            loaded.problem,
            path=str(path),
            next_step="give dumps of the Flight Recorder (TORCH_NCCL_DEBUG_INFO_TEMP_FILE); copy it again if it is one",
        )
    if not isinstance(content, dict) or "entries" not in content or "pg_config" not in content:
        raise UnsupportedInput(
            "is not a Flight Recorder dump (no `entries` and `pg_config`)", path=str(path), next_step="leave it out"
        )
    rank = content.get("rank")
    if not isinstance(rank, int):
        number = _TRAILING_NUMBER.search(path.name)
        if number is None:
            raise InputError("does not say which rank it is of", path=str(path), next_step="end its name with the rank")
        rank = int(number.group(1))
    try:
        groups = {name: _group(name, about) for name, about in content["pg_config"].items()}
        entries = [entry for entry in content["entries"] if isinstance(entry, dict)]
        if set(groups) == {""}:  # gloo's only group has no name in pg_config, and one in the entries
            names = {str(entry["process_group"][0]) for entry in entries}
            groups = {name: replace(groups[""], name=name) for name in names} or groups
        calls = tuple(_call(entry, groups) for entry in entries)
        progress = _progress(content.get("pg_status") or {}, entries, groups, calls)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"is a Flight Recorder dump with an unknown layout ({error!r})",
            path=str(path),
            next_step="report the version of torch that wrote it",
        ) from error
    return Dump(rank, path, groups, progress, calls)


def _group(name: str, about: dict[str, Any]) -> Group:
    ranks = about.get("ranks") or []
    if isinstance(ranks, str):
        ranks = json.loads(ranks or "[]")
    return Group(name, str(about.get("desc") or ""), tuple(int(rank) for rank in ranks))


def _call(entry: dict[str, Any], groups: dict[str, Group]) -> Call:
    group = str(entry["process_group"][0])
    op = str(entry.get("profiling_name") or "")
    frames = tuple(
        f"{frame.get('filename')}:{frame.get('line')} {frame.get('name')}"
        for frame in entry.get("frames") or ()
        if isinstance(frame, dict)
    )
    return Call(
        group=group,
        seq=int(entry.get("collective_seq_id") or 0),
        op=op.partition(":")[2].partition(" ")[0] or op,
        pending=entry.get("state") != "completed" and not entry.get("retired"),
        is_p2p=bool(entry.get("is_p2p")),
        peer=_peer(op, groups.get(group)),
        created_ns=int(entry.get("time_created_ns") or 0),
        shape=json.dumps([entry.get("input_sizes"), entry.get("output_sizes"), entry.get("input_dtypes")]),
        stack=frames,
    )


def _peer(op: str, group: Group | None) -> int | None:
    """Return the global rank at the other end of `nccl:recv 0<-1`, whose numbers count inside the group."""
    found = _PEER.search(op)
    if found is None or group is None or not group.ranks:
        return None
    other = int(found.group(4))
    return group.ranks[other] if other < len(group.ranks) else None


def _progress(
    status: dict[str, Any], entries: list[dict[str, Any]], groups: dict[str, Group], calls: tuple[Call, ...]
) -> dict[str, Progress]:
    names = {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in entries if "pg_id" in entry}
    if len(status) == len(groups) and all(name.isdigit() for name in groups):
        ordered = sorted(groups, key=int)
        by_creation = dict(zip(sorted(status, key=int), ordered, strict=True))
        if all(by_creation.get(number, name) == name for number, name in names.items()):
            names = by_creation
    found = {
        names[number]: Progress(int(about["last_enqueued_collective"]), int(about["last_completed_collective"]))
        for number, about in status.items()
        if number in names
    }
    for group in {call.group for call in calls} - found.keys():  # no status in this dump: what the buffer shows
        own = [call for call in calls if call.group == group and not call.is_p2p]
        if own:
            done = [call.seq for call in own if not call.pending]
            waiting = [call.seq for call in own if call.pending]
            found[group] = Progress(max(call.seq for call in own), max(done) if done else min(waiting) - 1)
    return found
