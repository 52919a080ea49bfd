"""A simulated dump, and every row that an ingest of it left in a store: what all engines must agree on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from perfkit.schema import TABLES
from perfkit.simulate import Job, Mesh, simulate, write_traces
from perfkit.store import Store

SOURCE_TABLES = [name for name, schema in TABLES.items() if schema.kind == "run" and name != "runs"]


def make_dump(folder: Path, ranks: int, *, steps: int = 2, layers: int = 2, seed: int = 0) -> Path:
    """Write one trace per rank of a small simulated job, and nothing else."""
    job = Job(mesh=Mesh.parse("", ranks), steps=steps, layers=layers, seed=seed)
    write_traces(simulate(job), folder)
    for path in [path for path in folder.iterdir() if path.name.startswith("truth")]:
        path.unlink()
    return folder


def all_rows(store: str | Path, run: str, cluster: str = "default") -> dict[str, pa.Table]:
    """Return every row of every table of a run that comes from its sources, in order."""
    lake = Store(store)
    read = {name: lake.read(name, cluster=cluster, run=run) for name in SOURCE_TABLES}
    return {name: plain(rows) for name, rows in read.items()}


def plain(rows: pa.Table) -> pa.Table:
    """Return rows without dictionaries and chunks, which say nothing about content."""
    names = [
        (field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
        for field in rows.schema
    ]
    return rows.replace_schema_metadata(None).cast(pa.schema(names)).combine_chunks()


def assert_same_rows(one: dict[str, pa.Table], two: dict[str, pa.Table]) -> None:
    """Fail with the name of the first table that differs."""
    assert sum(len(rows) for rows in one.values())
    for name in one:
        assert one[name].equals(two[name]), f"{name}: {len(one[name])} rows against {len(two[name])}"
