"""Write labelled synthetic traces, or the history of a fleet, with the true answer beside them.

`simulate fleet` writes a store: clusters, nodes, runs, failures, roll-ups, and truth.json in it.

example: perfkit simulate fleet --clusters 3 --days 365 --runs 2000 --seed 1 -o fleet/

`simulate trace` writes one Kineto trace per rank, `truth.json` (exact partition, idle causes, waits, bubble, MFU,
clocks, culprits) and `truth_collectives.parquet` (wait and transfer of every collective on every rank).

example: perfkit simulate trace --ranks 8 --parallel dp=4,tp=2 --fault slow-rank:5:1.3x --seed 11 -o traces/

Faults are KIND[:TARGET][:AMOUNT][@FIRST[-LAST]]:
  slow-rank:5:1.3x      throttle:5:1.3x       slow-host:0:2x        slow-link:3:4x
  data-stall:3:80ms     late-rank:2:5ms       allocator-churn:1:2ms stream-stall:0:60us
  sync-point:all        lost-launches:1       recompute             small-bucket:16x
  hot-expert:2:1.5x
`@1-2` limits a fault to the second and third step; a target may be `all`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    kinds = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    trace = kinds.add_parser(
        "trace",
        help="a trace per rank of a training job",
        description="Write a trace per rank of a simulated training job, and the true answer.",
        epilog=(__doc__ or "").partition("\n")[2].strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace.add_argument("--ranks", type=int, default=8, help="ranks of the job (default 8)")
    trace.add_argument("--hardware", default="h100", help="h100, a100, or a name of the registry (default h100)")
    trace.add_argument("--parallel", default="", help="for example dp=4,tp=2; degrees dp, fsdp, tp, pp, ep, vpp")
    trace.add_argument("--steps", type=int, default=4, help="profiled steps (default 4)")
    trace.add_argument("--fault", action="append", default=[], help="what is wrong with the job; may be repeated")
    trace.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (default 0)")
    trace.add_argument("--layers", type=int, default=4, help="layers of the model (default 4)")
    trace.add_argument("--hidden", type=int, default=2048, help="width of the model (default 2048)")
    trace.add_argument("--seq-len", type=int, default=2048, help="tokens per sequence (default 2048)")
    trace.add_argument("--micro-batches", type=int, help="micro-batches per step (default 1, or 2 per pipeline stage)")
    trace.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints (default: none)")
    trace.add_argument("-o", "--output", type=Path, required=True, help="folder to write to; must be empty or absent")
    fleet = kinds.add_parser(
        "fleet",
        help="a store with the history of a fleet",
        description="Write a store with the history of a simulated fleet, and the truth beside it.",
        epilog="example: perfkit simulate fleet --clusters 3 --days 365 --runs 2000 --seed 1 -o fleet/",
    )
    fleet.add_argument("--clusters", type=int, default=3, help="clusters (default 3)")
    fleet.add_argument("--days", type=int, default=365, help="length of the history (default 365)")
    fleet.add_argument("--runs", type=int, default=2000, help="runs submitted (default 2000)")
    fleet.add_argument("--ranks", type=int, default=4096, help="ranks of the largest run (default 4096)")
    fleet.add_argument("--seed", type=int, default=0, help="the same seed gives the same rows (default 0)")
    fleet.add_argument("-o", "--output", type=Path, required=True, help="folder of the store; must be empty or absent")


def run(args: argparse.Namespace) -> int:
    """Simulate, write, and say what was written."""
    return _run_fleet(args) if args.what == "fleet" else _run_trace(args)


def _run_fleet(args: argparse.Namespace) -> int:
    from perfkit.simulate.fleet import Fleet, FleetOptions, write_fleet

    def progress(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{what:<40}", end="", file=sys.stderr)

    names = ("clusters", "days", "runs", "ranks", "seed")
    written = write_fleet(Fleet(FleetOptions(**{n: getattr(args, n) for n in names})), args.output, progress)
    progress("")
    rows = ", ".join(f"{name} {count:,}" for name, count in sorted(written.items()))
    print(f"wrote a synthetic store to {args.output} and the truth to {args.output}/truth.json; rows: {rows}")
    return 0


def _run_trace(args: argparse.Namespace) -> int:
    from perfkit.errors import UsageError
    from perfkit.simulate import Job, Mesh, parse_fault, resolve_hardware, simulate, write_traces

    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        raise UsageError(f"{args.output} is not an empty folder", next_step="name another with -o, or empty it")
    mesh = Mesh.parse(args.parallel, args.ranks)
    job = Job(
        mesh=mesh,
        hardware=resolve_hardware(args.hardware),
        steps=args.steps,
        seed=args.seed,
        faults=tuple(parse_fault(text) for text in args.fault),
        layers=args.layers,
        hidden=args.hidden,
        ffn=4 * args.hidden,
        seq_len=args.seq_len,
        micro_batches=args.micro_batches or (2 * mesh.pp if mesh.pp > 1 else 1),
        checkpoint_every=args.checkpoint_every,
    )
    show = sys.stderr.isatty()

    def progress(rank: int) -> None:
        if show:
            print(f"\rrank {rank + 1} of {mesh.world_size}", end="", file=sys.stderr)

    paths = write_traces(simulate(job), args.output, progress)
    if show:
        print(file=sys.stderr)
    print(f"wrote {len(paths)} synthetic traces and truth.json to {args.output}")
    return 0
