"""MFU, HFU and the peak that they are against, for an analysis (definitions 13 and 14).

    found = resolve(compute, kernels, steps, question, devices=..., world_size=...)   -> Utilisation
    found.numerator                     what ladder A starts with
    found.hardware, found.mfu           the JSON of `perfkit analyze`

Nothing falls back: an unknown device, number format, world size or step leaves MFU null, and `messages`
says what to pass. HFU counts matrix FLOPs of ops whose shapes the trace has; `flops_coverage` is the share
of matrix-kernel time that they explain, so that HFU is a lower bound wherever it is below 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.ops import MATMUL
from perfkit.analysis.timeline import ints
from perfkit.analysis.waterfall import Numerator, ideal_ns
from perfkit.errors import UnknownHardware, UsageError
from perfkit.hardware.lookup import find_device
from perfkit.hardware.overrides import load_measured, measured_path
from perfkit.hardware.registry import DTYPES, canonical_dtype, normalise

if TYPE_CHECKING:
    from perfkit.flops.spec import TransformerSpec

_NAME_DTYPES = (
    ("fp8", r"e4m3|e5m2|fp8|float8"), ("bf16", r"bf16|bfloat16|nvjet_t"),
    ("fp16", r"fp16|float16|_h\d*gemm|h884|h1688|hgemm|half|f16|nvjet_h"), ("tf32", r"tf32|s1688|nvjet_s"),
    ("fp32", r"sgemm|scudnn|fp32|float32|f32f32|<float\b"),
)  # fmt: skip
"""What a matrix kernel's name says about its inputs, where no op has recorded their types."""


MIN_COVERAGE = 0.1
"""Of the matrix products' time with known FLOPs: with less, HFU would be a number about next to nothing."""
SURELY_MORE = 1.05
"""A model that needs more than this times the matrix products' time at peak is not the one that was traced."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the user says about the job; null is not given."""

    model: str | Mapping[str, Any] | TransformerSpec | None = None
    tokens_per_step: float | None = None
    """Of the whole job."""
    seq_len: int | None = None
    hardware: str | None = None
    """Device name, instead of the trace's."""
    dtype: str | None = None
    convention: str | None = None
    peak_flops: float | None = None
    peak: str = "registry"
    """`registry`, or `measured` by `perfkit hardware --calibrate`."""
    world_size: int | None = None
    """Instead of the trace's."""
    mesh: str | None = None
    """Parallel degrees such as `tp=2,pp=4,dp=8`, instead of what the process groups show."""
    flops_per_token: float | None = None
    """Of the model, if it is not named; `convention` then only says how they were counted."""
    step_time_ns: int | None = None
    """Of unprofiled steps, instead of the traced windows (definition 13)."""
    step_time_steps: int | None = None
    """How many those are."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_step", "peak_flops", "world_size", "seq_len"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} = {value} makes no sense", next_step="use a positive number")
        if self.peak not in ("registry", "measured"):
            raise UsageError(f"--peak {self.peak!r} is neither 'registry' nor 'measured'")


@dataclass(frozen=True)
class Peaks:
    """What one device can do at most."""

    device: str | None = None
    flops: Mapping[str, float] = field(default_factory=dict)
    """By number format."""
    bytes_per_second: float | None = None
    source: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unseen: bool = False
    """The traces name or call the device but hold none of its work: times are the host's, and its peaks say nothing."""


@dataclass(frozen=True)
class Utilisation:
    """The answer to "what is my MFU, and can I trust it"."""

    numerator: Numerator
    peaks: Peaks
    hardware: dict[str, Any]
    mfu: dict[str, Any]
    num_devices: int | None
    """Devices of the whole job."""


