"""Turn flags or the cells of a CSV row into the arguments of `compute_mfu`.

    arguments_from({"model": "llama3-8b", "step_time": "32s", …}) -> keyword arguments

The same words mean the same on the command line, in a batch file and in Python. A model comes from
`model` (a preset), `spec` (a JSON file), `hf_config`, or from spec keys alone; spec keys given beside
one of those override it (`--model llama3.1-405b --kv-heads 16`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import CorruptInput, InputError, UsageError
from perfkit.flops.spec import FIELDS, TransformerSpec, spec_from_dict, to_int

WORDS = ("hardware", "dtype", "attention_dtype", "head_dtype", "convention", "recompute", "peak")
COUNTS = ("global_batch", "micro_batch", "grad_accum", "data_parallel", "devices")
NUMBERS = (
    "tokens_per_second_per_device",
    "tokens_per_second",
    "tflops_per_device",
    "tokens_per_step",
    "flops_per_token",
)
MODEL_KEYS = ("model", "spec", "hf_config")
SPEC_KEYS = tuple(key for key in FIELDS if key != "name")
OPTION_KEYS = (*MODEL_KEYS, *WORDS, *COUNTS, *NUMBERS, "step_time", "peak_flops", "seq_lens")
"""Everything that may be given beside the spec keys."""

_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "m": 60.0, "min": 60.0,
            "h": 3600.0}  # fmt: skip
_SCALE = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}


def arguments_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """Parse options (text or numbers; None and empty text mean "not given")."""
    given = {k.strip().replace("-", "_").lower(): v for k, v in options.items() if v is not None and v != ""}
    unknown = [key for key in given if key not in OPTION_KEYS and key not in FIELDS]
    if unknown:
        raise UsageError(f"unknown options {unknown}", next_step=f"known: {', '.join((*OPTION_KEYS, *SPEC_KEYS))}")
    arguments: dict[str, Any] = {"model": _model(given)}
    arguments |= {key: str(given[key]) for key in WORDS if key in given}
    for key in COUNTS:
        if key in given:
            arguments[key] = _number(key, given[key], to_int)
    for key in NUMBERS:
        if key in given:
            arguments[key] = _number(key, given[key], lambda v: float(str(v).replace(",", "").replace("_", "")))
    if "step_time" in given:
        arguments["step_time"] = parse_seconds(given["step_time"])
    if "peak_flops" in given:
        arguments["peak_flops"] = parse_flops(given["peak_flops"])
    if "seq_lens" in given:
        lengths = given["seq_lens"]
        parts = lengths.replace(",", " ").split() if isinstance(lengths, str) else lengths
        arguments["seq_lens"] = [_number("seq_lens", part, to_int) for part in parts]
    return arguments


def parse_seconds(value: Any) -> float:
    """Read a duration: `32`, `32s`, `450ms`, `1.5 min`."""
    match = re.fullmatch(r"\s*([0-9.,_]+(?:e[+-]?\d+)?)\s*([a-zµ]*)\s*", str(value), re.IGNORECASE)
    if match is None or match[2].lower() not in _SECONDS:
        raise UsageError(f"{value!r} is not a duration", next_step="write 32s or 450ms")
    return float(_number("step_time", match[1].replace(",", ""), float)) * _SECONDS[match[2].lower()]


def parse_flops(value: Any) -> float:
    """Read FLOP/s: `989e12`, `989T`, `2.25P`."""
    match = re.fullmatch(r"\s*([0-9.,_]+(?:e[+-]?\d+)?)\s*([GTP]?)(?:FLOPS?|FLOP/s)?\s*", str(value), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{value!r} is not a peak", next_step="write 989e12 or 989T")
    return float(_number("peak_flops", match[1].replace(",", ""), float)) * _SCALE[match[2].upper()]


def _number(key: str, value: Any, convert: Any) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise UsageError(f"{key} = {value!r} is not a number") from None


def _model(given: Mapping[str, Any]) -> TransformerSpec | None:
    sources = [key for key in MODEL_KEYS if key in given]
    if len(sources) > 1:
        raise UsageError(f"the model is given twice: {', '.join(sources)}", next_step="give one of them")
    base: TransformerSpec | None = None
    if "model" in given:
        from perfkit.flops.presets import preset

        base = preset(str(given["model"]))
    elif "hf_config" in given:
        from perfkit.flops.huggingface import load_hf_config

        base = load_hf_config(str(given["hf_config"]))
    elif "spec" in given:
        base = _load_spec(Path(str(given["spec"])))
    keys = {key: given[key] for key in SPEC_KEYS if key in given}
    if not keys:
        return base
    if base is not None and base.n_params is not None and "n_params" not in keys and _SIZES & keys.keys():
        keys = {"n_params": None, **keys}  # the published total is of other shapes
        base = _without_totals(base)
    return spec_from_dict(keys, base=base)


_SIZES = frozenset(SPEC_KEYS) - {
    "seq_len", "attention_len", "attention", "window", "window_layers", "chunked", "activation", "mtp_layers",
    "frozen_params", "lora_rank", "lora_targets", "n_params", "active_params", "active_experts",
}  # fmt: skip


def _without_totals(base: TransformerSpec) -> TransformerSpec:
    import dataclasses

    return dataclasses.replace(base, n_params=None, active_params=None)


def _load_spec(path: Path) -> TransformerSpec:
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", path=str(path), next_step="give a JSON file of spec keys") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CorruptInput(f"not valid JSON: {error}", path=str(path), next_step="correct it") from None
    if not isinstance(document, dict):
        raise CorruptInput("not a JSON object", path=str(path), next_step='write {"layers": 32, "hidden": 4096, …}')
    return spec_from_dict({"name": path.stem, **document})
