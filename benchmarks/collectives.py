"""Match, align, split and blame the collectives of large jobs; CPU time on one core.

    python benchmarks/collectives.py [--ranks 16 32 64 128] [--calls 5000] [--no-numbers]

Calls are made directly as tables: a mesh of tp=8 × dp, with tensor-parallel and data-parallel all-reduces and one
all-reduce of all ranks per step, clocks of 8 ranks per host that are off by up to 2 ms and drift by up to 20 ppm.
`--no-numbers` leaves out sequence numbers, so that calls are matched by their order.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyarrow as pa

from perfkit.analysis.blame import assign_blame
from perfkit.analysis.calls import CALLS, EXPOSED
from perfkit.analysis.clocks import align_clocks
from perfkit.analysis.collectives import label_exposed, label_holds, split_calls
from perfkit.analysis.matching import match_calls

TP, STEPS, TRANSFER_NS = 8, 20, 60_000


def make_calls(ranks: int, calls: int, *, numbers: bool) -> pa.Table:
    """Return `calls` calls on each of `ranks` ranks; rank 5 is late."""
    random = np.random.default_rng(7)
    per_step = calls // STEPS
    kind = np.tile(np.where(np.arange(per_step) % 4 == 3, 1, 0), STEPS)
    kind[per_step - 1 :: per_step] = 2
    number = len(kind)
    ready = np.cumsum(random.integers(80_000, 120_000, (number, ranks)), axis=0)
    ready[:, 5 % ranks] += 30_000
    start, end = np.empty_like(ready), np.empty_like(ready)
    free = np.zeros(ranks, np.int64)
    for i in range(number):
        begin = np.maximum(ready[i], free)
        cube = begin.reshape(-1, TP)
        last = cube.max(axis=1, keepdims=True) if kind[i] == 0 else cube.max(axis=0, keepdims=True)
        last = np.full_like(cube, cube.max()) if kind[i] == 2 else np.broadcast_to(last, cube.shape)
        free = last.reshape(-1) + TRANSFER_NS + random.integers(0, 1_500, ranks)
        start[i], end[i] = begin, free
    host = np.arange(ranks) // 8
    offset, drift = random.integers(-2_000_000, 2_000_000, ranks)[host], random.uniform(-2e-5, 2e-5, ranks)[host]
    start, end = ((t + offset + t * drift).astype(np.int64) + 10**18 for t in (start, end))
    everyone = np.arange(ranks)
    names = [[f"tp{r // TP}", f"dp{r % TP}", "world"] for r in everyone]
    members = [
        [list(range(r - r % TP, r - r % TP + TP)), list(range(r % TP, ranks, TP)), everyone.tolist()] for r in everyone
    ]
    tables = [
        pa.table(
            {
                "rank": np.full(number, r), "device": np.full(number, r % 8), "segment": np.zeros(number, np.int64),
                "call": np.arange(number), "event_id": np.arange(number),
                "step": np.repeat(np.arange(STEPS), per_step), "group": pa.array(names[r]).take(kind),
                "group_desc": pa.nulls(number, pa.utf8()),
                "group_ranks": pa.array([str(m).replace(" ", "") for m in members[r]]).take(kind),
                "group_size": np.array([len(m) for m in members[r]])[kind], "op": ["all_reduce"] * number,
                "seq": pa.array(np.arange(number)) if numbers else pa.nulls(number, pa.int64()),
                "dtype": ["bfloat16"] * number, "in_bytes": np.full(number, 2**23), "out_bytes": np.full(number, 2**23),
                "peer": pa.nulls(number, pa.int64()), "root": pa.nulls(number, pa.int64()), "start_ns": start[:, r],
                "end_ns": end[:, r], "host_start_ns": start[:, r], "source": ["kernel_args"] * number,
                "in_split": pa.nulls(number, pa.utf8()), "out_split": pa.nulls(number, pa.utf8()),
            }
        ).cast(CALLS)
        for r in everyone
    ]  # fmt: skip
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def measure(ranks: int, calls: pa.Table) -> dict[str, float]:
    """Return CPU seconds of each part."""
    hosts = {rank: f"host{rank // 8}" for rank in range(ranks)}
    exposed = pa.table(
        {
            **{name: calls[name] for name in ("rank", "device", "segment", "step", "start_ns", "end_ns")},
            "window_start_ns": pa.nulls(len(calls), pa.int64()).fill_null(0),
        }
    ).select(EXPOSED.names).cast(EXPOSED)  # fmt: skip
    times: dict[str, float] = {}

    def timed(name: str, since: float) -> float:
        now = time.process_time()
        times[name] = now - since
        return now

    now = time.process_time()
    matched = match_calls(calls, list(range(ranks)), ranks)
    now = timed("match", now)
    clocks = align_clocks(calls, matched.instance, hosts)
    now = timed("align", now)
    split = split_calls(calls, matched, clocks, np.zeros(len(calls), bool))
    now = timed("split", now)
    pieces = label_exposed(calls, split, exposed)
    now = timed("label", now)
    step = calls["step"].to_numpy()
    holds = label_holds(calls, split, exposed)
    blame = assign_blame(split, pieces, holds, exposed, call_step=step, ranks=list(range(ranks)))
    timed("blame", now)
    assert matched.unmatched == 0
    assert blame.exposed_wait_ns == blame.caused_ns + blame.unattributed_ns
    return times


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--no-numbers", action="store_true")
    args = parser.parse_args()
    print("ranks  calls/rank   match  align  split  label  blame   match+align  µs per call")
    for ranks in args.ranks:
        calls = make_calls(ranks, args.calls, numbers=not args.no_numbers)
        best = min((measure(ranks, calls) for _ in range(3)), key=lambda t: sum(t.values()))
        both = best["match"] + best["align"]
        parts = "  ".join(f"{best[name]:5.2f}" for name in ("match", "align", "split", "label", "blame"))
        print(f"{ranks:5}  {args.calls:10}   {parts}   {both:9.2f} s  {both / len(calls) * 1e6:10.2f}")


if __name__ == "__main__":
    main()
