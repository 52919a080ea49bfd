"""What HTA says about traces; runs in the Python that has HTA, and prints JSON.

python hta_script.py times FILE...      temporal breakdown and overlap of each file
python hta_script.py bridge FILE...     the same through `perfkit.analyze(FILE).to_hta()`
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
NAMES = ("idle", "compute", "non_compute", "kernel")


def open_trace(how: str, path: str) -> Any:
    if how == "bridge":
        from perfkit.analysis.analyze import analyze

        return analyze(path).to_hta(include_last_profiler_step=True)
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)


def times(trace: Any) -> dict[str, float | None]:
    """Times in µs, overlap in percent; None where HTA finds no communication."""
    row = trace.get_temporal_breakdown(visualize=False).iloc[0]
    result: dict[str, float | None] = {name: float(row[f"{name}_time(us)"]) for name in NAMES}
    try:
        result["overlap"] = float(trace.get_comm_comp_overlap(visualize=False).iloc[0, 1])
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        result["overlap"] = None
    return result


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    how, *paths = sys.argv[1:]
    json.dump({path: times(open_trace(how, path)) for path in paths}, sys.stdout)


if __name__ == "__main__":
    main()
