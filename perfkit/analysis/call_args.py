"""What the communication library recorded about its calls, as arrays that are looked up by event.

    args = CallArgs.read(table, groups)     `collective_args` and `process_groups` of one rank
    args.row_of(event_id)                   row of each event, -1 for none
    args.numbers(name, rows) · args.texts(name, rows)

Values are read once per distinct text. A list of ranks that the profiler cut short ("[0, 1, ...]") is not a
list: it is rebuilt from first rank, stride and size, or taken from the description of the process group.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.classify import encode_text
from perfkit.analysis.intervals import Ints

ARG_COLUMNS = (
    "collective", "dtype", "in_nelems", "out_nelems", "in_split", "out_split", "message_bytes", "group_name",
    "group_desc", "group_ranks", "group_size", "group_rank", "comm_id", "seq", "src_rank", "dst_rank", "root_rank",
    "peer_rank", "global_rank_start", "global_rank_stride",
)  # fmt: skip
"""What is read of the `collective_args` table."""
NONE = -1
ITEM_BYTES = {
    "float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int": 4, "long": 8,
    "long int": 8, "short": 2, "byte": 1, "char": 1, "bool": 1, "int64": 8, "int32": 4, "int16": 2, "uint8": 1,
    "int8": 1, "signed char": 1, "unsigned char": 1, "c10::half": 2, "c10::bfloat16": 2, "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::complex<float>": 8, "complexfloat": 8,
}  # fmt: skip
_SHOWN = {
    "float": "float32", "double": "float64", "half": "float16", "c10::half": "float16", "c10::bfloat16": "bfloat16",
    "long": "int64", "long int": "int64", "int": "int32", "char": "int8", "signed char": "int8", "byte": "uint8",
    "unsigned char": "uint8",
}  # fmt: skip


def item_bytes(dtype: str | None) -> int | None:
    """Return the size of an element, None if the type is not known."""
    return ITEM_BYTES.get((dtype or "").lower())


def shown_dtype(dtype: str | None) -> str | None:
    """Return one spelling of an element type, whoever recorded it."""
    return None if not dtype else _SHOWN.get(dtype.lower(), dtype.lower().removeprefix("c10::"))


def ranks_text(ranks: Iterable[int]) -> str:
    """Return the one spelling of a set of ranks."""
    return json.dumps(sorted({int(rank) for rank in ranks}), separators=(",", ":"))


def parse_ranks(text: str | None) -> list[int] | None:
    """Read a recorded list of ranks in its order; None if it is none, or cut short."""
    if not text or "..." in text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, list) or not found or not all(type(rank) is int for rank in found):
        return None
    return found


@dataclass
class CallArgs:
    """Rows of one rank's `collective_args`, sorted by event."""

    event_id: Ints
    _numbers: dict[str, Ints] = field(default_factory=dict)
    _texts: dict[str, tuple[Ints, list[str]]] = field(default_factory=dict)
    named_ranks: dict[str, list[int]] = field(default_factory=dict)
    """Process group name -> its ranks, from the description of the groups."""

    @classmethod
    def read(cls, table: pa.Table | None, groups: pa.Table | None = None) -> CallArgs:
        """Read the rows that say which collective an event is."""
        named = _named_ranks(groups)
        if table is None or not len(table) or "collective" not in table.column_names:
            return cls(np.empty(0, np.int64), named_ranks=named)
        known = pc.is_valid(table["collective"])
        for name in ("message_bytes", "comm_id"):  # NCCL's NVTX payloads name the operation by their range
            if name in table.column_names:
                known = pc.or_(known, pc.is_valid(table[name]))
        table = table.filter(known)
        table = table.take(pc.sort_indices(table["event_id"]))
        found = cls(table["event_id"].to_numpy(), named_ranks=named)
        for name in ARG_COLUMNS:
            if name not in table.column_names:
                continue
            column = table[name]
            if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
                codes, values = encode_text(column)
                found._texts[name] = codes.astype(np.int64), values
            elif pa.types.is_uint64(column.type):  # an id that uses all 64 bits: only equality matters
                found._numbers[name] = pc.fill_null(column, 2**64 - 1).to_numpy().view(np.int64)
            else:
                found._numbers[name] = pc.fill_null(column.cast(pa.int64()), NONE).to_numpy()
        return found

    def __len__(self) -> int:
        return len(self.event_id)

    def row_of(self, event_id: Ints) -> Ints:
        """Return the row of each event, -1 for none."""
        if not len(self.event_id):
            return np.full(len(event_id), NONE, np.int64)
        at = np.minimum(np.searchsorted(self.event_id, event_id), len(self.event_id) - 1)
        result: Ints = np.where(self.event_id[at] == event_id, at, NONE)
        return result

    def numbers(self, name: str, rows: Ints) -> Ints:
        """Return a column of numbers, -1 where nothing was recorded."""
        if name not in self._numbers:
            return np.full(len(rows), NONE, np.int64)
        result: Ints = np.append(self._numbers[name], NONE)[rows]
        return result

    def codes(self, name: str, rows: Ints) -> tuple[Ints, list[str]]:
        """Return a text column as codes (-1 for none) and values."""
        if name not in self._texts:
            return np.full(len(rows), NONE, np.int64), []
        codes, values = self._texts[name]
        return np.append(codes, NONE)[rows], values

    def texts(self, name: str, rows: Ints) -> list[str | None]:
        """Return a text column as values; for columns of few rows."""
        codes, values = self.codes(name, rows)
        table = [*values, None]
        return [table[code] or None for code in codes.tolist()]

    def group_ranks(self, rows: Ints) -> list[list[int] | None]:
        """Return the ranks of the group of each row, in the order of the group; None if they are not known."""
        codes, values = self.codes("group_ranks", rows)
        names, name_values = self.codes("group_name", rows)
        start, stride, size = (self.numbers(c, rows) for c in ("global_rank_start", "global_rank_stride", "group_size"))
        keys = np.stack([codes, names, start, stride, size])
        distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
        found: list[list[int] | None] = []
        for code, name, first, step, number in distinct.T.tolist():
            ranks = parse_ranks(values[code]) if code >= 0 else None
            if ranks is None and name >= 0:
                ranks = self.named_ranks.get(name_values[name])
            if ranks is None and first >= 0 and step > 0 and number > 0:
                ranks = list(range(first, first + step * number, step))
            found.append(ranks if ranks is None or number <= 0 or len(ranks) == number else None)
        return [found[i] for i in inverse.ravel().tolist()]


def _named_ranks(groups: pa.Table | None) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    rows: list[Mapping[str, object]] = groups.to_pylist() if groups is not None else []
    for row in rows:
        ranks = row.get("ranks")
        if isinstance(ranks, list) and ranks and row.get("size") in (None, len(ranks)):
            found[str(row["name"])] = [int(rank) for rank in ranks]
    return found
