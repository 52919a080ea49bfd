"""Which nsys exports lie among the names of parquet files; the rest of kinds.py is tested through find_inputs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfkit.sources.kinds import nsys_exports

PARTS = st.sampled_from(["a", "b-c", "StringIds", "NVTX_EVENTS", "PROCESSES", ".", "é"])
NAMES = st.lists(st.builds(lambda parts: "/".join(parts) + ".parquet", st.lists(PARTS, min_size=1, max_size=4)))


def test_one_name_that_only_nsys_uses_makes_an_export_of_the_tables_beside_it() -> None:
    names = ["x/StringIds.parquet", "x/PROCESSES.parquet", "x/part-0.parquet", "y/PROCESSES.parquet", "x/a/b.parquet"]
    tables = {"StringIds.parquet": names[0], "PROCESSES.parquet": names[1]}
    assert nsys_exports(names) == {"x": tables}


def test_a_folder_per_table_may_hold_files_of_any_name() -> None:
    names = ["StringIds/StringIds.parquet", "PROCESSES/part-0 of 1.parquet", "PROCESSES/deeper/x.parquet"]
    assert nsys_exports(names) == {"": {name: name for name in names[:2]}}


def test_only_parquet_counts() -> None:
    assert nsys_exports(["StringIds.json", "StringIds", "StringIds.parquet.crc"]) == {}


@given(names=NAMES)
def test_a_file_is_in_one_export_at_most_and_found_by_its_name_there(names: list[str]) -> None:
    exports = nsys_exports(names)
    assert exports == nsys_exports(reversed(names))
    members = [name for files in exports.values() for name in files.values()]
    assert len(members) == len(set(members))
    assert set(members) <= set(names)
    for folder, files in exports.items():
        for within, name in files.items():
            assert name == (f"{folder}/{within}" if folder else within)
            assert within.count("/") <= 1
            assert within.partition("/")[0].removesuffix(".parquet").isidentifier()