def resolve(
    compute: pa.Table,
    kernels: pa.Table,
    steps: pa.Table,
    question: Question,
    *,
    devices: Collection[str | None],
    world_size: int | None,
    boards: Mapping[str, Mapping[str, Any]] | None = None,
    unseen: bool = False,
) -> Utilisation:
    """Find peak, number format and numerator.

    `devices` are the names that the traced ranks recorded, `boards` what the driver says about them; `unseen` says that
    a host calls a device of whose work nothing was recorded.
    """
    messages: list[str] = []
    dtype, dtype_from = _dtype(compute, kernels, question)
    peaks = _peaks(devices, boards or {}, dtype, question, messages)
    peak = peaks.flops.get(dtype) if dtype else None
    if peaks.flops and dtype is None:
        messages.append(
            "no op and no kernel name tells the number format of the matrix products; pass --dtype"
            if pc.any(pc.is_in(compute["family"], pa.array(MATMUL))).as_py()
            else "the traces hold no matrix products, which would tell the number format of the peak; pass --dtype"
        )
    elif peaks.flops and peak is None:
        messages.append(f"no {dtype} peak is known for {peaks.device!r}; pass --peak-flops")
    count = _num_devices(steps, question.world_size or world_size, messages)
    window = int(pc.sum(steps["window_ns"]).as_py() or 0)
    ideal, known = ideal_ns(compute, peaks.flops)
    product = np.isin(np.array(compute["family"].to_pylist(), object), MATMUL)
    owned = ints(compute["owned_ns"])
    matmul = int(owned[product].sum())
    counted = known if peaks.flops else np.array(pc.is_valid(compute["flops"]))
    coverage = int(owned[product & counted].sum()) / matmul if matmul else None
    executed = int(ideal[product].sum())
    hfu = executed / window if executed and window else None
    if hfu is not None and hfu > 1:
        messages.append(
            f"HFU would be {100 * hfu:.1f} %, above 1: the peak is not this device's, or shapes are not the kernels'"
        )
        hfu = None
    if hfu is not None and coverage is not None and coverage < MIN_COVERAGE:
        messages.append(
            f"HFU is unknown: only {100 * coverage:.1f} % of the time of the matrix products has known shapes; profile "
            "with record_shapes=True"
        )
        hfu = None
    named = any(devices)
    unseen = (named or unseen) and steps["device"].null_count == len(steps)
    if unseen:
        messages.append(
            f"the traces {'name' if named else 'call'} a device but hold none of its work: times are the host's; "
            "profile the device too (ProfilerActivity.CUDA; nsys: --trace=cuda,nvtx)"
        )
        hfu = None
    mfu, model_ns = _mfu(steps, question, dtype, peak, count, messages)
    if matmul and model_ns * len(steps) > SURELY_MORE * matmul:
        messages.append(
            f"the model's FLOPs would need {100 * model_ns * len(steps) / matmul:.0f} % of the peak inside the matrix "
            "products: MFU is too high; check --model, --tokens-per-step (of the whole job) and --dtype"
        )
    start = "time" if unseen else "mfu" if mfu["value"] is not None and model_ns else "hfu" if hfu else "time"
    trusted = peaks.flops if hfu is not None else {}
    return Utilisation(
        Numerator(start, trusted, model_ns),
        Peaks(peaks.device, unseen=True) if unseen else peaks,
        {
            "device": peaks.device, "peak_flops": peak, "dtype": dtype, "dtype_source": dtype_from,
            "source": peaks.source.get(dtype or ""), "memory_bytes_per_second": peaks.bytes_per_second,
            "notes": list(peaks.notes),
        },
        {**mfu, "hfu": hfu, "flops_coverage": coverage, "ladder_start": start, "messages": messages},
        count,
    )  # fmt: skip


def rank_hfu(compute: pa.Table, steps: pa.Table, peaks: Mapping[str, float]) -> dict[int, float | None]:
    """Return each rank's HFU; null where no FLOPs are known or the result would be above 1."""
    ideal, known = ideal_ns(compute, peaks)
    product = np.isin(np.array(compute["family"].to_pylist(), object), MATMUL)
    rank, window_rank, window = ints(compute["rank"]), ints(steps["rank"]), ints(steps["window_ns"])
    result: dict[int, float | None] = {}
    for one in np.unique(window_rank).tolist():
        mine = (rank == one) & product & known
        total = int(window[window_rank == one].sum())
        value = int(ideal[mine].sum()) / total if total and mine.any() else None
        result[one] = value if value is not None and 0 < value <= 1 else None
    return result


# ------------------------------------------------------------------ the peak


