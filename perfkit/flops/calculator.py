"""The MFU calculator: model + speed + hardware -> MFU and HFU, in every convention.

    compute_mfu(model="llama3-8b", seq_len=8192, hardware="NVIDIA H100 80GB HBM3", dtype="bf16",
                tokens_per_second_per_device=5762) -> MfuResult

MFU = model FLOPs / (peak x time). With several number formats it is T_ideal / T, where T_ideal is the
sum of each format's FLOPs over its own peak; for one format that is the classic value, so `peak_flops`
is always model FLOPs / T_ideal. An unknown peak, or a result above 1, leaves `mfu` null and says why:
nothing is clipped and nothing falls back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perfkit.errors import UnknownHardware, UsageError
from perfkit.flops.conventions import CONVENTIONS, TokenFlops, get_convention
from perfkit.flops.params import active_params, counted_params, total_params
from perfkit.flops.quantities import LARGEST
from perfkit.flops.spec import CannotCount, TransformerSpec, spec_from_dict
from perfkit.flops.speed import Speed
from perfkit.hardware.lookup import Peak, resolve_peak
from perfkit.hardware.registry import canonical_dtype

DEFAULT_CONVENTION = "palm"
"""The definition that coined the word; both attention conventions are printed beside it."""

TERMS = ("linear", "attention", "head")

GIVEN = "given"
"""Stands for a convention where the user gave FLOPs or TFLOP/s and did not say how they were counted."""


@dataclass(frozen=True, slots=True)
class ConventionResult:
    """One convention's answer; null where it cannot or must not give one."""

    mfu: float | None
    flops_per_token: float | None
    attention: str
    reason: str | None = None
    """Why something is null."""


