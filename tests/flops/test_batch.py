from __future__ import annotations

import pytest

from perfkit.errors import CorruptInput, InputError
from perfkit.flops.batch import compute_rows, read_rows

HEADER = "label,model,hardware,tokens_per_second_per_device\n"


def test_rows_are_computed_in_order_and_a_bad_one_does_not_stop_the_others(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "a,llama3-8b,NVIDIA H200,5000\nb,llama9,NVIDIA H200,5000\nc,gpt2,,1000\n")
    first, second, third = compute_rows(read_rows(path), {"dtype": "bf16", "hardware": "NVIDIA B200"})
    assert first.labels == {"label": "a"}
    assert first.result.device == "H200-SXM-141GB"
    assert "llama9" in second.error
    assert second.to_json()["mfu"] is None
    assert third.result.device == "B200-SXM"  # an empty cell takes the default
    assert [row.row for row in (first, second, third)] == [1, 2, 3]


def test_a_misspelt_column_is_an_error_and_not_a_lost_input():
    (row,) = compute_rows([{"model": "gpt2", "token_per_second": "3"}])
    assert "token_per_second" in row.error


def test_columns_with_an_underscore_in_front_are_passed_through():
    (row,) = compute_rows([{"model": "gpt2", "tokens_per_second_per_device": 5, "peak_flops": 1e12, "_run": "17"}])
    assert row.to_json()["_run"] == "17"
    assert row.error is None


def test_a_row_with_too_many_or_too_few_cells_does_not_stop_the_others(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "a,llama3-8b,NVIDIA H200,5,000\nb,llama3-8b\nc,llama3-8b,NVIDIA H200,5000\n")
    first, second, third = compute_rows(read_rows(path))
    assert "more cells than columns" in first.error
    assert "no speed" in second.error
    assert third.result.ok


@pytest.mark.parametrize(
    ("text", "error"),
    [(None, InputError), ("", CorruptInput), (HEADER, CorruptInput), ("model,model\na,b\n", CorruptInput)],
)
def test_a_broken_file_is_named(tmp_path, text, error):
    path = tmp_path / "rows.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=r"rows\.csv"):
        read_rows(path)


def test_a_folder_is_not_a_table(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path)
