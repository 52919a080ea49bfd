"""Read pieces of a table as one: check each footer against its commit, migrate what is old, verify pages.

A piece is a Parquet file that is known to be complete, because a commit lists it or because it is a whole
table by itself. Pieces of today's schema are scanned as one Arrow dataset (filters and columns are
pushed down, files are read in parallel, in order); older ones go through `migrations` file by file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfkit.errors import StoreError, UsageError, first_line
from perfkit.schema import SCHEMA_VERSION, VERSION_KEY, TableSchema
from perfkit.store.files import Files, check_footer, not_committed
from perfkit.store.migrations import check_version, migrate_table
from perfkit.store.segment import FINGERPRINT_KEY

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@cache
def _format() -> ds.ParquetFileFormat:
    import pyarrow.dataset as ds  # brings pandas, which whoever only writes does not need

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    return ds.ParquetFileFormat(default_fragment_scan_options=options)


_PARTITION_TYPES = {"cluster": pa.utf8(), "run": pa.utf8(), "attempt": pa.int32(), "date": pa.utf8()}


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a table, with what its commit promises."""

    path: str
    partition: Mapping[str, str | int]
    rows: int | None = None
    fingerprint: str | None = None
    row_groups: tuple[int, int] | None = None
    """The part of the file that is meant: the first row group, and how many."""
    footer_crc: int | None = None


@dataclass(frozen=True)
class Selection:
    """Pieces of a table, and which columns and rows of them."""

    files: Files
    schema: TableSchema
    pieces: Sequence[Piece]
    partition_names: tuple[str, ...]
    columns: Sequence[str] | None = None
    filter: pc.Expression | None = None
    partitions: bool = False
    _names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        known = [*self.schema.names, *self.partition_names]
        unknown = [name for name in self.columns or () if name not in known]
        if unknown:
            raise UsageError(f"{self.schema.name} has no columns {unknown}; it has {known}")
        names = list(self.schema.names if self.columns is None else self.columns)
        if self.partitions:
            names += [name for name in self.partition_names if name not in names]
        object.__setattr__(self, "_names", names)

    @property
    def arrow(self) -> pa.Schema:
        """Schema of the table and its partitions."""
        schema = self.schema.arrow
        for name in self.partition_names:
            schema = schema.append(pa.field(name, _PARTITION_TYPES[name]))
        return schema

    def read(self) -> pa.Table:
        """Return everything as one table."""
        parts = [self.arrow.empty_table().select(self._names)]
        with self._naming_the_damage():
            parts += [part.to_table(columns=self._names, filter=self.filter) for part in self._datasets()]
        return pa.concat_tables([part.replace_schema_metadata(parts[0].schema.metadata) for part in parts])

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Iterate over everything in batches."""
        with self._naming_the_damage():
            for part in self._datasets():
                yield from part.to_batches(columns=self._names, filter=self.filter)

    def dataset(self) -> ds.Dataset:
        """Return one dataset over the files; only if none of them is of an older schema."""
        import pyarrow.dataset as ds

        parts = list(self._datasets())
        if not parts:
            return ds.dataset(self.arrow.empty_table())
        if len(parts) > 1 or not isinstance(parts[0], ds.FileSystemDataset):
            raise StoreError(
                f"{self.files.name}: {self.schema.name} has files of an older schema",
                next_step=f"run `perfkit store migrate {self.files.name}` first, or use read() or scan()",
            )
        return parts[0]

    # ---------------------------------------------------------------- inside

    def _datasets(self) -> Iterator[ds.Dataset]:
        import pyarrow.dataset as ds

        files = {piece.path: piece for piece in self.pieces}  # a pack has many pieces and one footer
        with ThreadPoolExecutor(max_workers=16) as pool:  # footers: latency, not work
            whole = dict(zip(files, pool.map(self._fragment, files.values()), strict=True))
        opened = [self._open(piece, whole[piece.path]) for piece in self.pieces]
        for current, group in itertools.groupby(opened, key=lambda entry: entry[2] == SCHEMA_VERSION):
            if current:
                fragments = [fragment for _, fragment, _ in group]
                yield ds.FileSystemDataset(fragments, self.arrow, _format(), self.files.filesystem)
            else:
                yield from (self._migrated(piece, version) for piece, _, version in group)

    def _fragment(self, piece: Piece) -> ds.FileFragment:
        equalities = [pc.field(name) == value for name, value in piece.partition.items()]
        path = self.files.path(piece.path)
        try:
            check_footer(self.files, piece.path, piece.footer_crc)
            fragment = _format().make_fragment(path, self.files.filesystem, reduce(and_, equalities))
            fragment.ensure_complete_metadata()
        except FileNotFoundError:
            raise StoreError(
                f"{path} is gone, although a commit lists it",
                next_step="read again if the run was being replaced, else ingest its source again",
            ) from None
        except PermissionError:
            raise StoreError(f"{path}: permission denied", next_step="make it readable with `chmod u+r`") from None
        except (OSError, pa.ArrowException, ValueError) as error:  # ValueError: text that is not UTF-8
            raise self._damaged(piece, error) from error
        return fragment

    def _open(self, piece: Piece, fragment: ds.FileFragment) -> tuple[Piece, ds.FileFragment, int]:
        path = self.files.path(piece.path)
        try:
            stored = fragment.physical_schema.metadata or {}
            version = int(stored.get(VERSION_KEY, b"0"))
            fingerprint = stored.get(FINGERPRINT_KEY, b"").decode()
            if piece.row_groups is not None:
                first, count = piece.row_groups
                fragment = fragment.subset(row_group_ids=list(range(first, first + count)))
                rows = sum(group.num_rows for group in fragment.row_groups)
            else:
                rows = fragment.metadata.num_rows
        except (OSError, pa.ArrowException, ValueError, IndexError) as error:
            raise self._damaged(piece, error) from error
        check_version(version, path)
        if piece.rows not in (None, rows) or piece.fingerprint not in (None, fingerprint):
            raise not_committed(path)
        return piece, fragment, version

    def _migrated(self, piece: Piece, version: int) -> ds.Dataset:
        import pyarrow.dataset as ds

        file = self._file(piece)
        first, count = piece.row_groups or (0, file.num_row_groups)
        rows = migrate_table(self.schema.name, file.read_row_groups(list(range(first, first + count))), version)
        for name, value in piece.partition.items():
            rows = rows.append_column(name, pa.array([value] * len(rows), _PARTITION_TYPES[name]))
        return ds.dataset(rows)

    def _file(self, piece: Piece) -> pq.ParquetFile:
        return pq.ParquetFile(
            self.files.path(piece.path), filesystem=self.files.filesystem, page_checksum_verification=True
        )

    def _naming_the_damage(self) -> _NamingTheDamage:
        return _NamingTheDamage(self)

    def _damaged(self, piece: Piece, error: BaseException) -> StoreError:
        what = f"{self.files.path(piece.path)} is damaged: {first_line(error)}"
        return StoreError(what, next_step="ingest its source again with --replace")

    def find_damage(self) -> StoreError | None:
        """Read every piece alone and name the first that cannot be read."""
        for piece in self.pieces:
            try:
                file = self._file(piece)
                for group in range(file.num_row_groups):
                    file.read_row_group(group).validate()
            except (OSError, pa.ArrowException, ValueError) as error:
                return self._damaged(piece, error)
        return None


class _NamingTheDamage:
    """Arrow says that a checksum is wrong, but not in which of a thousand files."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, pa.ArrowInvalid, UnicodeDecodeError)):
            found = self._selection.find_damage()
            if found:
                raise found from error
