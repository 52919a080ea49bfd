"""The kernels and exchanges of one transformer layer, and how long they take on the hardware.

    layer_forward(job) · layer_backward(job) · embedding(job) · head(job) · … -> [Kernel | Exchange, …]

Sizes are those of one rank for one micro-batch. Matrix products count 2·m·k·n FLOPs, the same as their
`Input Dims` say; attention is causal, so its kernels execute half of the full product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfkit.simulate.job import Job

BF16 = 2
GEMM_EFFICIENCY = 0.62
ATTENTION_EFFICIENCY = 0.45
MEMORY_EFFICIENCY = 0.8
MIN_KERNEL_NS = 1_600

GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_{}"
FLASH_FORWARD = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >(pytorch_flash::Flash_fwd_params)"  # noqa: E501
FLASH_BACKWARD = "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128, 8, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)"  # noqa: E501
NORM_FORWARD = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float, c10::BFloat16 const*)"  # noqa: E501
NORM_BACKWARD = "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, false>(c10::BFloat16 const*)"  # noqa: E501
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >(int, at::native::{}, std::array<char*, 3ul>)"  # noqa: E501
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW> >(FusedOptimizerTensorListMetadata<4>)"  # noqa: E501


CONCRETE_INPUTS = {
    "aten::_flash_attention_forward": ("",) * 8 + ("True",), "aten::_flash_attention_backward": ("",) * 11 + ("True",),
}  # fmt: skip
"""Values of the inputs that are no tensors, up to `is_causal`; without it nobody knows what attention computed."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One compute kernel and the ops around its launch."""

    key: str
    ops: tuple[str, ...]
    """Ops from the outermost to the one that launches."""
    name: str
    duration_ns: int
    flops: int = 0
    """Executed by this kernel."""
    full_flops: int = 0
    """The same with full instead of causal attention."""
    clock_bound: bool = False
    """Slows down with the clock (matrix and attention kernels)."""
    dims: tuple[tuple[int, ...], ...] = ()
    of_experts: bool = False
    """Grows with the tokens that the rank's experts receive."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective that the following kernels wait for."""

    key: str
    role: str
    op: str
    num_elements: int
    to_experts: bool | None = None
    """Whether tokens go to the experts or come back; None if it has nothing to do with them."""


Part = Kernel | Exchange


def gemm(job: Job, key: str, m: int, k: int, n: int, *, ops: tuple[str, ...] = ("aten::linear", "aten::mm")) -> Kernel:
    """Return a matrix product [m, k] × [k, n]."""
    flops = 2 * m * k * n
    seconds = flops / (job.hardware.peak_flops * GEMM_EFFICIENCY)
    duration = max(MIN_KERNEL_NS, round(seconds * 1e9))
    return Kernel(key, ops, GEMM.format("TNT"), duration, flops, flops, True, ((m, k), (k, n)))


def memory_bound(job: Job, key: str, op: str, name: str, num_bytes: int, shape: tuple[int, ...]) -> Kernel:
    """Return a kernel whose time is that of its memory traffic."""
    seconds = num_bytes / (job.hardware.memory_bandwidth * MEMORY_EFFICIENCY)
    return Kernel(key, (op,), name, max(MIN_KERNEL_NS, round(seconds * 1e9)), dims=(shape,))


def elementwise(job: Job, key: str, op: str, functor: str, shape: tuple[int, int]) -> Kernel:
    """Return an element-wise kernel with two inputs."""
    num_bytes = 3 * shape[0] * shape[1] * BF16
    return memory_bound(job, key, op, ELEMENTWISE.format(functor, functor), num_bytes, shape)


def norm(job: Job, key: str, *, backward: bool = False) -> Kernel:
    """Return a layer norm."""
    op = "aten::native_layer_norm_backward" if backward else "aten::native_layer_norm"
    name = NORM_BACKWARD if backward else NORM_FORWARD
    num_bytes = (3 if backward else 2) * job.tokens * job.hidden * BF16
    return memory_bound(job, key, op, name, num_bytes, (job.tokens, job.hidden))


