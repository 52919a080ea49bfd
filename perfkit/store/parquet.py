"""How perfkit writes Parquet, and how it opens Parquet that it did not write.

Writing is on the hot path of ingest, so the options are chosen by measurement (benchmarks/parquet_options.py); see
`open_writer`. Foreign files are hostile until checked: a file of 0.9 MB can hold 200 million rows while
its footer says 0.8 MB, so `check_parquet` looks at values × width, and `iter_parquet` counts what comes out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.errors import CorruptInput, UnsafeInput, first_line
from perfkit.store.footer import Footer, read_footer

ROW_GROUP_ROWS = 1 << 18
"""Rows per row group: bounds the writer's memory, and lets readers skip."""
FIRST_GROUP_ROWS = 1 << 15
"""Rows of a file's first row group; each later one may hold as many as were written before it."""

_GROWING = {
    "event_id", "start_ns", "time_ns", "correlation", "external_id", "flow_id", "python_id", "python_parent_id",
    "python_caller_id", "record_function_id", "sequence_number", "seq", "wait_on_event_correlation",
}  # fmt: skip
"""Integers that mostly grow from row to row: differences are small, and a dictionary would hold every value."""

_PLAIN = {"dur_ns", "bytes", "address", "allocated_bytes", "reserved_bytes", "rank", "segment"}
"""Integers with neither order nor repetition, and those of which a file has one: a dictionary gains nothing."""

_PRUNED_BY = {"rank", "segment", "event_id", "start_ns", "time_ns", "step"}
"""What queries cut row groups by. Statistics of the other columns cost a quarter of the writing time."""


def open_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet file for writing rows of `schema`.

    On 2 million real events (269 MB of Arrow) against pyarrow's defaults with zstd 1: 0.18 s and 5.5 MB
    against 0.49 s and 19.8 MB.
    """
    plain = {f.name for f in schema if f.name in _PLAIN or pa.types.is_floating(f.type)}
    return pq.ParquetWriter(
        path,
        pa.schema([f.remove_metadata() for f in schema], metadata=schema.metadata),  # the docs are in docs/tables.md
        compression="zstd",
        compression_level=1,
        use_dictionary=[f.name for f in schema if f.name not in plain | _GROWING],
        column_encoding={f.name: "DELTA_BINARY_PACKED" for f in schema if f.name in _GROWING},
        dictionary_pagesize_limit=64 << 20,  # a row group's names stay one dictionary instead of falling back to text
        # One page for a column of a row group, encoded in one go: every page takes a compressor of its own.
        data_page_size=8 * ROW_GROUP_ROWS,
        max_rows_per_page=2 * ROW_GROUP_ROWS,
        write_batch_size=ROW_GROUP_ROWS,
        write_statistics=[f.name for f in schema if f.name in _PRUNED_BY],
        write_page_checksum=True,
    )


_COPY_AGAIN = "copy it again from where it was made"


@dataclass(frozen=True, slots=True)
class ParquetLimits:
    """How much a foreign Parquet file may unfold to."""

    max_rows: int = 1_000_000_000
    max_bytes: int = 16 << 30
    """Decoded size."""
    max_ratio: float = 1000.0
    """Decoded size over file size; looked at above `ratio_floor_bytes`."""
    ratio_floor_bytes: int = 256 << 20


def check_parquet(path: str | Path, limits: ParquetLimits | None = None) -> pq.FileMetaData:
    """Return the footer of a foreign file, or raise UnsafeInput or CorruptInput before anything is decoded."""
    try:
        size, footer = Path(path).stat().st_size, read_footer(path)
    except (OSError, ValueError) as error:
        raise _not_readable(path, error) from error
    _check_footer(str(path), size, footer, limits or ParquetLimits())
    with _open(path) as file:
        try:
            _leaves(file.metadata)
        except ValueError as error:  # a name that is not UTF-8
            raise _not_readable(path, error) from error
        return file.metadata


def iter_parquet(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    limits: ParquetLimits | None = None,
    batch_rows: int = 1 << 16,
) -> Iterator[pa.RecordBatch]:
    """Read a foreign file in batches, and stop when more comes out than the limits allow.

    Text is read as dictionaries, so that one long value repeated a million times is held once.
    """
    limits = limits or ParquetLimits()
    size = Path(path).stat().st_size if Path(path).exists() else 0
    metadata = check_parquet(path, limits)
    text = [name for name, kind in _leaves(metadata) if kind == "BYTE_ARRAY"]
    decoded = 0
    with _open(path, read_dictionary=text) as file:
        try:
            for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
                decoded += batch.nbytes
                _check_size(str(path), size, decoded, limits)
                yield batch
        except (OSError, pa.ArrowException, ValueError) as error:
            raise CorruptInput(f"broken Parquet: {first_line(error)}", path=str(path), next_step=_COPY_AGAIN) from error


def _open(path: str | Path, read_dictionary: list[str] | None = None) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(
            path,
            read_dictionary=read_dictionary,
            page_checksum_verification=True,
            thrift_string_size_limit=64 << 20,
            thrift_container_size_limit=4 << 20,
        )
    except (OSError, pa.ArrowException, ValueError) as error:
        raise _not_readable(path, error) from error


def _not_readable(path: str | Path, error: BaseException) -> CorruptInput:
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else first_line(error)
    return CorruptInput(f"not a readable Parquet file: {reason}", path=str(path), next_step=_COPY_AGAIN)


def _check_footer(path: str, size: int, footer: Footer, limits: ParquetLimits) -> None:
    values = 0
    for kind, num_values, num_rows in footer.chunks:
        values += max(num_values, num_rows) * _WIDTHS.get(kind, 4)
    if footer.num_rows > limits.max_rows:
        raise UnsafeInput(
            f"{footer.num_rows:,} rows are more than the limit of {limits.max_rows:,}",
            path=path,
            next_step="split the file if it is genuine",
        )
    _check_size(path, size, values, limits)


def _check_size(path: str, size: int, decoded: int, limits: ParquetLimits) -> None:
    too_large = decoded > limits.max_bytes
    if too_large or (decoded > limits.ratio_floor_bytes and decoded > size * limits.max_ratio):
        raise UnsafeInput(
            f"{size:,} bytes of Parquet unfold to {decoded:,} or more; refused as a decompression bomb",
            path=path,
            next_step="split the file if it is genuine",
        )


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 4}


def _leaves(metadata: pq.FileMetaData) -> list[tuple[str, str]]:
    return [(c.path, c.physical_type) for c in (metadata.schema.column(i) for i in range(metadata.num_columns))]
