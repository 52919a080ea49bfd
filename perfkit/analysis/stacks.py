"""Climb call stacks of host threads, for many events at once.

    Kinds(timeline).of_rows(host)                        kind of each event by its class and name
    Stacks(timeline, host, parents, kinds, ops).label()  who is to blame when these events held the host up

An event's kind is its own, else that of the nearest event up its stack that has one. Its place is
file:line of the innermost frame of the user's own code, from python_function events or a recorded
`Call stack`, else of any frame, else the name of the event that gave the kind.

Ranges of `torch.autograd.profiler.emit_nvtx` number every call (`aten::mul, seq = 7, op_id = 9`): the numbers are cut
off, or each call would be a place of its own, and the range counts as an op.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import CLASSES, HOST_KINDS, default_classifier, encode_text
from perfkit.analysis.intervals import Ints
from perfkit.analysis.timeline import Host, Mask, Timeline, ints

MAX_AT_ONCE = 1_000_000
"""Rows that are explained together, which bounds the memory."""
_DEFAULT = {"python": "python", "range": "python", "op": "framework", "runtime": "runtime", "gc": "gc"}
_FRAME = re.compile(r"(?P<file>[^;]*?)\((?P<line>\d+)\): (?P<function>[^;]*)")
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|numpy|importlib|concurrent|multiprocessing|asyncio|logging)/|site-packages|dist-packages"
    r"|lib/python\d|^<|^(threading|runpy|contextlib|functools|inspect|queue|socket|selectors)\.py"
)


_NUMBERED = re.compile(r"(?P<op>.+?), (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
"""An op as emit_nvtx names its range."""


class Kinds:
    """Kind of a host event by its class and name, as an index into HOST_KINDS; -1 for none of its own."""

    def __init__(self, timeline: Timeline) -> None:
        self._names, self._host = timeline.names, timeline.host
        self._tables: dict[int, Ints] = {}

    @cached_property
    def of_all(self) -> Ints:
        """Kind of each event of the timeline."""
        return self.of_rows(self._host)

    def of_rows(self, host: Host) -> Ints:
        """Return the kind of each event."""
        result = np.full(len(host.kind), -1, np.int64)
        for kind in np.unique(host.kind).tolist():
            rows = host.kind == kind
            table = self._tables.setdefault(kind, np.full(len(self._names), -2, np.int64))
            used = np.zeros(len(self._names), bool)
            used[host.name[rows]] = True
            new = np.flatnonzero(used & (table == -2))
            table[new] = self._match(CLASSES[kind], [self._names[code] for code in new.tolist()])
            result[rows] = table[host.name[rows]]
        return result

    @staticmethod
    def _match(kind: str, names: list[str]) -> list[int]:
        rules = default_classifier()
        found = zip(rules.match_all("host", kind, names), rules.match_all("host", "", names), strict=True)
        return [HOST_KINDS.index(own or any_kind) if own or any_kind else -1 for own, any_kind in found]


class Stacks:
    """Call stacks of the host: climbs from events to those that explain them, all at once."""

    def __init__(self, timeline: Timeline, host: Host, parents: Ints, kinds: Kinds, ops: pa.Table | None) -> None:
        self._names, codes, numbered = _without_numbers(timeline.names, host.name)
        is_op = numbered & (host.kind == CLASSES.index("range"))
        self._host = host._replace(
            name=codes, kind=np.where(is_op, CLASSES.index("op"), host.kind).astype(host.kind.dtype)
        )
        self._parents = parents
        self._kinds = kinds.of_rows(host)
        self._frames: list[str] = []
        self._frame = np.full(len(parents), -1, np.int64)
        self._own_frame = np.zeros(len(parents), bool)
        is_python = host.kind == CLASSES.index("python")
        self._read_frames(np.where(is_python, host.name, -1), timeline.names)
        self._read_frames(*_call_stacks(timeline, host, ops))

    def label(self, owner: Ints) -> tuple[Ints, list[tuple[str, str | None]]]:
        """Return the label of each owner (-1: nobody, -2: no blame) as an index into labels."""
        if not len(self._parents):  # no event at all on the threads concerned
            return np.where(owner == -1, 0, -1), [("unattributed", None)]
        used = np.zeros(len(self._parents) + 2, bool)
        used[owner + 2] = True
        owners = np.flatnonzero(used) - 2  # an event owns many stretches: each is explained once
        slices = range(0, len(owners), MAX_AT_ONCE)
        key = np.concatenate([owners[:0], *(self._key(owners[i : i + MAX_AT_ONCE]) for i in slices)])
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        label = np.full(len(used), -1, np.int64)
        label[owners + 2] = np.where(owners == -2, -1, index)
        return label[owner + 2], self._labels(owners[first])

    def _key(self, owner: Ints) -> Ints:
        """Return a number for each owner, the same for those with the same label."""
        explains, culprit, above, frame_at = self._explain(owner)
        names = len(self._names)
        key = np.where(above >= 0, self._host.name[above], names)
        key = key * (names + 1) + self._host.name[explains]
        key = key * (len(self._frames) + 1) + np.where(frame_at >= 0, self._frame[frame_at], len(self._frames))
        key = key * len(HOST_KINDS) + culprit
        result: Ints = np.where(owner >= 0, key, owner)
        return result

    def _explain(self, owner: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the event that gives the kind, the kind, what encloses a call, and the event with a place."""
        rows = np.maximum(owner, 0)
        found = self._climb(rows, self._kinds >= 0)
        explains = np.where(found >= 0, found, rows)
        default = np.array([HOST_KINDS.index(_DEFAULT[c]) if c in _DEFAULT else -1 for c in CLASSES])
        culprit = np.where(found >= 0, self._kinds[found], default[self._host.kind[rows]])
        is_call = self._host.kind[explains] == CLASSES.index("runtime")
        encloses = np.isin(self._host.kind, [CLASSES.index("op"), CLASSES.index("range")])
        above = self._climb(np.where(is_call, self._parents[explains], -1), encloses)
        frame_at = self._climb(rows, self._own_frame)
        frame_at = np.where(frame_at >= 0, frame_at, self._climb(rows, self._frame >= 0))
        return explains, culprit, above, frame_at

    def _labels(self, owner: Ints) -> list[tuple[str, str | None]]:
        labels: list[tuple[str, str | None]] = []
        for one, explains, culprit, above, frame_at in zip(owner, *self._explain(owner), strict=True):
            if one < 0:
                labels.append(("unattributed", None))
                continue
            kind, name = HOST_KINDS[culprit], self._name(explains)
            if above >= 0:
                name = f"{name} in {self._name(above)}"
            if frame_at >= 0:
                frame = self._frames[self._frame[frame_at]]
                name = f"{frame} ({name})" if kind in ("sync", "allocator") else frame
            labels.append((kind, name))
        return labels

    def _climb(self, rows: Ints, wanted: Mask) -> Ints:
        """Return the nearest event up the stack, or the event itself, that is wanted; -1 for none."""
        at = rows.copy()
        todo = np.flatnonzero(at >= 0)
        while len(todo := todo[~wanted[at[todo]]]):
            at[todo] = self._parents[at[todo]]
            todo = todo[at[todo] >= 0]
        return at

    def _name(self, row: int) -> str:
        name = self._names[self._host.name[row]]
        return "ProfilerStep" if name.startswith("ProfilerStep") else name

    def _read_frames(self, codes: Ints, texts: list[str]) -> None:
        """Give rows the frame that their text names: the innermost of the user's code, else the innermost."""
        frame, own_frame = np.full(len(texts) + 1, -1, np.int64), np.zeros(len(texts) + 1, bool)
        for code in np.unique(codes[codes >= 0]).tolist():
            frames = list(_FRAME.finditer(texts[code]))
            own = next((m for m in frames if not _LIBRARY.search(m["file"].strip())), None)
            chosen = own or (frames[0] if frames else None)
            if chosen is not None:
                frame[code], own_frame[code] = len(self._frames), own is not None
                self._frames.append(f"{chosen['file'].strip()}:{chosen['line']} {chosen['function'].strip()}")
        free = self._frame < 0
        self._frame[free], self._own_frame[free] = frame[codes[free]], own_frame[codes[free]]


