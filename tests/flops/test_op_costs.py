from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.flops.op_attention import attended_pairs
from perfkit.flops.op_call import UNKNOWN, Cost
from perfkit.flops.op_costs import known_ops, op_cost, op_costs, op_kind

BF16, FP32, FP8, I64 = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "long int"


def cost(name: str, *tensors: tuple[list[int], str] | str | None) -> Cost:
    """Build a call: (shape, type) is a tensor, text a scalar, None an absent argument."""
    dims = [t[0] if isinstance(t, tuple) else [] for t in tensors]
    types = [t[1] if isinstance(t, tuple) else ("" if t is None else "Scalar") for t in tensors]
    concrete = [t if isinstance(t, str) else "" for t in tensors]
    return op_cost(name, json.dumps(dims), json.dumps(types), json.dumps(concrete))


def test_matrix_products():
    a, b = ([4, 8], BF16), ([8, 16], BF16)
    assert cost("aten::mm", a, b) == Cost(2 * 4 * 8 * 16, 2 * (32 + 128 + 64), "gemm", "bf16")
    assert cost("aten::addmm", ([16], BF16), a, b, "1", "1").flops == 2 * 4 * 8 * 16
    assert cost("aten::bmm", ([3, 4, 8], FP32), ([3, 8, 16], FP32)).flops == 3 * 2 * 4 * 8 * 16
    assert cost("aten::baddbmm", ([3, 4, 16], FP32), ([3, 4, 8], FP32), ([3, 8, 16], FP32), "1", "1").flops == 3072
    assert cost("aten::linear", ([2, 3, 8], BF16), ([16, 8], BF16), None).flops == 2 * 6 * 8 * 16
    assert cost("aten::matmul", ([5, 1, 4, 8], FP32), ([3, 8, 16], FP32)).flops == 15 * 2 * 4 * 8 * 16
    assert cost("aten::matmul", ([8], FP32), ([8], FP32)).flops == 16
    assert cost("aten::mv", ([4, 8], FP32), ([8], FP32)).flops == 64


def test_fp8_products_have_their_own_dtype_and_output():
    call = cost("aten::_scaled_mm", ([4, 8], FP8), ([8, 16], FP8), ([1], FP32), ([1], FP32), None, None, "15", "True")
    assert call == Cost(2 * 4 * 8 * 16, 32 + 128 + 8 + 2 * 64, "gemm", "fp8")


def test_grouped_products_cost_what_one_product_of_the_total_costs():
    offsets = ([3], "int")
    assert cost("aten::_grouped_mm", ([12, 8], BF16), ([3, 8, 16], BF16), offsets).flops == 2 * 12 * 8 * 16
    assert cost("aten::_grouped_mm", ([4, 12], BF16), ([12, 16], BF16), offsets).flops == 2 * 4 * 12 * 16
    assert cost("aten::_grouped_mm", ([3, 4, 8], BF16), ([3, 8, 16], BF16)).flops == 3 * 2 * 4 * 8 * 16


def test_shapes_that_do_not_fit_are_unknown():
    assert cost("aten::mm", ([4, 8], BF16), ([9, 16], BF16)) == UNKNOWN
    assert cost("aten::linear", ([2, 8], BF16), ([16, 9], BF16), None) == UNKNOWN
    assert op_cost("aten::mm", None, None, None) == UNKNOWN
    assert op_cost("aten::mm", "[[4, 8", "[]", "[]") == UNKNOWN
    assert op_cost("aten::mm", '{"a": 1}', "[]", "[]") == UNKNOWN


def test_convolutions():
    x, w = ([2, 4, 9, 9], FP32), ([8, 4, 3, 3], FP32)
    same = cost("aten::convolution", x, w, None, "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1")
    assert same.flops == 2 * (2 * 8 * 5 * 5) * (4 * 9)
    assert cost("aten::conv2d", x, w, None, "[2, 2]", "[1, 1]", "[1, 1]", "1").flops == same.flops
    grad = ([2, 8, 5, 5], FP32)
    masks = {"[True, True, False]": 2, "[True, False, False]": 1, "[False, True, True]": 1}
    for mask, times in masks.items():
        back = cost(
            "aten::convolution_backward", grad, x, w, "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask
        )
        assert back.flops == times * same.flops
    assert cost("aten::convolution", x, w, None) == UNKNOWN  # strides were not recorded


def test_a_transposed_convolution_costs_by_its_input():
    x, w = ([2, 4, 5, 5], FP32), ([4, 8, 3, 3], FP32)
    call = cost("aten::convolution", x, w, None, "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1")
    assert call.flops == 2 * (2 * 4 * 25) * (8 * 9)
    assert call.bytes == 4 * (200 + 288 + 2 * 8 * 9 * 9)


