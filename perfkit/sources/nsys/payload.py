"""Decode the typed NVTX payloads with which NCCL describes its calls.

    NcclPayloads(tables).decode(blobs) -> columns of collective_args, null where a payload says nothing

A payload is a 32-byte header (domain, schema, sizes) and fields whose offset and type are rows of
NVTX_PAYLOAD_SCHEMA_ENTRIES. That table does not say which process registered a schema, so an id that
two processes used for different layouts is ambiguous and decodes to nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.sources.nsys.tables import Bools, Tables, rows_of

HEADER_BYTES = 32

COLUMN_OF_FIELD = {
    "nccl communicator id": "comm_id",
    "message size [bytes]": "message_bytes",
    "no. of ranks": "group_size",
    "rank": "group_rank",
    "peer rank": "peer_rank",
    "root": "root_rank",
}
"""NCCL's names of payload fields (src/include/nvtx_payload_schemas.h), lower case."""

_NUMPY_TYPE = {
    3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<i8", 8: "<u8", 9: "<i8", 10: "<u8", 11: "i1", 12: "u1",
    13: "<i2", 14: "<u2", 15: "<i4", 16: "<u4", 17: "<i8", 18: "<u8", 22: "<u8",
}  # fmt: skip
"""Integer types of nvToolsExtPayload.h (C `long` and `size_t` as on 64-bit Linux)."""


class _Field(NamedTuple):
    column: str
    offset: int
    dtype: str


class NcclPayloads:
    """The payload schemas of one report that mention a communicator."""

    def __init__(self, tables: Tables) -> None:
        entries = rows_of(
            tables, "NVTX_PAYLOAD_SCHEMA_ENTRIES", ints=["domainId", "schemaId", "type", "offset"], texts=["name"]
        )
        layouts: dict[tuple[int, int], dict[str, _Field]] = {}
        ambiguous: set[tuple[int, int]] = set()
        for entry in entries:
            column = COLUMN_OF_FIELD.get(str(entry.get("name")).lower())
            dtype = _NUMPY_TYPE.get(entry.get("type") or 0)
            domain, schema = entry.get("domainId"), entry.get("schemaId")
            if column is None or dtype is None or domain is None or schema is None:
                continue
            offset = entry.get("offset") or 0
            layout = layouts.setdefault((domain, schema), {})
            new = _Field(column, offset, dtype)
            if layout.setdefault(column, new) != new or not 0 <= offset < 4096:
                ambiguous.add((domain, schema))
        self.layouts = {
            key: tuple(layout.values())
            for key, layout in layouts.items()
            if "comm_id" in layout and key not in ambiguous
        }
        self.num_ambiguous = len(ambiguous)

    def decode(self, blobs: pa.Array) -> tuple[dict[str, pa.Array], Bools]:
        """Return columns as long as `blobs`, and which rows decoded."""
        rows = len(blobs)
        values = {column: np.zeros(rows, np.uint64) for column in COLUMN_OF_FIELD.values()}
        known = {column: np.zeros(rows, np.bool_) for column in values}
        lengths = pc.fill_null(pc.binary_length(blobs), 0).to_numpy().astype(np.int64)
        begins = np.cumsum(lengths) - lengths
        data = np.frombuffer(b"".join(value for value in blobs.to_pylist() if value is not None), np.uint8)
        full = np.flatnonzero(lengths >= HEADER_BYTES)
        domain = _gather(data, begins[full], "<u4")
        schema = _gather(data, begins[full] + 8, "<u4")
        decoded = np.zeros(rows, np.bool_)
        for (domain_id, schema_id), layout in self.layouts.items():
            of_schema = full[(domain == domain_id) & (schema == schema_id)]
            for field in layout:
                at = HEADER_BYTES + field.offset
                fits = of_schema[lengths[of_schema] >= at + np.dtype(field.dtype).itemsize]
                # negative numbers (no peer, no root) are not ranks: they stay null
                found = _gather(data, begins[fits] + at, field.dtype)
                kept = found >= 0
                values[field.column][fits[kept]] = found[kept].astype(np.uint64)
                known[field.column][fits[kept]] = True
                decoded[fits] = True
        columns = {}
        for column, raw in values.items():
            if column != "comm_id":
                known[column] &= raw <= np.iinfo(np.int64).max
            array = pa.array(raw, mask=~known[column])
            columns[column] = array if column == "comm_id" else array.cast(pa.int64(), safe=False)
        return columns, decoded


def _gather(data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[np.integer]:
    """Read one little-endian value at each position."""
    size = np.dtype(dtype).itemsize
    if not len(begins):
        return np.empty(0, dtype)
    raw: npt.NDArray[np.uint8] = data[begins[:, None] + np.arange(size)]
    return np.ascontiguousarray(raw).view(dtype)[:, 0]