def _peaks(
    devices: Collection[str | None], boards: Mapping[str, Mapping[str, Any]], dtype: str | None, question: Question,
    messages: list[str],
) -> Peaks:  # fmt: skip
    names = {name for name in devices if name}
    if question.hardware and len(names) == 1 and question.peak_flops is None and question.peak != "measured":
        return _the_traced_one_of(question.hardware, names.pop(), boards, messages)
    name = question.hardware or (names.pop() if len(names) == 1 else None)
    if question.peak_flops is not None:
        given = {dtype: question.peak_flops} if dtype else {}
        if dtype is None:
            messages.append("--peak-flops needs the number format that it is for; pass --dtype")
        bandwidth = _find(name, boards, []).bytes_per_second if name else None
        return Peaks(name, given, bandwidth, dict.fromkeys(given, "given with --peak-flops"))
    if question.peak == "measured":
        return _measured(name, messages)
    if name is None:
        why = f"the ranks have different devices ({', '.join(sorted(names))})" if names else "no trace names its device"
        messages.append(f"{why}, so there is no peak; pass --hardware NAME or --peak-flops")
        return Peaks()
    return _find(name, boards, messages)


def _the_traced_one_of(asked: str, traced: str, boards: Mapping[str, Mapping[str, Any]], messages: list[str]) -> Peaks:
    """Return the device that was asked for; of several that have this name, the one that the traces name."""
    said: list[str] = []
    found, recorded = _find(asked, boards, said), _find(traced, boards, [])
    if not found.flops and recorded.flops and recorded.device in (found.device or "").split(" or "):
        return recorded
    messages += said
    return found


def _find(name: str, boards: Mapping[str, Mapping[str, Any]], messages: list[str]) -> Peaks:
    try:
        found = find_device(name, **boards.get(name, {}))
    except UnknownHardware as error:
        messages.append(str(error))
        return Peaks(name)
    device = found.device
    known = {d: peak for d in DTYPES if (peak := device.peak_flops(d)) is not None}
    if not known:
        messages.append(f"no peak is known that holds for {device.id}; pass --hardware NAME or --peak-flops")
    gbps = device.get("memory_gbps")
    sources = {d: value.source for d in known if (value := device.values.get(d)) is not None}
    return Peaks(device.id, known, None if gbps is None else gbps * 1e9, sources, found.notes)


def _measured(name: str | None, messages: list[str]) -> Peaks:
    if name is None:
        from perfkit.hardware.detection import detect_cpu

        name = detect_cpu().name  # traces of a CPU rank do not name it; the user says that this machine made them
    entry = load_measured().get(normalise(name))
    if entry is None:
        messages.append(f"{name!r} has no measurement in {measured_path()}; run `perfkit hardware --calibrate` on it")
        return Peaks(name)
    rates = {d: tflops * 1e12 for d, tflops in entry["matmul_tflops"].items()}
    source = f"measured on {entry['date']} with {entry['backend']}"
    copy = entry.get("copy_gbps")
    note = "a measured peak: MFU against it is higher than against the published one"
    return Peaks(entry["device"], rates, copy * 1e9 if copy else None, dict.fromkeys(rates, source), (note,))


def _dtype(compute: pa.Table, kernels: pa.Table, question: Question) -> tuple[str | None, str | None]:
    """Return the number format of most matrix FLOPs, else of most matrix-kernel time, and where it is from."""
    if question.dtype is not None:
        return canonical_dtype(question.dtype), "given"
    rows = compute.filter(pc.is_in(compute["family"], pa.array(MATMUL)))
    rows = rows.filter(pc.and_(pc.is_valid(rows["dtype"]), pc.greater(pc.fill_null(rows["flops"], 0.0), 0.0)))
    if len(rows):
        sums = rows.group_by("dtype", use_threads=False).aggregate([("flops", "sum")])
        return sums["dtype"][int(np.argmax(sums["flops_sum"].to_numpy()))].as_py(), "ops"
    matrix = kernels.filter(pc.is_in(kernels["family"].cast(pa.utf8()), pa.array(MATMUL)))
    total: dict[str, int] = {}
    for name, ns in zip(matrix["name"].cast(pa.utf8()).to_pylist(), matrix["owned_ns"].to_pylist(), strict=True):
        found = dtype_of_name(name)
        if found and ns:
            total[found] = total.get(found, 0) + ns
    return (max(total, key=lambda d: total[d]), "kernel names") if total else (None, None)


def dtype_of_name(kernel: str) -> str | None:
    """Return the number format that a matrix kernel's name tells, if it tells one."""
    return next((dtype for dtype, pattern in _NAME_DTYPES if re.search(pattern, kernel.lower())), None)


