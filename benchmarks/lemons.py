"""How well lemons are found: recall and false alarms on simulated fleets, whose slow and flaky nodes are known.

    python benchmarks/lemons.py [--seeds 50] [--days 365] [--runs 1000] [--ranks 1024]

Every seed is a fleet of two clusters. Recall: slow and flaky nodes that are named, of all of them, also those that
hardly any run has touched. False alarms: healthy nodes that are named, of all healthy nodes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfkit.goodput.lemons import find_lemons
from perfkit.simulate.fleet import Fleet, FleetOptions


def score(options: FleetOptions) -> tuple[int, int, int, int, float]:
    """Return (found, lemons, false alarms, healthy nodes, CPU seconds of the search)."""
    fleet = Fleet(options)
    truth = {
        (cluster.name, cluster.node_name(node))
        for cluster in fleet.world.clusters
        for node in {*cluster.slow, *cluster.flaky}
    }
    nodes = sum(cluster.nodes for cluster in fleet.world.clusters)
    table = fleet.job_nodes
    began = time.process_time()
    lemons = find_lemons(table)
    spent = time.process_time() - began
    named = set(zip(lemons["cluster"].to_pylist(), lemons["node"].to_pylist(), strict=True))
    return len(named & truth), len(truth), len(named - truth), nodes - len(truth), spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=1024)
    args = parser.parse_args()
    totals = [0, 0, 0, 0]
    seconds = 0.0
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        options = FleetOptions(clusters=2, days=args.days, runs=args.runs, ranks=args.ranks, seed=seed)
        *counts, spent = score(options)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        seconds += spent
        print(
            f"seed {seed}: {counts[0]} of {counts[1]} lemons, {counts[2]} false of {counts[3]} healthy nodes",
            flush=True,
        )
    found, lemons, wrong, healthy = totals
    print(
        f"recall {found / lemons:.1%} ({found} of {lemons}), false alarms {wrong / healthy:.2%} ({wrong} of {healthy})"
    )
    print(f"CPU {seconds / args.seeds:.2f} s a fleet")


if __name__ == "__main__":
    main()
