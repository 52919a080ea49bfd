"""From the schema of an older store to today's, one version at a time.

    MIGRATIONS[v](table_name, rows of version v) -> rows of version v + 1

A store of an older version is read through these functions, and `perfkit store migrate` rewrites it with
them, segment by segment, each by one atomic commit. A newer version is refused: guessing at it would
be misreading it.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from perfkit.errors import StoreError
from perfkit.schema import SCHEMA_VERSION, TABLES, conform

Migration = Callable[[str, pa.Table], pa.Table]

MIGRATIONS: dict[int, Migration] = {}
"""From version -> function. Empty while there is only one version of the schema."""


def check_version(version: int, where: str) -> None:
    """Refuse what this perfkit cannot read: newer versions, and older ones without a way here."""
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{where}: written by a newer perfkit (schema version {version}, this one knows {SCHEMA_VERSION})",
            next_step="upgrade perfkit",
        )
    missing = [v for v in range(version, SCHEMA_VERSION) if v not in MIGRATIONS]
    if missing:
        raise StoreError(
            f"{where}: schema version {version} is too old to be read (no migration from {missing})",
            next_step="ingest the traces again into a new store",
        )


def migrate_table(name: str, rows: pa.Table, version: int) -> pa.Table:
    """Bring rows of an older version to today's schema."""
    for step in range(version, SCHEMA_VERSION):
        rows = MIGRATIONS[step](name, rows)
    return conform(TABLES[name], rows)