@dataclass(frozen=True)
class MfuResult:
    """What `perfkit mfu` prints; `to_json()` has the promised keys."""

    mfu: float | None
    hfu: float | None
    tflops_per_device: float | None
    flops_per_token: float | None
    convention: str
    peak_flops: float | None
    peak_source: str | None
    conventions: dict[str, ConventionResult]
    model: str | None = None
    params: int | None = None
    active_params: int | None = None
    seq_len: int | None = None
    device: str | None = None
    dtype: str | None = None
    peaks: dict[str, float] = field(default_factory=dict)
    """Peak of every number format that was used."""
    flops_by_dtype: dict[str, float] = field(default_factory=dict)
    """Model FLOPs of a token by number format."""
    tokens_per_second_per_device: float | None = None
    step_time_seconds: float | None = None
    recompute: str = "none"
    hardware_flops_per_token: float | None = None
    messages: tuple[str, ...] = ()
    """Why there is no MFU or no HFU."""
    notes: tuple[str, ...] = ()
    """What to know about the peak and the convention."""

    @property
    def ok(self) -> bool:
        """Whether there is an MFU."""
        return self.mfu is not None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document; unknown is null."""
        first = ("mfu", "hfu", "tflops_per_device", "flops_per_token", "convention", "peak_flops", "peak_source")
        document: dict[str, Any] = {key: getattr(self, key) for key in first}
        document["conventions"] = {
            name: {"mfu": r.mfu, "flops_per_token": r.flops_per_token, "attention": r.attention, "reason": r.reason}
            for name, r in self.conventions.items()
        }
        for key in ("model", "params", "active_params", "seq_len", "device", "dtype", "peaks", "flops_by_dtype",
                    "tokens_per_second_per_device", "step_time_seconds", "recompute",
                    "hardware_flops_per_token"):  # fmt: skip
            document[key] = getattr(self, key)
        document["messages"] = list(self.messages)
        document["notes"] = list(self.notes)
        return document


def compute_mfu(
    model: str | TransformerSpec | Mapping[str, Any] | None = None,
    *,
    hardware: str | None = None,
    dtype: str = "bf16",
    attention_dtype: str | None = None,
    head_dtype: str | None = None,
    convention: str | None = None,
    recompute: str = "none",
    seq_len: int | None = None,
    seq_lens: list[int] | None = None,
    flops_per_token: float | None = None,
    peak_flops: float | None = None,
    peak: str = "registry",
    **speed: Any,
) -> MfuResult:
    """Compute MFU and HFU of a training run.

    `model` is a preset's name, a `TransformerSpec`, or its keys. `speed` are the fields of
    `perfkit.flops.speed.Speed`, one of: `tokens_per_second_per_device`; `tokens_per_second` of the job with
    `devices`; `step_time` in seconds with `global_batch` sequences (or `tokens_per_step`) and `devices`;
    `tflops_per_device` as somebody reported it, in the convention that you name (default `palm`; a model is not
    needed for it). `seq_lens` are the documents of a packed batch.
    `flops_per_token` replaces a convention by a count of your own (see `perfkit.flops.counting`).
    """
    spec = _resolve_model(model, seq_len, seq_lens)
    given = _speed(speed)
    dtypes = dict(zip(TERMS, map(canonical_dtype, (dtype, attention_dtype or dtype, head_dtype or dtype)), strict=True))
    messages: list[str] = []
    notes = _doubtful_params(spec)
    peaks, source, device = _peaks(hardware, sorted(set(dtypes.values())), peak_flops, peak, messages, notes)
    counts, reasons = _count_all(spec, recompute)
    main = _chosen(convention or DEFAULT_CONVENTION, counts, reasons, flops_per_token, given)
    _check_split(main, dtypes)
    tokens = given.tokens_per_device(spec.seq_len if spec else seq_len)
    if tokens is None and main is not None and given.tflops_per_device is not None:
        tokens = given.tflops_per_device * 1e12 / main.model
    conventions = {
        name: _answer(name, counts.get(name), reasons.get(name), tokens, dtypes, peaks) for name in CONVENTIONS if spec
    }
    if main is not None and tokens is not None:
        effective = _effective_peak(main.parts, dtypes, peaks)
        achieved: float | None = main.model * tokens / 1e12
        hfu = _utilisation(main.hardware_parts, tokens, dtypes, peaks)
    else:  # only TFLOP/s were reported, and no model
        effective, achieved = peaks.get(dtypes["linear"]), given.tflops_per_device
        hfu = None if effective is None or achieved is None else achieved * 1e12 / effective
    mfu = None if effective is None or achieved is None else achieved * 1e12 / effective
    name = main.convention if main else get_convention(convention).name if convention else GIVEN
    chosen = CONVENTIONS.get(name)
    if recompute != "none" and (main is None or chosen is None):
        hfu = None
        notes.append("HFU is unknown: what is computed again follows from the shapes, and here only a figure was given")
    attention = chosen.attention if chosen else "none"
    if mfu is not None and mfu > 1:
        messages.append(_impossible(mfu, attention, conventions))
        mfu = hfu = None
    elif hfu is not None and hfu > 1:
        messages.append(f"HFU would be {hfu:.1%}, above 1: the recompute setting {recompute!r} cannot be right")
        hfu = None
    if chosen and chosen.recompute_included:
        notes.append(f"{name} counts a recomputed forward: the figure is a hardware utilisation")
    return MfuResult(
        mfu=mfu,
        hfu=hfu,
        tflops_per_device=achieved,
        flops_per_token=main.model if main else None,
        convention=name,
        peak_flops=effective,
        peak_source=source,
        conventions=conventions,
        model=spec.name if spec else None,
        params=_or_none(total_params, spec),
        active_params=_or_none(active_params, spec),
        seq_len=spec.seq_len if spec else None,
        device=device,
        dtype=dtypes["linear"],
        peaks=peaks,
        flops_by_dtype=_by_dtype(main, dtypes),
        tokens_per_second_per_device=tokens,
        step_time_seconds=given.step_time,
        recompute=recompute,
        hardware_flops_per_token=main.hardware if main else None,
        messages=tuple(messages),
        notes=tuple(notes),
    )


def _speed(speed: dict[str, Any]) -> Speed:
    if unknown := set(speed) - {field.name for field in fields(Speed)}:
        raise UsageError(f"unknown arguments {sorted(unknown)}", next_step="see compute_mfu and perfkit.flops.speed")
    return Speed(**speed)


def _chosen(
    convention: str,
    counts: dict[str, TokenFlops],
    reasons: dict[str, str],
    flops_per_token: float | None,
    speed: Speed,
) -> TokenFlops | None:
    """Return the count that MFU is computed from; none if TFLOP/s are given and nothing has to be counted."""
    if flops_per_token is not None:
        if not 0 < flops_per_token < LARGEST:
            raise UsageError(f"flops_per_token = {flops_per_token} makes no sense", next_step="use a positive number")
        parts = {"linear": float(flops_per_token), "attention": 0.0, "head": 0.0}
        return TokenFlops(GIVEN, flops_per_token / 3, parts, parts)
    name = get_convention(convention).name
    if name in counts or speed.tflops_per_device is not None:
        return counts.get(name)
    if name in reasons:
        can = f"or choose --convention {' or '.join(counts)}" if counts else ""
        raise CannotCount(f"convention {name!r}: {reasons[name]}", next_step=f"give that {can}".strip())
    raise UsageError(
        "no model is given, so there is nothing to count",
        next_step="add --model NAME (see --list), --spec FILE.json, --hf-config config.json or --flops-per-token",
    )


def _check_split(main: TokenFlops | None, dtypes: dict[str, str]) -> None:
    if len(set(dtypes.values())) > 1 and (main is None or main.convention == GIVEN):
        raise UsageError(
            "FLOPs that were given, not counted, cannot be split by number format",
            next_step="give a model, or one --dtype",
        )


def _answer(
    name: str,
    count: TokenFlops | None,
    reason: str | None,
    tokens: float | None,
    dtypes: dict[str, str],
    peaks: dict[str, float],
) -> ConventionResult:
    value = None if count is None or tokens is None else _utilisation(count.parts, tokens, dtypes, peaks)
    if value is not None and value > 1:
        value, reason = None, f"invalid: {value:.1%} of the peak"
    return ConventionResult(value, count.model if count else None, CONVENTIONS[name].attention, reason)


def _by_dtype(count: TokenFlops | None, dtypes: dict[str, str]) -> dict[str, float]:
    result: dict[str, float] = {}
    for term, flops in (count.parts if count else {}).items():
        result[dtypes[term]] = result.get(dtypes[term], 0.0) + flops
    return result


def _resolve_model(
    model: str | TransformerSpec | Mapping[str, Any] | None, seq_len: int | None, seq_lens: list[int] | None
) -> TransformerSpec | None:
    if model is None:
        return None
    if isinstance(model, str):
        from perfkit.flops.presets import preset

        spec = preset(model)
    else:
        spec = model if isinstance(model, TransformerSpec) else spec_from_dict(model)
    if seq_len is not None:
        spec = replace(spec, seq_len=seq_len)
    if seq_lens is not None:
        spec = replace(spec, attention_len=packed_length(seq_lens), seq_len=spec.seq_len or max(seq_lens))
    total = _or_none(total_params, spec)
    if spec.frozen_params is not None and total is not None and spec.frozen_params > total:
        raise UsageError(
            f"frozen_params {spec.frozen_params:,} is more than all parameters, {total:,}",
            next_step="give the part that gets no gradient",
        )
    return spec


def _doubtful_params(spec: TransformerSpec | None) -> list[str]:
    """Say that a given total and the shapes are not of one model; 10 % is more than biases, norms and padding."""
    counted = _or_none(counted_params, spec)
    if spec is None or counted is None or spec.n_params is None or abs(spec.n_params / counted - 1) < 0.1:
        return []
    return [f"n_params is {spec.n_params / 1e9:,.2f} B, but the shapes have {counted / 1e9:,.2f} B: is that one model?"]


def packed_length(lengths: list[int]) -> float:
    """Return the length that attention costs per token in a packed batch: sum of squares over sum."""
    if not lengths or min(lengths) <= 0:
        raise UsageError(f"sequence lengths {lengths} make no sense", next_step="give positive token counts")
    return sum(length**2 for length in lengths) / sum(lengths)


def _peaks(
    hardware: str | None,
    dtypes: list[str],
    peak_flops: float | None,
    peak: str,
    messages: list[str],
    notes: list[str],
) -> tuple[dict[str, float], str | None, str | None]:
    """Peak of every dtype in use; an unknown one is left out and said."""
    if peak_flops is not None:
        if not 1e9 <= peak_flops < LARGEST:
            raise UsageError(
                f"peak_flops = {peak_flops:g} FLOP/s is not one device's peak",
                next_step=f"it is in FLOP/s: write {peak_flops:g}e12 or {peak_flops:g}T for {peak_flops:g} TFLOP/s",
            )
        if len(dtypes) > 1:
            raise UsageError("one --peak-flops for several number formats", next_step="write them into peaks.toml")
        return {dtypes[0]: peak_flops}, "given with --peak-flops", hardware
    if hardware is None:
        messages.append(
            "no hardware is given, so there is no peak; add --hardware NAME (as nvidia-smi reports it) or --peak-flops"
        )
        return {}, None, None
    found: list[Peak] = []
    for dtype in dtypes:
        try:
            found.append(resolve_peak(hardware, dtype, peak=peak))
        except UnknownHardware as error:
            messages.append(str(error))
    notes.extend(dict.fromkeys(f"{p.device} {p.dtype}: {p.note}" for p in found if p.note))
    device = found[0].device if found else hardware
    source = (
        "; ".join(dict.fromkeys(part for p in found for part in p.source.split("; ")))
        if len(found) == len(dtypes)
        else None
    )
    return {p.dtype: p.flops for p in found}, source, device


def _effective_peak(parts: dict[str, float], dtypes: dict[str, str], peaks: dict[str, float]) -> float | None:
    """FLOPs over T_ideal; null unless every dtype in use has a peak."""
    used = {dtypes[term] for term, flops in parts.items() if flops}
    if not used <= peaks.keys():
        return None
    if len(used) == 1:
        return peaks[used.pop()]
    ideal_seconds = sum(flops / peaks[dtypes[term]] for term, flops in parts.items() if flops)
    return sum(parts.values()) / ideal_seconds if ideal_seconds else None


def _utilisation(
    parts: dict[str, float], speed: float, dtypes: dict[str, str], peaks: dict[str, float]
) -> float | None:
    peak = _effective_peak(parts, dtypes, peaks)
    return None if peak is None else sum(parts.values()) * speed / peak


def _count_all(spec: TransformerSpec | None, recompute: str) -> tuple[dict[str, TokenFlops], dict[str, str]]:
    counts: dict[str, TokenFlops] = {}
    reasons: dict[str, str] = {}
    if spec is None:
        return counts, reasons
    for name, convention in CONVENTIONS.items():
        try:
            counts[name] = convention.count(spec, recompute=recompute)
        except CannotCount as error:
            reasons[name] = error.message
    return counts, reasons


def _impossible(mfu: float, attention: str, conventions: dict[str, ConventionResult]) -> str:
    causes = [
        "the peak is not this device's (wrong --hardware, wrong dtype, or a clock above the published one)",
        "the speed is of another scope (whole job taken for one device, samples for tokens, warm-up steps left out)",
        "the FLOPs are not this model's (wrong preset, total instead of active parameters, padding counted as tokens)",
    ]
    causal_fits = any(r.attention == "causal" and r.mfu is not None for r in conventions.values())
    if attention == "full" and causal_fits:
        causes[2] = "attention counted in full while the kernels skip the masked half (compare with megatron)"
        causes.insert(0, causes.pop())
    listed = "; ".join(f"({i}) {cause}" for i, cause in enumerate(causes, 1))
    return f"MFU would be {mfu:.1%}, above 1: invalid, so none is given. Likeliest: {listed}"


def _or_none(function: Any, spec: TransformerSpec | None) -> int | None:
    if spec is None:
        return None
    try:
        return int(function(spec))
    except CannotCount:
        return None
