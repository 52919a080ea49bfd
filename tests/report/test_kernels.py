from __future__ import annotations

from perfkit.report.report import Report
from perfkit.schema import KERNELS, table_from_rows


def kernel(rank: int, name: str, ns: int, flops: float | None, waste: int | None) -> dict:
    return {"rank": rank, "name": name, "family": "gemm", "count": 1, "total_ns": ns, "flops": flops, "bytes": 1e6,
            "waste_ns": waste}  # fmt: skip


def rows(*kernels: dict) -> list[dict]:
    return Report({}, {"kernels": table_from_rows(KERNELS, kernels)}).kernels()


def test_ranks_are_added_up_and_speed_is_flops_over_time() -> None:
    (row,) = rows(kernel(0, "a", 1000, 2e9, 10), kernel(1, "a", 3000, 2e9, 30))
    assert (row["count"], row["ns"], row["waste_ns"]) == (2, 4000, 40)
    assert row["tflops"] == 1000.0
    assert row["intensity"] == 2000.0


def test_flops_known_on_one_rank_only_give_no_speed() -> None:
    (row,) = rows(kernel(0, "a", 1000, 2e9, 10), kernel(1, "a", 3000, None, None))
    assert (row["flops"], row["tflops"], row["waste_ns"]) == (None, None, None)


def test_largest_waste_comes_first_and_unknown_waste_may_be_all_of_the_time() -> None:
    got = rows(kernel(0, "a", 50, 1.0, 5), kernel(0, "b", 900, None, None), kernel(0, "c", 40, 1.0, 30),
               kernel(0, "d", 20, None, None))  # fmt: skip
    assert [row["name"] for row in got] == ["b", "c", "d", "a"]


def test_without_a_table_the_documents_kernels_are_used() -> None:
    doc = {
        "kernels": [{"name": "a", "family": None, "count": 1, "ns": 10, "flops": None, "bytes": None, "waste_ns": None}]
    }
    (row,) = Report(doc).kernels()
    assert (row["name"], row["op"], row["tflops"]) == ("a", None, None)
