"""FLOPs and bytes of matrix products and convolutions from their shapes.

`GEMMS` and `CONVOLUTIONS` map an op's name to a function from its call to a `Cost`. One multiply-add is
two FLOPs; bytes are every operand read once and the result written once, which is the least that any
kernel can move.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from perfkit.flops.op_call import UNKNOWN, Cost, OpCall, Shape, scalar_type_bytes


def _gemm(call: OpCall, a: int, multiply_adds: float, outputs: float, out_bytes: int | None = None) -> Cost:
    size = out_bytes if out_bytes is not None else call.itemsize(a)
    read = call.input_bytes()
    moved = None if read is None or size is None else read + outputs * size
    return Cost(2.0 * multiply_adds, moved, "gemm", call.dtype(a))


def _two_dimensional(a: int, b: int) -> Callable[[OpCall], Cost]:
    def cost(call: OpCall) -> Cost:
        left, right = call.shape(a), call.shape(b)
        if left is None or right is None or len(left) != 2 or len(right) != 2 or left[1] != right[0]:
            return UNKNOWN
        return _gemm(call, a, left[0] * left[1] * right[1], left[0] * right[1])

    return cost


def _batched(a: int, b: int) -> Callable[[OpCall], Cost]:
    def cost(call: OpCall) -> Cost:
        left, right = call.shape(a), call.shape(b)
        if left is None or right is None or len(left) != 3 or len(right) != 3 or left[2] != right[1]:
            return UNKNOWN
        return _gemm(call, a, prod(left) * right[2], left[0] * left[1] * right[2])

    return cost


def _linear(call: OpCall) -> Cost:
    x, weight = call.shape(0), call.shape(1)
    if not x or not weight or len(weight) != 2 or x[-1] != weight[1]:
        return UNKNOWN
    rows = prod(x[:-1])
    return _gemm(call, 0, rows * weight[0] * weight[1], rows * weight[0])


def _matmul(call: OpCall) -> Cost:
    left, right = call.shape(0), call.shape(1)
    if not left or not right:
        return UNKNOWN
    left = (1, *left) if len(left) == 1 else left
    right = (*right, 1) if len(right) == 1 else right
    batch = _broadcast(left[:-2], right[:-2])
    if batch is None or left[-1] != right[-2]:
        return UNKNOWN
    outputs = prod(batch) * left[-2] * right[-1]
    return _gemm(call, 0, outputs * left[-1], outputs)


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    result = []
    for i in range(1, max(len(a), len(b)) + 1):
        x = a[-i] if i <= len(a) else 1
        y = b[-i] if i <= len(b) else 1
        if x != y and 1 not in (x, y):
            return None
        result.append(max(x, y) if x and y else 0)
    return tuple(reversed(result))


def broadcast_shapes(shapes: list[Shape]) -> Shape | None:
    """Shape of an elementwise result; None if the shapes do not fit."""
    result: Shape | None = ()
    for shape in shapes:
        if result is None:
            return None
        result = _broadcast(result, shape)
    return result


def _matrix_vector(a: int, b: int) -> Callable[[OpCall], Cost]:
    def cost(call: OpCall) -> Cost:
        matrix, vector = call.shape(a), call.shape(b)
        if matrix is None or vector is None or len(matrix) != 2 or len(vector) != 1:
            return UNKNOWN
        return _gemm(call, a, prod(matrix), matrix[0])

    return cost


def _scaled_mm(call: OpCall) -> Cost:
    left, right = call.shape(0), call.shape(1)
    if left is None or right is None or len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        return UNKNOWN
    last = len(call.dims) - 1
    if call.shape(last) == (left[0], right[1]) and last > 1:  # the out= variant lists its result as an input
        read = call.input_bytes()
        return Cost(2.0 * left[0] * left[1] * right[1], read, "gemm", call.dtype(0))
    numbers = (call.integer(i) for i in range(2, len(call.dims)))
    out = next((size for n in numbers if (size := scalar_type_bytes(n)) is not None), 2)
    return _gemm(call, 0, left[0] * left[1] * right[1], left[0] * right[1], out)


def _grouped_mm(call: OpCall) -> Cost:
    """Count groups along a ragged dimension: rows, columns or the inner one; the total work is that of one product."""
    left, right = call.shape(0), call.shape(1)
    if left is None or right is None or min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        return UNKNOWN
    m, k, n = left[-2], left[-1], right[-1]
    if len(left) == 3 and len(right) == 3:
        return _gemm(call, 0, left[0] * m * k * n, left[0] * m * n, 2)
    groups = (call.shape(2) or call.shape(4) or (1,))[0]
    outputs = m * n * (groups if len(left) == 2 and len(right) == 2 else 1)
    return _gemm(call, 0, m * k * n, outputs, 2)


GEMMS: dict[str, Callable[[OpCall], Cost]] = {
    "aten::mm": _two_dimensional(0, 1),
    "aten::addmm": _two_dimensional(1, 2),
    "aten::addmm_": _two_dimensional(1, 2),
    "aten::_addmm_activation": _two_dimensional(1, 2),
    "aten::_int_mm": _two_dimensional(0, 1),
    "aten::bmm": _batched(0, 1),
    "aten::baddbmm": _batched(1, 2),
    "aten::baddbmm_": _batched(1, 2),
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::mv": _matrix_vector(0, 1),
    "aten::addmv": _matrix_vector(1, 2),
    "aten::_scaled_mm": _scaled_mm,
    "aten::_grouped_mm": _grouped_mm,
    "aten::grouped_mm": _grouped_mm,
    "aten::_scaled_grouped_mm": _grouped_mm,
}


def _conv_cost(call: OpCall, x: int, products: float, outputs: float, times: int = 1) -> Cost:
    size, read = call.itemsize(x), call.input_bytes()
    moved = None if size is None or read is None else read + outputs * size
    return Cost(2.0 * products * times, moved, "conv", call.dtype(x))


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> Callable[[OpCall], Cost]:
    def cost(call: OpCall) -> Cost:
        x, weight = call.shape(0), call.shape(1)
        steps, pads, holes = call.integers(stride), call.integers(padding), call.integers(dilation)
        if x is None or weight is None or len(x) != len(weight) or steps is None or pads is None or holes is None:
            return UNKNOWN
        spatial = len(x) - 2
        s, p, d = (v * spatial if len(v) == 1 else v for v in (steps, pads, holes))
        inside = prod(weight[1:])  # multiply-adds of an output element, or of an input element if transposed
        if transposed is not None and call.flag(transposed):
            extra, groups = call.integers(transposed + 1), call.integer(transposed + 2)
            if extra is None or groups is None:
                return UNKNOWN
            e = extra * spatial if len(extra) == 1 else extra
            out = [(x[2 + i] - 1) * s[i] - 2 * p[i] + d[i] * (weight[2 + i] - 1) + e[i] + 1 for i in range(spatial)]
            return _conv_cost(call, 0, prod(x) * inside, x[0] * weight[1] * groups * prod(out))
        out = [(x[2 + i] + 2 * p[i] - d[i] * (weight[2 + i] - 1) - 1) // s[i] + 1 for i in range(spatial)]
        outputs = x[0] * weight[0] * prod(out)
        return _conv_cost(call, 0, outputs * inside, outputs)

    return cost


def _convolution_backward(call: OpCall) -> Cost:
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    mask = call.flags(10)
    transposed = call.flag(7)
    if grad is None or x is None or weight is None or mask is None or transposed is None:
        return UNKNOWN
    products = prod(x if transposed else grad) * prod(weight[1:])
    outputs = (prod(x) if mask[0] else 0) + (prod(weight) if mask[1] else 0)
    return _conv_cost(call, 1, products, outputs, times=int(mask[0]) + int(mask[1]))


CONVOLUTIONS: dict[str, Callable[[OpCall], Cost]] = {
    "aten::convolution": _convolution(3, 4, 5, transposed=6),
    "aten::_convolution": _convolution(3, 4, 5, transposed=6),
    "aten::conv1d": _convolution(3, 4, 5),
    "aten::conv2d": _convolution(3, 4, 5),
    "aten::conv3d": _convolution(3, 4, 5),
    "aten::cudnn_convolution": _convolution(3, 2, 4),
    "aten::miopen_convolution": _convolution(4, 3, 5),
    "aten::mkldnn_convolution": _convolution(4, 3, 5),
    "aten::convolution_backward": _convolution_backward,
}
