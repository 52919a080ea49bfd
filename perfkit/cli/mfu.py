r"""What is the MFU of a run: model + speed + hardware, in every convention.

examples:
  perfkit mfu --model llama3-8b --seq-len 8192 --hardware "NVIDIA H100 80GB HBM3" --dtype bf16 \
      --tokens-per-second-per-device 5762
  perfkit mfu --model gpt3-175b --seq-len 2048 --step-time 32s --global-batch 1536 --devices 1024 \
      --hardware "NVIDIA A100-SXM4-80GB" --dtype fp16 --convention narayanan
  perfkit mfu --n-params 7e9 --layers 32 --hidden 4096 --seq-len 4096 --tokens-per-second 3.1e6 --devices 512 \
      --hardware "NVIDIA B200"
  perfkit mfu --model llama3-70b --dtype fp8 --attention-dtype bf16 --head-dtype bf16 …   mixed precision
  perfkit mfu --batch rows.csv --format csv        columns have the names of the flags
  perfkit mfu --list                               presets and conventions

An unknown peak or a result above 1 gives no MFU: the reason is printed and the exit code is 2.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from perfkit.flops.inputs import COUNTS, NUMBERS, OPTION_KEYS, SPEC_KEYS

if TYPE_CHECKING:
    from perfkit.flops.batch import RowResult
    from perfkit.flops.calculator import MfuResult

_HELP = {
    "model": "a preset, e.g. llama3-8b; see --list",
    "spec": "JSON file with spec keys",
    "hf_config": "Hugging Face config.json",
    "hardware": "device name as the driver reports it, e.g. 'NVIDIA H100 80GB HBM3'",
    "dtype": "number format of the matrices: bf16 (default), fp16, fp8, fp4, tf32, fp32, …",
    "attention_dtype": "number format of attention, if it differs",
    "head_dtype": "number format of the logits, if it differs",
    "convention": "which FLOPs are counted (default palm); see --list",
    "recompute": "none, selective or full: what HFU adds",
    "peak": "registry (default) or measured (by `perfkit hardware --calibrate`)",
    "tokens_per_second_per_device": "speed of one device",
    "tokens_per_second": "speed of the whole job; needs --devices",
    "tflops_per_device": "TFLOP/s of one device as somebody reported them",
    "step_time": "seconds of one optimizer step (32s, 450ms); needs a batch and --devices",
    "global_batch": "sequences of one optimizer step",
    "tokens_per_step": "tokens of one optimizer step (4M is 4 million, 4Mi is 4 · 2^20), instead of --global-batch",
    "flops_per_token": "a count of your own, instead of a convention",
    "peak_flops": "dense FLOP/s of one device (989e12, 989T): overrides the registry",
    "seq_lens": "lengths of packed documents, e.g. 512,1024,6656",
    "seq_len": "tokens of a sequence",
    "n_params": "all parameters",
    "gated": "the MLP has a gate (SwiGLU): true or false",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command; every one is also a column of --batch."""
    run = parser.add_argument_group("run")
    for key in OPTION_KEYS:
        run.add_argument(_flag(key), metavar=_metavar(key), help=_HELP.get(key))
    run.add_argument("--batch", metavar="ROWS.csv", help="compute every row of a CSV file")
    run.add_argument("--format", choices=("text", "json", "csv"), default="text", help="output (csv: with --batch)")
    run.add_argument("--list", action="store_true", help="list presets and conventions")
    spec = parser.add_argument_group("spec keys (a model without a preset, or changes to one)")
    for key in SPEC_KEYS:
        spec.add_argument(_flag(key), metavar="X", nargs="?", const="true", help=_HELP.get(key))


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _metavar(key: str) -> str:
    return "N" if key in COUNTS or key in NUMBERS else "X"


def run(args: argparse.Namespace) -> int:
    """Compute and print; 2 if there is no MFU to print."""
    from perfkit.cli import mfu_text

    if args.list:
        mfu_text.print_lists()
        return 0
    options = {key: getattr(args, key) for key in (*OPTION_KEYS, *SPEC_KEYS) if getattr(args, key) is not None}
    if args.batch:
        return _run_batch(args.batch, options, args.format)
    from perfkit.errors import UsageError
    from perfkit.flops.calculator import compute_mfu
    from perfkit.flops.inputs import arguments_from

    if args.format == "csv":
        raise UsageError("--format csv is for --batch", next_step="use text or json")
    result = compute_mfu(**arguments_from(options))
    if args.format == "json":
        _print_json(result.to_json())
    else:
        mfu_text.print_result(result)
    return 0 if result.ok else 2


def _run_batch(path: str, options: dict[str, Any], output: str) -> int:
    from perfkit.cli import mfu_text
    from perfkit.flops.batch import compute_rows, read_rows

    results = compute_rows(read_rows(path), options)
    if output == "json":
        _print_json({"rows": [row.to_json() for row in results]})
    elif output == "csv":
        _print_csv(results)
    else:
        mfu_text.print_rows(results)
    return 0 if all(_has_mfu(row.result) for row in results) else 2


def _has_mfu(result: MfuResult | None) -> bool:
    return result is not None and result.ok


def _print_json(document: dict[str, Any]) -> None:
    import json

    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))


def _print_csv(results: list[RowResult]) -> None:
    import csv
    import sys

    first = ("mfu", "hfu", "tflops_per_device", "flops_per_token", "convention", "peak_flops", "peak_source")
    documents = [row.to_json() for row in results]
    labels = list(dict.fromkeys(key for row in results for key in row.labels))
    writer = csv.DictWriter(
        sys.stdout, ["row", *labels, "model", *first, "error", "messages"], extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    for document in documents:
        writer.writerow(document | {"messages": " | ".join(document.get("messages", ()))})
