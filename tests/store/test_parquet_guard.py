"""Foreign Parquet is checked before it is read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import CorruptInput, InputError, UnsafeInput
from perfkit.store import ParquetLimits, check_parquet, iter_parquet

SMALL = ParquetLimits(max_rows=1_000_000, max_bytes=64 << 20, max_ratio=100.0, ratio_floor_bytes=1 << 20)


def test_an_honest_file_passes_and_is_read_in_batches(tmp_path):
    path = tmp_path / "honest.parquet"
    rows = pa.table({"x": np.random.default_rng(0).integers(0, 2**60, 50_000), "name": ["a", "b"] * 25_000})
    pq.write_table(rows, path)
    assert check_parquet(path, SMALL).num_rows == 50_000
    batches = list(iter_parquet(path, limits=SMALL, batch_rows=20_000))
    assert [len(batch) for batch in batches] == [20_000, 20_000, 10_000]
    assert pa.Table.from_batches(batches)["x"].to_pylist() == rows["x"].to_pylist()
    assert pa.Table.from_batches(batches)["name"].to_pylist() == rows["name"].to_pylist()
    assert next(iter_parquet(path, columns=["name"])).schema.names == ["name"]


def test_a_file_of_constants_that_unfolds_without_end_is_refused_by_its_footer(tmp_path):
    path = tmp_path / "bomb.parquet"
    with pq.ParquetWriter(path, pa.schema([("x", pa.int64())]), compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(pa.table({"x": np.zeros(1_000_000, np.int64)}))
    assert path.stat().st_size < 100_000
    with pytest.raises(UnsafeInput, match=r"4,000,000 rows are more than the limit"):
        check_parquet(path, SMALL)
    with pytest.raises(UnsafeInput, match=r"bomb\.parquet: .* unfold to 32,000,000 or more; refused"):
        check_parquet(path, ParquetLimits(max_ratio=100.0, ratio_floor_bytes=1 << 20))
    with pytest.raises(UnsafeInput):
        list(iter_parquet(path, limits=SMALL))


def test_lists_are_counted_by_their_values_not_by_rows(tmp_path):
    path = tmp_path / "lists.parquet"
    offsets = pa.array(np.array([0, 3_000_000], np.int32))
    rows = pa.table({"x": pa.ListArray.from_arrays(offsets, pa.array(np.zeros(3_000_000, np.int64)))})
    pq.write_table(rows, path, compression="zstd")
    with pytest.raises(UnsafeInput, match="unfold to 24,000,000"):
        check_parquet(path, SMALL)


def test_a_long_text_that_repeats_is_held_once(tmp_path):
    path = tmp_path / "text.parquet"
    long = "x" * 100_000
    rows = pa.table({"name": pa.DictionaryArray.from_arrays(np.zeros(200_000, np.int32), [long])})
    pq.write_table(rows, path)
    biggest = max(batch.nbytes for batch in iter_parquet(path))
    assert biggest < 1 << 20


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\xff" * 64 + b"PAR1"])
def test_what_is_not_parquet_is_a_corrupt_input(tmp_path, content):
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(CorruptInput, match=r"x\.parquet: not a readable Parquet file"):
        check_parquet(path)


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"none\.parquet"):
        list(iter_parquet(tmp_path / "none.parquet"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_file_gives_its_rows_or_an_input_error(tmp_path, data):
    rows = pa.table({"x": np.arange(500), "name": ["a", "b"] * 250})
    path = tmp_path / "mutated.parquet"
    pq.write_table(rows, path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
    try:
        decoded = sum(len(batch) for batch in iter_parquet(path, limits=SMALL))
    except InputError:
        return
    assert decoded <= SMALL.max_rows