# ------------------------------------------------------------------ the model


def _num_devices(steps: pa.Table, world_size: int | None, messages: list[str]) -> int | None:
    """Return the devices of the job; a rank that talks to nobody is a job of its own."""
    ranks = set(steps["rank"].to_pylist())
    traced = len(set(zip(steps["rank"].to_pylist(), steps["device"].to_pylist(), strict=True)))
    if world_size is None:
        communicate = bool(pc.sum(steps["comm_ns"]).as_py())
        if len(ranks) == 1 and not communicate:
            return traced
        why = "they communicate" if communicate else f"they are of {len(ranks)} ranks"
        messages.append(f"the traces do not record the world size, and {why}; pass --world-size")
        return None
    return round(world_size * traced / len(ranks)) if ranks else None


def _mfu(
    steps: pa.Table, question: Question, dtype: str | None, peak: float | None, count: int | None, messages: list[str]
) -> tuple[dict[str, Any], int]:
    """Return the JSON of MFU without HFU, and the ideal ns of the model on one device in one step."""
    nothing: dict[str, Any] = {
        "value": None, "convention": None, "model_flops_per_step": None, "source": None, "other_conventions": {},
    }  # fmt: skip
    missing = [
        flag
        for flag, value in (
            ("--model NAME", question.model or question.flops_per_token),
            ("--tokens-per-step N", question.tokens_per_step),
        )
        if value is None
    ]
    if missing or question.tokens_per_step is None:
        messages.append(
            f"MFU needs the model and the tokens that the whole job trains in a step; pass {' and '.join(missing)}"
        )
        return nothing, 0
    numbered = steps.filter(pc.is_valid(steps["step"]))
    if question.step_time_ns is None and (len(numbered) < len(steps) or not len(steps)):
        messages.append("no steps are marked in the traces, so tokens per step say nothing; profile with prof.step()")
        return nothing, 0
    window = int(pc.sum(steps["window_ns"]).as_py() or 0)
    if count is None or not window:
        return nothing, 0
    traced_ns = window / len(steps)
    step_ns = question.step_time_ns or traced_ns
    result, per_step, problems = _model(question, dtype, peak, count, step_ns)
    messages.extend(problems)
    if peak is None or problems:
        return result, 0
    model_ns = round(per_step / (count * peak) * 1e9)
    value = model_ns / step_ns
    result["value"] = value if 0 < value <= 1 else None
    if question.step_time_ns is not None and result["value"] is not None:
        messages.append(
            f"MFU is of {question.step_time_steps} unprofiled steps, {step_ns / 1e6:.1f} ms; the waterfall is of the "
            f"profiled ones, {traced_ns / 1e6:.1f} ms, in which it would be {100 * model_ns / traced_ns:.1f} %"
        )
    return result, model_ns if len(numbered) == len(steps) else 0


def _model(
    question: Question, dtype: str | None, peak: float | None, count: int, step_ns: float
) -> tuple[dict[str, Any], float, list[str]]:
    """Return the JSON of MFU without its value, the model's FLOPs of a step, and why there is no value."""
    tokens = question.tokens_per_step or 0.0
    if question.model is None:
        per_step = (question.flops_per_token or 0.0) * tokens
        source = f"{question.flops_per_token:g} FLOPs a token as the run recorded, {tokens:g} tokens per step"
        return {
            "value": None, "convention": question.convention, "model_flops_per_step": per_step,
            "source": f"{source} on {count} devices", "other_conventions": {},
        }, per_step, []  # fmt: skip
    from perfkit.flops.calculator import compute_mfu

    answer = compute_mfu(
        question.model, dtype=dtype or "bf16", convention=question.convention, seq_len=question.seq_len,
        peak_flops=peak, step_time=step_ns / 1e9, tokens_per_step=tokens, devices=count,
    )  # fmt: skip
    per_step = (answer.flops_per_token or 0.0) * tokens
    result = {
        "value": None, "convention": answer.convention, "model_flops_per_step": per_step or None,
        "source": f"{answer.model or 'model'}, {tokens:g} tokens per step on {count} devices",
        "other_conventions": {
            name: other.mfu for name, other in answer.conventions.items() if name != answer.convention
        },
    }  # fmt: skip
    return result, per_step, list(answer.messages) if peak is not None and answer.mfu is None else []
