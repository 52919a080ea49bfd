"""FLOPs and bytes of attention ops from their shapes.

`ATTENTION` maps an op's name to a function from its call to a `Cost`. FLOPs are those that a fused kernel
executes: masked pairs are not counted, and a backward is five products where the forward has two (it
computes the scores again). Packed calls (`cu_seqlens`) record the total length but not the documents'
lengths, so that their FLOPs are unknown; so are calls whose `is_causal` was not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from perfkit.flops.op_call import UNKNOWN, Cost, OpCall


@dataclass(frozen=True, slots=True)
class _Signature:
    """Where the arguments are."""

    causal: int
    first: int = 0
    """Index of the query; 1 in a backward, after the output's gradient."""
    heads_first: bool = True
    """[batch, heads, tokens, width] instead of [batch, tokens, heads, width]."""
    backward: bool = False
    bottom_right: bool = False
    """A causal mask aligned to the end of the keys (flash-attn), not to their start."""
    packed: int | None = None
    """Index of cumulative lengths; if they are given, the documents are unknown."""
    mask_type: bool = False
    """`causal` is a number: 0 none, 1 top left, 2 bottom right."""
    window: int | None = None
    """Index of the left window; -1 is none."""


_SDPA = "aten::_scaled_dot_product_"
_SIGNATURES: dict[str, _Signature] = {
    "aten::scaled_dot_product_attention": _Signature(5),
    f"{_SDPA}flash_attention": _Signature(4),
    f"{_SDPA}flash_attention_for_cpu": _Signature(4),
    f"{_SDPA}efficient_attention": _Signature(6),
    f"{_SDPA}cudnn_attention": _Signature(6),
    f"{_SDPA}flash_attention_backward": _Signature(11, first=1, backward=True, packed=6),
    f"{_SDPA}flash_attention_for_cpu_backward": _Signature(7, first=1, backward=True),
    f"{_SDPA}efficient_attention_backward": _Signature(11, first=1, backward=True),
    f"{_SDPA}cudnn_attention_backward": _Signature(14, first=1, backward=True, packed=9),
    "aten::_flash_attention_forward": _Signature(8, heads_first=False, packed=3),
    "aten::_flash_attention_backward": _Signature(11, first=1, heads_first=False, backward=True, packed=6),
    "aten::_efficient_attention_forward": _Signature(9, heads_first=False, packed=4, mask_type=True),
    "aten::_efficient_attention_backward": _Signature(
        14, first=1, heads_first=False, backward=True, packed=6, mask_type=True
    ),
    "aten::_cudnn_attention_forward": _Signature(10, packed=4),
    "flash_attn::_flash_attn_forward": _Signature(5, heads_first=False, bottom_right=True, window=6),
    "flash_attn::_flash_attn_backward": _Signature(
        11, first=1, heads_first=False, backward=True, bottom_right=True, window=12
    ),
    "flash_attn_3::fwd": _Signature(24, heads_first=False, bottom_right=True, packed=7, window=25),
    "flash_attn_3::_flash_attn_forward": _Signature(24, heads_first=False, bottom_right=True, packed=7, window=25),
    "flash_attn_3::bwd": _Signature(
        16, first=1, heads_first=False, backward=True, bottom_right=True, packed=9, window=17
    ),
}
_PACKED_ONLY = ("flash_attn::_flash_attn_varlen_forward", "flash_attn::_flash_attn_varlen_backward")


def attended_pairs(
    queries: int, keys: int, *, causal: bool, bottom_right: bool = False, window: int | None = None
) -> int:
    """Count the (query, key) pairs that a mask leaves; `window` is how many keys to each side are seen."""
    if not causal and window is None:
        return queries * keys
    position = np.arange(queries, dtype=np.int64) + (keys - queries if bottom_right else 0)
    last = position if causal else position + (window or 0)
    first = np.maximum(0, position - window) if window is not None else 0
    return int(np.maximum(0, np.minimum(last, keys - 1) - first + 1).sum())


def _attention(signature: _Signature) -> Callable[[OpCall], Cost]:
    def cost(call: OpCall) -> Cost:
        q, k, v = (call.shape(signature.first + i) for i in range(3))
        moved = call.input_bytes()
        size = call.itemsize(signature.first)
        if not (q and k and v) or size is None:
            return UNKNOWN
        outputs = prod(q) + prod(k) + prod(v) if signature.backward else prod(q[:-1]) * v[-1]
        total = None if moved is None else moved + outputs * size
        flops = _flops(call, signature, q, k, v)
        return Cost(flops, total, "attention", call.dtype(signature.first))

    return cost


def _flops(
    call: OpCall, signature: _Signature, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]
) -> float | None:
    packed = signature.packed is not None and call.shape(signature.packed) is not None
    if packed or len(q) != 4 or len(k) != 4:
        return None
    batch, heads, queries = (q[0], q[1], q[2]) if signature.heads_first else (q[0], q[2], q[1])
    keys = k[2] if signature.heads_first else k[1]
    bottom_right = signature.bottom_right
    if signature.mask_type:
        number = call.integer(signature.causal)
        causal = None if number is None else number > 0
        bottom_right = number == 2
    else:
        causal = call.flag(signature.causal)
    if causal is None:
        return None
    left = call.integer(signature.window) if signature.window is not None else None
    if signature.window is not None and left is None:
        return None
    window = left if left is not None and left >= 0 else None
    pairs = attended_pairs(queries, keys, causal=causal, bottom_right=bottom_right, window=window)
    score, value = 2.0 * q[-1], 2.0 * v[-1]
    # forward: scores, values; backward: scores again, dV, dP, dQ, dK
    per_pair = 3 * score + 2 * value if signature.backward else score + value
    return batch * heads * pairs * per_pair


def _packed_cost(call: OpCall) -> Cost:
    return Cost(None, call.input_bytes(), "attention", call.dtype(0))


ATTENTION: dict[str, Callable[[OpCall], Cost]] = {
    **{name: _attention(signature) for name, signature in _SIGNATURES.items()},
    **dict.fromkeys(_PACKED_ONLY, _packed_cost),
}