def attention(job: Job, key: str, *, backward: bool = False) -> Kernel:
    """Return causal flash attention; the backward pass executes 2.5 times the forward's products."""
    heads = job.hidden // job.head_dim // job.mesh.tp
    full = 4 * job.micro_batch * heads * job.seq_len**2 * job.head_dim
    full = full * 5 // 2 if backward else full
    causal = full // 2
    seconds = causal / (job.hardware.peak_flops * ATTENTION_EFFICIENCY)
    shape = (job.micro_batch, job.seq_len, heads, job.head_dim)
    if backward:
        ops: tuple[str, ...] = (
            "aten::_scaled_dot_product_flash_attention_backward", "aten::_flash_attention_backward",
        )  # fmt: skip
    else:
        ops = (
            "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
            "aten::_flash_attention_forward",
        )  # fmt: skip
    duration = max(MIN_KERNEL_NS, round(seconds * 1e9))
    name, dims = (FLASH_BACKWARD, (shape,) * 4) if backward else (FLASH_FORWARD, (shape,) * 3)
    return Kernel(key, ops, name, duration, causal, full, True, dims)


def layer_forward(job: Job) -> list[Part]:
    """Return attention and feed-forward of one layer."""
    t, h, tp = job.tokens, job.hidden, job.mesh.tp
    parts: list[Part] = [
        norm(job, "norm1"),
        gemm(job, "qkv", t, h, 3 * h // tp),
        attention(job, "attention"),
        gemm(job, "proj", t, h // tp, h),
        *_reduce(job, "proj"),
        elementwise(job, "add1", "aten::add", "CUDAFunctor_add<c10::BFloat16>", (t, h)),
        norm(job, "norm2"),
    ]
    if job.mesh.ep > 1:
        parts += _experts(job, forward=True)
    else:
        parts += [
            gemm(job, "up", t, h, 2 * job.ffn // tp),
            elementwise(job, "silu", "aten::silu", "silu_kernel", (t, job.ffn // tp)),
            gemm(job, "down", t, job.ffn // tp, h),
            *_reduce(job, "down"),
        ]
    return [*parts, elementwise(job, "add2", "aten::add", "CUDAFunctor_add<c10::BFloat16>", (t, h))]


def layer_backward(job: Job) -> list[Part]:
    """Return the gradients of one layer, from its output to its input."""
    t, h, tp = job.tokens, job.hidden, job.mesh.tp
    parts: list[Part] = []
    if job.mesh.ep > 1:
        parts += _experts(job, forward=False)
    else:
        parts += _backward_pair(job, "down", t, job.ffn // tp, h)
        parts.append(elementwise(job, "silu", "aten::silu_backward", "silu_backward_kernel", (t, job.ffn // tp)))
        parts += [*_backward_pair(job, "up", t, h, 2 * job.ffn // tp), *_reduce(job, "up")]
    return [
        *parts,
        norm(job, "norm2", backward=True),
        *_backward_pair(job, "proj", t, h // tp, h),
        attention(job, "attention", backward=True),
        *_backward_pair(job, "qkv", t, h, 3 * h // tp),
        *_reduce(job, "qkv"),
        norm(job, "norm1", backward=True),
        elementwise(job, "add1", "aten::add", "CUDAFunctor_add<c10::BFloat16>", (t, h)),
    ]


def _reduce(job: Job, key: str) -> list[Part]:
    if job.mesh.tp == 1:
        return []
    return [Exchange(f"{key}.allreduce", "tp", "allreduce", job.tokens * job.hidden)]


def _backward_pair(job: Job, key: str, m: int, k: int, n: int) -> list[Kernel]:
    return [
        gemm(job, f"{key}.dgrad", m, n, k, ops=("aten::mm",)),
        gemm(job, f"{key}.wgrad", k, m, n, ops=("aten::mm",)),
    ]


def _experts(job: Job, *, forward: bool) -> list[Part]:
    """Return routing, dispatch, experts, combine; each token goes to one expert."""
    t, h, f = job.tokens, job.hidden, job.ffn // job.mesh.tp
    dispatch = Exchange("dispatch", "ep", "all_to_allv", t * h, to_experts=forward)
    combine = Exchange("combine", "ep", "all_to_allv", t * h, to_experts=not forward)
    permute = memory_bound(job, "permute", "aten::index_select", _INDEX_SELECT, 2 * t * h * BF16, (t, h))
    grouped = ("aten::_grouped_mm",)
    if forward:
        topk = "void at::native::sbtopk::gatherTopK<c10::BFloat16, unsigned int, 2, false>(c10::BFloat16 const*)"
        return [
            gemm(job, "router", t, h, job.experts),
            memory_bound(job, "topk", "aten::topk", topk, t * job.experts * BF16, (t, job.experts)),
            permute,
            dispatch,
            replace(gemm(job, "expert.up", t, h, 2 * f, ops=grouped), of_experts=True),
            replace(elementwise(job, "silu", "aten::silu", "silu_kernel", (t, f)), of_experts=True),
            replace(gemm(job, "expert.down", t, f, h, ops=grouped), of_experts=True),
            combine,
        ]
    return [
        combine,
        *(replace(one, of_experts=True) for one in _backward_pair(job, "expert.down", t, f, h)),
        replace(elementwise(job, "silu", "aten::silu_backward", "silu_backward_kernel", (t, f)), of_experts=True),
        *(replace(one, of_experts=True) for one in _backward_pair(job, "expert.up", t, h, 2 * f)),
        dispatch,
        permute,
        *_backward_pair(job, "router", t, h, job.experts),
    ]


_INDEX_SELECT = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::TensorInfo<c10::BFloat16, unsigned int>)"  # noqa: E501
_CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 1, 64, 64>(at::native::(anonymous namespace)::OpaqueType<2u>*)"  # noqa: E501
_EMBEDDING_BACKWARD = "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long const*, c10::BFloat16 const*)"  # noqa: E501


def embedding(job: Job, *, backward: bool = False) -> list[Part]:
    """Return the token embedding."""
    op = "aten::embedding_dense_backward" if backward else "aten::embedding"
    name = _EMBEDDING_BACKWARD if backward else _INDEX_SELECT
    return [memory_bound(job, "embedding", op, name, 2 * job.tokens * job.hidden * BF16, (job.vocab, job.hidden))]


def head(job: Job, *, backward: bool = False) -> list[Part]:
    """Return the final norm, the logits and the loss."""
    t, h, v = job.tokens, job.hidden, job.vocab // job.mesh.tp
    softmax = "void at::native::(anonymous namespace)::cunn_SoftMax{}<8, c10::BFloat16, float, c10::BFloat16, at::native::(anonymous namespace)::LogSoftMax{}Epilogue>(c10::BFloat16*, c10::BFloat16 const*, int)"  # noqa: E501
    if backward:
        return [
            memory_bound(
                job,
                "softmax",
                "aten::_log_softmax_backward_data",
                softmax.format("Backward", "Backward"),
                2 * t * v * BF16,
                (t, v),
            ),
            *_backward_pair(job, "logits", t, h, v),
            norm(job, "norm", backward=True),
        ]
    return [
        norm(job, "norm"),
        gemm(job, "logits", t, h, v),
        memory_bound(
            job, "softmax", "aten::_log_softmax", softmax.format("Forward", "Forward"), 2 * t * v * BF16, (t, v)
        ),
    ]


def layer_parameters(job: Job) -> int:
    """Return the parameters of one layer on one tensor-parallel rank, before FSDP shards them."""
    attention_part = 4 * job.hidden**2 // job.mesh.tp
    feed_forward = 3 * job.hidden * job.ffn // job.mesh.tp
    if job.mesh.ep > 1:
        feed_forward = feed_forward * job.experts // job.mesh.ep
    return attention_part + feed_forward


def adam(job: Job, key: str, parameters: int) -> Kernel:
    """Return a fused AdamW update of so many parameters."""
    seconds = parameters * 18 / (job.hardware.memory_bandwidth * MEMORY_EFFICIENCY)
    duration = max(MIN_KERNEL_NS, round(seconds * 1e9))
    return Kernel(key, ("aten::_fused_adamw_",), ADAM, duration, dims=((parameters,),))


def copy_in(job: Job, elements: int) -> Kernel:
    """Return the copy of a parameter shard into the buffer that is gathered."""
    return memory_bound(job, "copy_in", "fsdp::all_gather_copy_in", _CAT, 2 * BF16 * elements, (elements,))


def transfer_ns(job: Job, op: str, num_bytes: int, members: int, *, across_hosts: bool) -> int:
    """Return the time that a collective moves data, as its bus bandwidth says, plus a latency."""
    share = {"allreduce": 2 * (members - 1) / members, "send": 1.0, "recv": 1.0}.get(op, (members - 1) / members)
    bandwidth = job.hardware.network_bandwidth if across_hosts else job.hardware.link_bandwidth
    latency = 9_000 if across_hosts else 5_000
    return latency + 400 * members.bit_length() + round(share * num_bytes / (bandwidth * MEMORY_EFFICIENCY) * 1e9)