def _without_numbers(names: list[str], codes: Ints) -> tuple[list[str], Ints, Mask]:
    """Return names, the code of each event in them, and which events emit_nvtx had numbered."""
    known: dict[str, int] = {}
    to_code = np.arange(len(names), dtype=np.int64)
    for code in np.unique(codes).tolist():
        numbered = " = " in names[code] and _NUMBERED.fullmatch(names[code])
        if numbered:
            to_code[code] = len(names) + known.setdefault(numbered["op"], len(known))
    renamed = to_code[codes]
    return [*names, *known], renamed, renamed >= len(names)


def _call_stacks(timeline: Timeline, host: Host, ops: pa.Table | None) -> tuple[Ints, list[str]]:
    """Return the recorded call stack of each host event, as codes (-1: none) and texts."""
    codes = np.full(len(host.event_id), -1, np.int64)
    if ops is None or not len(ops) or ops["call_stack"].null_count == len(ops):
        return codes, []
    ops = ops.filter(pc.and_(pc.equal(ops["rank"], timeline.rank), pc.equal(ops["segment"], timeline.segment)))
    ops = ops.filter(pc.is_valid(ops["call_stack"]))
    stacks, texts = encode_text(ops["call_stack"])
    events = ints(ops["event_id"])
    order = np.argsort(events, kind="stable")
    if len(order):
        at = np.minimum(np.searchsorted(events[order], host.event_id), len(order) - 1)
        codes = np.where(events[order][at] == host.event_id, stacks[order][at], -1)
    return codes, texts
