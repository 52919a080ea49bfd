"""Turn flags or the cells of a CSV row into the arguments of `compute_mfu`.

    arguments_from({"model": "llama3-8b", "step_time": "32s", …}) -> keyword arguments

The same words mean the same on the command line, in a batch file and in Python. A model comes from
`model` (a preset), `spec` (a JSON file), `hf_config`, or from spec keys alone; spec keys given beside
one of those override it (`--model llama3.1-405b --kv-heads 16`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import UsageError
from perfkit.flops.json_file import read_json_object
from perfkit.flops.quantities import parse_flops, parse_seconds, read_count, read_number
from perfkit.flops.spec import FIELDS, TransformerSpec, spec_from_dict

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


def arguments_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """Parse options (text or numbers; None and empty text mean "not given")."""
    given = {k.strip().replace("-", "_").lower(): v for k, v in options.items() if v is not None and v != ""}
    unknown = [key for key in given if key not in OPTION_KEYS and key not in FIELDS]
    if unknown:
        close = [m for key in unknown for m in difflib.get_close_matches(key, (*OPTION_KEYS, *SPEC_KEYS), n=1)]
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise UsageError(
            f"unknown options {unknown}",
            next_step=f"{hint}`perfkit mfu --help` lists all; a column that is not for perfkit starts with _",
        )
    arguments: dict[str, Any] = {"model": _model(given)}
    arguments |= {key: str(given[key]) for key in WORDS if key in given}
    for key in COUNTS:
        if key in given:
            arguments[key] = read_count(key, given[key])
    for key in NUMBERS:
        if key in given:
            arguments[key] = read_number(key, given[key])
    if "step_time" in given:
        arguments["step_time"] = parse_seconds(given["step_time"])
    if "peak_flops" in given:
        arguments["peak_flops"] = parse_flops(given["peak_flops"])
    if "seq_lens" in given:
        lengths = given["seq_lens"]
        parts = lengths.replace(",", " ").split() if isinstance(lengths, str) else lengths
        arguments["seq_lens"] = [read_count("seq_lens", part) for part in parts]
    return arguments


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
        path = Path(str(given["spec"]))
        what = 'a JSON file of spec keys, {"layers": 32, "hidden": 4096, …}'
        base = spec_from_dict({"name": path.stem, **read_json_object(path, what=what)})
    keys = {key: given[key] for key in FIELDS if key in given}
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
