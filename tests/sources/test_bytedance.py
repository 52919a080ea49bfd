"""Op traces of pipeline jobs: all of their ops, or one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfkit.errors import CorruptInput, InputError, UnsupportedInput
from perfkit.sources.bytedance import COLUMNS, is_op_trace, read_ops


def ops(**columns: object) -> pa.Table:
    plain = dict.fromkeys(COLUMNS, np.arange(5)) | {"optype": ["forward-compute", "gc"] * 2 + ["optimizer"]}
    return pa.table(plain | {"start_ts": np.arange(5) / 10, "duration": np.full(5, 1e-3)} | columns)


def written(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "ops.parquet", row_group_size=2)
    return folder / "ops.parquet"


def test_ops_of_all_row_groups_come_in_ns(tmp_path: Path) -> None:
    path = written(tmp_path, ops())
    found = read_ops(path)
    assert is_op_trace(path)
    assert found["op"].to_pylist() == ["forward-compute", "gc", "forward-compute", "gc", "optimizer"]
    assert found["start_ns"].to_pylist() == [0, 100_000_000, 200_000_000, 300_000_000, 400_000_000]
    assert set(found["dur_ns"].to_pylist()) == {1_000_000}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (ops().slice(0, 0), "no rows"), (ops().drop_columns(["mc"]), "no mc"),
        (ops(mc=pa.nulls(5, pa.int64())), "nulls in mc"), (ops(duration=np.full(5, -1.0)), "negative durations"),
    ],
)  # fmt: skip
def test_what_would_leave_a_hole_is_corrupt(tmp_path: Path, table: pa.Table, said: str) -> None:
    with pytest.raises(CorruptInput, match=said):
        read_ops(written(tmp_path, table))


def test_an_op_of_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedInput, match="unknown kinds: dance"):
        read_ops(written(tmp_path, ops(optype=["dance"] * 5)))


def test_every_cut_is_an_input_error(tmp_path: Path) -> None:
    path = written(tmp_path, ops())
    content = path.read_bytes()
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        with pytest.raises(InputError):
            read_ops(path)