def qkv(
    tokens: int = 6, keys: int = 6, width: int = 8, heads: int = 2, kind: str = BF16
) -> list[tuple[list[int], str]]:
    return [([1, heads, tokens, width], kind), ([1, heads, keys, width], kind), ([1, heads, keys, width], kind)]


def test_attention_counts_the_pairs_that_the_mask_leaves():
    full = cost("aten::scaled_dot_product_attention", *qkv(), None, "0.", "False", None, "False")
    causal = cost("aten::scaled_dot_product_attention", *qkv(), None, "0.", "True", None, "False")
    assert full.flops == 2 * 36 * 4 * 8
    assert causal.flops == 2 * 21 * 4 * 8
    assert full.kind == "attention"


def test_every_fused_forward_agrees():
    names = {
        "aten::_scaled_dot_product_flash_attention": ("0.", "True", "False", "0.3"),
        "aten::_scaled_dot_product_efficient_attention": (None, "True", "0.", "True"),
        "aten::_scaled_dot_product_cudnn_attention": (None, "True", "0.", "True", "False"),
        "aten::_scaled_dot_product_flash_attention_for_cpu": ("0.", "True", None),
    }
    for name, rest in names.items():
        assert cost(name, *qkv(), *rest).flops == 2 * 21 * 4 * 8, name


def test_a_backward_is_five_products_where_the_forward_has_two():
    grad, q, k, v = ([1, 2, 6, 8], BF16), *qkv()
    out, lse = ([1, 2, 6, 8], BF16), ([1, 2, 6], FP32)
    flash = cost(
        "aten::_scaled_dot_product_flash_attention_backward",
        grad,
        q,
        k,
        v,
        out,
        lse,
        None,
        None,
        "6",
        "6",
        "0.",
        "True",
    )
    efficient = cost(
        "aten::_scaled_dot_product_efficient_attention_backward",
        grad,
        q,
        k,
        v,
        None,
        out,
        lse,
        None,
        None,
        "0.",
        "[True]",
        "True",
    )
    assert flash.flops == efficient.flops == 2.5 * 2 * 21 * 4 * 8


def test_tokens_before_heads_is_another_layout():
    q = [([1, 6, 2, 8], BF16)] * 3
    call = cost("flash_attn::_flash_attn_forward", *q, "0.", "0.3", "True", "-1", "-1")
    assert call.flops == 2 * 21 * 4 * 8
    windowed = cost("flash_attn::_flash_attn_forward", *q, "0.", "0.3", "True", "1", "0")
    assert windowed.flops == 2 * 11 * 4 * 8  # 1 + 2 * 5 pairs


def test_packed_attention_has_bytes_and_no_flops():
    q = [([100, 2, 8], BF16)] * 3
    call = cost("flash_attn::_flash_attn_varlen_forward", *q, ([5], "int"), ([5], "int"), "30", "30")
    assert call.flops is None
    assert call.bytes is not None
    assert call.kind == "attention"


def test_attention_whose_mask_was_not_recorded_has_no_flops():
    dims, types = json.dumps([[1, 2, 6, 8]] * 3), json.dumps([BF16] * 3)
    assert op_cost("aten::_scaled_dot_product_flash_attention", dims, types, None).flops is None


@given(st.integers(1, 12), st.integers(1, 12), st.booleans(), st.booleans(), st.none() | st.integers(0, 12))
def test_pairs_are_those_of_the_mask(queries, keys, causal, bottom_right, window):
    def seen(i: int, j: int) -> bool:
        at = i + (keys - queries if bottom_right else 0)
        return (not causal or j <= at) and (window is None or at - window <= j <= at + window)

    expected = sum(seen(i, j) for i in range(queries) for j in range(keys))
    assert attended_pairs(queries, keys, causal=causal, bottom_right=bottom_right, window=window) == expected


def test_memory_bound_ops():
    assert cost("aten::add", ([4, 1], FP32), ([1, 5], FP32), "1") == Cost(20, 4 * (4 + 5 + 20), "elementwise", "fp32")
    assert cost("aten::native_layer_norm", ([4, 8], BF16), "[8]", ([8], BF16), ([8], BF16), "1e-5").kind == "norm"
    assert cost("aten::sum", ([4, 8], FP32), "[0]", "False", None).bytes == 128
    assert cost("aten::copy_", ([4], BF16), ([4], FP32), "False") == Cost(0.0, 8 + 16, "copy")
    assert cost("aten::fill_", ([4], BF16), "0") == Cost(0.0, 8, "copy")
    assert cost("aten::embedding", ([100, 8], BF16), ([3, 2], I64), "-1").bytes == 2 * 6 * 8 * 2 + 48
    assert cost("aten::view", ([4], BF16), "[2, 2]") == Cost(0.0, 0.0, "view")


