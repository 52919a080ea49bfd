"""How many published MFU and TFLOP/s figures `perfkit mfu` reproduces, by source and convention.

    python benchmarks/published_mfu.py published_mfu.csv [--tolerance 0.5]

Every row goes through `perfkit.flops.inputs` and `compute_mfu`, as a row of `perfkit mfu --batch` would.
The convention is chosen by the source of the table, never by the row; what a row gives (shapes or the name
of the model, speed, devices) is passed on as it stands. The tables write `H100` and mean the SXM board: that
is said here, because perfkit does not guess it. Rows beyond the tolerance are listed with the reason.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from perfkit.flops.calculator import MfuResult, compute_mfu
from perfkit.flops.inputs import arguments_from

HARDWARE = {"h100_80gb": "H100 SXM", "h100": "H100 SXM", "v100": "V100 SXM2"}
"""What the tables mean by a name that is ambiguous; the others (`a100_40gb`, `GB200`) are passed on."""

WHOLE_SEQUENCES = "26.04.01"
"""The table whose tokens/s were computed from whole sequences per second (every row is a multiple of it)."""


@dataclass(frozen=True)
class Comparison:
    """One row: what was published, what perfkit gives, and why a comparison is not possible if it is not."""

    row: int
    source: str
    model: str
    convention: str | None
    published: float | None
    computed: float | None
    what: str
    why_not: str | None = None
    slack_pct: float = 0.0
    """Half a unit in the last published digit, of the figure and of the speed, in percent of the figure."""

    @property
    def error_pct(self) -> float | None:
        """How far off, in percent of the published figure."""
        if self.published is None or self.computed is None:
            return None
        return 100 * (self.computed / self.published - 1)


def options_for(row: dict[str, str]) -> tuple[dict[str, object], str] | str:
    """Return the options of `perfkit mfu` and the published column, or why there is nothing to compare."""
    source = row["source"]
    dtype = row["precision"].split(" ")[0]
    options: dict[str, object] = {"hardware": HARDWARE.get(row["gpu"].lower(), row["gpu"]), "dtype": dtype}
    shapes = {key: row[key] for key in ("layers", "hidden", "heads", "kv_heads", "vocab", "seq_len", "ffn")}
    speed = row["tokens_per_s_or_tflops_or_step_time"]
    if row["value_unit"].startswith("tokens/s (all"):
        options |= {"tokens_per_second": speed, "devices": row["gpu_count"]}
    elif row["value_unit"] == "tokens/s/GPU":
        options |= {"tokens_per_second_per_device": speed}
    elif row["value_unit"].startswith(("s/step", "ms/step")):
        unit = row["value_unit"].split("/")[0]
        options |= {"step_time": speed + unit, "global_batch": row["global_batch"], "devices": row["gpu_count"]}
    elif row["value_unit"].startswith("TFLOP/s/GPU"):
        options |= {"tflops_per_device": speed}

    if "llm-foundry" in source:
        recompute = "full" if row["recompute"].startswith("full") else "none"
        options |= shapes | {"n_params": row["n_params"], "convention": "llm-foundry", "recompute": recompute}
        return options, "reported_mfu"
    if "dgxc-benchmarking" in source and "llama3.1" in source:
        return options | shapes | {"gated": True, "convention": "megatron-full"}, "reported_mfu"
    if "dgxc-benchmarking" in source and "nemotron" in source:
        # the table's own note: it counts grouped queries as if every head had its own keys
        mha = {"kv_heads": row["heads"], "gated": False, "convention": "megatron-full"}
        return options | shapes | mha, "reported_mfu"
    if "GPT-3 example" in source or "tables.tex" in source:
        return options | shapes | {"gated": False, "convention": "narayanan"}, "reported_tflops_per_gpu"
    if "model_table.png" in source:
        return options, "reported_mfu"
    if "examples/llama" in source:
        return options | shapes | {"gated": True, "convention": "megatron-full"}, "reported_tflops_per_gpu"
    if "Megatron-Bridge" in source:
        return options | {
            "model": row["model"],
            "seq_len": row["seq_len"],
            "convention": "megatron",
        }, "reported_tflops_per_gpu"
    if not row["reported_mfu"]:
        return "no MFU was published, and the TFLOP/s (if any) are the input"
    return "no speed was published"


def compare(number: int, row: dict[str, str]) -> Comparison:
    planned = options_for(row)
    if isinstance(planned, str):
        return Comparison(number, row["source"], row["model"], None, None, None, "", planned)
    options, column = planned
    result: MfuResult = compute_mfu(**arguments_from(options))
    published = float(row[column])
    if column == "reported_mfu":
        what, computed = "MFU %", None if result.mfu is None else 100 * result.mfu
    else:
        what, computed = "TFLOP/s", result.tflops_per_device
    speed = row["tokens_per_s_or_tflops_or_step_time"]
    slack = _rounding_pct(row[column]) + (
        _sequence_rounding_pct(row) if WHOLE_SEQUENCES in row["source"] else _rounding_pct(speed)
    )
    convention = result.convention if "convention" in options else "TFLOP/s given"
    return Comparison(number, row["source"], row["model"], convention, published, computed, what, None, slack)


def _rounding_pct(text: str) -> float:
    """Half a unit in the last digit, as a percentage of the number."""
    digits = text.rstrip("0").rstrip(".") if "." in text else text
    decimals = len(digits.split(".")[1]) if "." in digits else 0
    return 100 * 0.5 * 10**-decimals / float(text)


def _sequence_rounding_pct(row: dict[str, str]) -> float:
    """Half a sequence per second of the whole job, as a percentage of the speed."""
    sequences = float(row["tokens_per_s_or_tflops_or_step_time"]) * int(row["gpu_count"]) / int(row["seq_len"])
    return 100 * 0.5 / sequences


def reason(comparison: Comparison) -> str:
    """Say why a row is beyond the tolerance, from the table it is in."""
    if "model_table.png" in comparison.source:
        return "the table rounds MFU to whole percent; its TFLOP/s / 989 agrees within that rounding"
    if WHOLE_SEQUENCES in comparison.source:
        return "tokens/s in this table are whole sequences per second of the job; agrees within that rounding"
    if comparison.row == 410:
        return "publisher's: TFLOP/s and tokens/s of this row disagree by 0.9 %, in every other gpt-oss row they agree"
    return "not explained"


def load(path: Path) -> list[Comparison]:
    with path.open(newline="", encoding="utf-8") as handle:
        return [compare(number, row) for number, row in enumerate(csv.DictReader(handle), 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.5, help="percent")
    args = parser.parse_args()
    rows = load(args.table)
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for row in rows:
        groups[(row.source, row.convention or "–")].append(row)
    print(f"{'rows':>5} {'within':>7}  {'convention':<15} source")
    for (source, convention), members in groups.items():
        tested = [m for m in members if m.error_pct is not None]
        within = sum(abs(m.error_pct or 0) <= args.tolerance for m in tested)
        print(f"{len(tested):5} {within:7}  {convention:<15} {source}")
    tested = [row for row in rows if row.error_pct is not None]
    within = [row for row in tested if abs(row.error_pct or 0) <= args.tolerance]
    share = len(within) / len(tested)
    print(f"\n{len(within)} of {len(tested)} comparable rows within {args.tolerance} % ({share:.1%})")
    print(f"\nbeyond {args.tolerance} %:")
    for row in tested:
        if row not in within:
            print(
                f"  row {row.row:3} {row.model:<16} {row.what} published {row.published or 0:g}, computed "
                f"{row.computed or 0:.2f} ({row.error_pct or 0:+.2f} %): {reason(row)}"
            )
    print("\nnot comparable:")
    for row in rows:
        if row.error_pct is None:
            print(f"  row {row.row:3} {row.model:<16} {row.why_not or 'no result'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
