"""Break real jobs on purpose and see what the analyzer says first.

    python benchmarks/fault_matrix.py                        10 runs of every fault, and 10 without (about 40 minutes)
    python benchmarks/fault_matrix.py --runs 1 slow-rank     one run of one fault
    python benchmarks/fault_matrix.py --keep out/matrix      keep the stores
    python benchmarks/fault_matrix.py --alone                on a machine that does other things too

Each run is a 2-process gloo job of the reference loop, one core per process, profiled by perfkit on both ranks. A
fault counts as named if the first finding has its id (and its rank); a run without a fault counts as clean if the
first finding is not that of a fault. Two of them need a word: on a CPU there is no device to drain, so a sync point is
what it costs, many small blocking messages; and with two ranks there is no other link to compare with, so a slow link
is exposed communication that is transfer and not waiting, worth 30 points or more.

`effect` is by the job's own log: the mean time of a step from end to end, over that of the runs without a fault, less
one. A fault of less than 30 % is not what this matrix is about, and the line says so.

Needs two idle cores: on a busy machine every rank is a slow rank, and perfkit says so. With `--alone` (root) the jobs
run under benchmarks/quiet.py, which keeps everything else off their cores while they train.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """A fault and what must be said about it."""

    fault: str
    expected: tuple[str, ...]
    rank: int | None = None
    options: tuple[str, ...] = ()


CASES = {
    "slow-rank": Case("slow-rank:1:1.5x", ("straggler", "slow_rank"), 1),
    "slow-rank-0": Case("slow-rank:0:1.6x", ("straggler", "slow_rank"), 0),
    "slow-data": Case("slow-data:150ms", ("data_bound",)),
    "slow-checkpoint": Case("slow-checkpoint:500ms", ("checkpoint_stall",), None, ("--checkpoint.every", "2")),
    "sync-point": Case("sync-point:200", ("sync_points", "small_messages")),
    "gc-storm": Case("gc-storm:150ms", ("gc_pauses", "host_bound")),
    "slow-link": Case("slow-link:30MBps", ("slow_link", "exposed_communication")),
}
"""All of at least 30 % of the step time on the machines that they were tried on."""
FAULT_IDS = (
    "straggler", "slow_rank", "data_bound", "checkpoint_stall", "sync_points", "small_messages", "gc_pauses",
    "slow_link",
)  # fmt: skip
LINK_POINTS = 30.0
MIN_EFFECT = 0.3
WARM_STEPS = 3
STEPS = ("--train.steps", "17", "--capture.profile_first", "9", "--capture.profile_active", "6")


def run_case(folder: Path, case: Case | None, *, alone: bool = False) -> dict[str, Any]:
    """Train and analyze one job; returns the JSON of the analysis."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    words += ["perfkit.reference.train", "--train.folder", str(folder), *STEPS]
    if case:
        words += ["--fault", case.fault, *case.options]
    if alone:
        words = [sys.executable, str(Path(__file__).with_name("quiet.py")), "perfkit.reference.train", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99", "PYTHONWARNINGS": "ignore"}
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=600)
    answer = subprocess.run(
        [sys.executable, "-m", "perfkit", "analyze", "reference", "--store", str(folder / "store"), "--format", "json"],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    (folder / "analysis.json").write_text(answer.stdout)
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def step_s(folder: Path) -> float:
    """Return the mean time of a step, from end to end, as rank 0 of the job wrote it down."""
    rows = [json.loads(line) for line in (folder / "job-0.jsonl").read_text().splitlines()]
    ends = [row["end_ns"] for row in rows if row["kind"] == "step"][WARM_STEPS - 1 :]
    return (ends[-1] - ends[0]) / 1e9 / (len(ends) - 1)


def names(case: Case, document: dict[str, Any]) -> bool:
    """Say whether the first finding names the fault, and its rank."""
    if not document["findings"]:
        return False
    first = document["findings"][0]
    if first["id"] not in case.expected:
        return False
    if first["id"] == "host_bound":
        return is_storm(first)
    if first["id"] == "exposed_communication":
        return is_slow_transfer(first)
    return case.rank is None or first["evidence"].get("rank") == case.rank


def is_storm(finding: dict[str, Any]) -> bool:
    """Say whether a late host is blamed on garbage collection."""
    return finding["id"] == "host_bound" and next(iter(finding["evidence"]["culprits_ms"])) == "gc"


def is_slow_transfer(finding: dict[str, Any]) -> bool:
    """Say whether exposed communication is large and mostly transfer."""
    split = finding["evidence"].get("split")
    if finding["id"] != "exposed_communication" or not isinstance(split, dict):
        return False
    transfer, wait = (split.get(name, 0.0) for name in ("exposed_transfer_gpu_ms", "exposed_wait_gpu_ms"))
    return finding["points"] >= LINK_POINTS and transfer > 2 * wait


def is_clean(document: dict[str, Any]) -> bool:
    """Say whether no fault is named first."""
    if not document["findings"]:
        return True
    first = document["findings"][0]
    return first["id"] not in FAULT_IDS and not is_storm(first) and not is_slow_transfer(first)


def shown(document: dict[str, Any]) -> str:
    """Return the first finding in a few words."""
    if not document["findings"]:
        return "nothing"
    first = document["findings"][0]
    rank = first["evidence"].get("rank")
    of = " of gc" if is_storm(first) else " of transfer" if is_slow_transfer(first) else ""
    return first["id"] + (f" (rank {rank})" if rank is not None else "") + of


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}, none (default: all)")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="keep the runs here")
    parser.add_argument("--alone", action="store_true", help="keep everything else off the cores of a job (root)")
    args = parser.parse_args(argv)
    wanted = args.cases or ["none", *CASES]
    if unknown := set(wanted) - {*CASES, "none"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    root = args.keep or Path(tempfile.mkdtemp(prefix="perfkit-matrix-"))
    failed, healthy_s = 0, None
    print(f"{'fault':<16} {'named':>7} {'step':>8} {'effect':>7}  first finding of each run")
    for name in sorted(wanted, key=lambda name: name != "none"):  # the others are measured against it
        case = CASES.get(name)
        right, seen, times = 0, [], []
        for number in range(args.runs):
            folder = root / f"{name}-{number}"
            document = run_case(folder, case, alone=args.alone)
            right += names(case, document) if case else is_clean(document)
            seen.append(shown(document))
            times.append(step_s(folder))
            if not args.keep:
                shutil.rmtree(folder)
        mean_s = statistics.mean(times)
        healthy_s = mean_s if case is None else healthy_s
        failed += right < 0.9 * args.runs
        print(f"{name:<16} {right:>3}/{args.runs:<3} {1e3 * mean_s:>5.0f} ms {effect(mean_s, healthy_s):>7}  ", end="")
        print(" | ".join(f"{count} × {text}" for text, count in Counter(seen).most_common()), flush=True)
    if not args.keep:
        shutil.rmtree(root, ignore_errors=True)
    return 1 if failed else 0


def effect(mean_s: float, healthy_s: float | None) -> str:
    """Return how much longer a step takes than without a fault, marked if that is not enough."""
    if healthy_s is None or mean_s == healthy_s:
        return ""
    share = mean_s / healthy_s - 1
    return f"{share:+.0%}" + (" (small)" if share < MIN_EFFECT else "")


if __name__ == "__main__":
    sys.exit(main())