def test_an_unknown_op_is_unknown_and_not_zero():
    assert cost("mine::op", ([4], BF16)) == UNKNOWN
    assert UNKNOWN.flops is None
    assert cost("AddmmBackward0", ([4], BF16)) == UNKNOWN


def test_overloads_are_the_op():
    assert cost("aten::mm.out", ([4, 8], BF16), ([8, 16], BF16)).flops == 1024


def test_the_ops_that_training_spends_its_time_in_are_known():
    known = set(known_ops())
    for name in ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "convolution_backward", "_grouped_mm",
                 "_scaled_mm", "embedding", "native_layer_norm", "add", "_scaled_dot_product_flash_attention",
                 "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention",
                 ):  # fmt: skip
        assert f"aten::{name}" in known


def table(rows: list[tuple[str | None, str | None, str | None, str | None]], *, encoded: bool) -> pa.Table:
    names = ("name", "input_dims", "input_types", "concrete_inputs")
    columns = {name: pa.array([row[i] for row in rows], pa.utf8()) for i, name in enumerate(names)}
    return pa.table({k: v.dictionary_encode() if encoded else v for k, v in columns.items()})


@pytest.mark.parametrize("encoded", [True, False])
def test_a_table_is_costed_row_by_row_in_order(encoded):
    mm = ("aten::mm", "[[4, 8], [8, 16]]", json.dumps([BF16] * 2), None)
    rows = [mm, ("mine::op", "[[1]]", None, None), mm, (None, None, None, None), ("aten::mm", None, None, None)]
    costs = op_costs(table(rows, encoded=encoded)).to_pylist()
    assert [c["flops"] for c in costs] == [1024, None, 1024, None, None]
    assert [c["kind"] for c in costs] == ["gemm", "unknown", "gemm", "unknown", "unknown"]
    assert costs[0]["dtype"] == "bf16"


def test_work_is_done_once_per_distinct_call(monkeypatch):
    import perfkit.flops.op_costs as module

    calls = []
    monkeypatch.setattr(module, "op_cost", lambda *call: calls.append(call) or UNKNOWN)
    module.op_costs(table([("aten::mm", str(i % 3), None, None) for i in range(3000)], encoded=True))
    assert len(calls) == 3


def test_an_empty_table_has_no_costs():
    empty = op_costs(table([], encoded=False))
    assert empty.num_rows == 0
    assert empty.column_names == ["flops", "bytes", "kind", "dtype"]


def test_columns_may_be_missing_and_chunked():
    chunked = pa.chunked_array([["aten::view"], ["mine::op", "aten::t"]])
    costs = op_costs(pa.table({"name": chunked, "input_dims": pa.chunked_array([["[[2]]"], ["[[2]]", "[[2]]"]])}))
    assert costs["kind"].to_pylist() == ["view", "unknown", "view"]


damaged_shapes = st.lists(
    st.lists(st.integers(-1, 4), max_size=5) | st.just([[2, 3], [3, 4]]) | st.just("x"), max_size=14
)
damaged_types = st.lists(st.sampled_from(["float", "c10::BFloat16", "Int", "", "long int", "TensorList"]), max_size=15)
damaged_values = st.lists(st.sampled_from(["", "True", "1", "-1", "[1, 1]", "foo", "3.5"]), max_size=15)


@given(st.sampled_from(known_ops()), damaged_shapes, damaged_types, damaged_values)
def test_damaged_shapes_are_unknown_and_raise_nothing(name, shapes, types, values):
    cost = op_cost(name, json.dumps(shapes), json.dumps(types), json.dumps(values))
    assert cost.flops is None or cost.flops >= 0
    assert cost.bytes is None or cost.bytes >= 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "gemm"), ("aten::convolution", "conv"), ("aten::embedding", "embedding"), ("aten::t", "view"),
        ("aten::sum", "reduction"), ("aten::fill_", "copy"), ("aten::add.Tensor", "elementwise"), ("mine::op", None),
    ],
)  # fmt: skip
def test_the_name_alone_tells_what_an_op_does(name, kind):
    assert op_kind(name) == kind


def test_what_the_name_tells_is_what_the_cost_says():
    square = json.dumps([[4, 4]] * 4)
    for name in known_ops():
        cost = op_cost(name, square, json.dumps(["float"] * 4), json.dumps([""] * 4))
        assert cost.kind in ("unknown", op_kind(name)), name
