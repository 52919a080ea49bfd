"""Run a training command unedited, with capture.

Steps, data wait, tokens, checkpoints and MFU of every rank go to the store; traces too, if --every or --trigger asks
for them. The command keeps its standard output, standard error and exit code: perfkit replaces itself with it. Tokens
come from what the model is given, model FLOPs from a counted step unless --model names one; both are labelled
`counted`.

examples:
  perfkit run -- python train.py
  perfkit run --store runs/ --run llama-8b --model llama3-8b --every 500 -- torchrun --nproc-per-node 8 train.py
  perfkit run --trigger -- torchrun --nproc-per-node 8 train.py       # a trace when steps become slower
  perfkit run --flops none -- accelerate launch train.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

from perfkit.errors import UsageError

TRIGGERS = 4
"""Traces an hour, unless --trigger says how many."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--run", help="name of the run (default: from the launcher)")
    parser.add_argument("--store", metavar="DIR", default="runs", help="where tables go (default: runs)")
    parser.add_argument("--cluster", help="name of the cluster")
    parser.add_argument("--model", help="preset for model FLOPs, in place of counting")
    parser.add_argument("--seq-len", type=int, help="sequence length (default: as seen)")
    parser.add_argument(
        "--flops", choices=("auto", "none"), default="auto", help="count the second step's FLOPs, or not"
    )
    parser.add_argument("--mesh", help="parallel degrees, such as dp=8,tp=4 (default: data parallel if so wrapped)")
    parser.add_argument("--hardware", help="device name for the peak (default: what torch reports)")
    parser.add_argument("--peak-flops", type=float, help="peak of one device in FLOP/s, in place of the registry")
    parser.add_argument("--dtype", help="number format of the matmuls (default: bf16)")
    parser.add_argument("--every", type=int, metavar="N", help="trace some steps every N steps")
    parser.add_argument("--active", type=int, default=3, help="steps of a trace (default: 3)")
    parser.add_argument("--ranks", default="0", help="ranks that are traced: 0,8, all, per-host (default: 0)")
    parser.add_argument(
        "--trigger", type=int, nargs="?", const=TRIGGERS, metavar="N",
        help=f"trace 2 steps of the slow rank and a peer when steps become 10 %% slower, N times an hour ({TRIGGERS})",
    )  # fmt: skip
    parser.add_argument("--log-every", type=int, default=0, metavar="N", help="print a line of metrics every N steps")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve Prometheus metrics")
    parser.add_argument("command_line", nargs=argparse.REMAINDER, metavar="-- CMD…", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Replace this process with the command."""
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    if not command:
        raise UsageError("no command to run", next_step="put it after `--`: perfkit run -- torchrun train.py")
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"{command[0]}: no such command", next_step="check the PATH or the virtual environment")
    os.execve(program, command, environment(args, os.environ))


def environment(args: argparse.Namespace, environ: Any) -> dict[str, str]:
    """Return the command's environment: perfkit's site folder first on the path, and the options."""
    site = Path(__file__).resolve().parents[1] / "capture" / "unedited" / "site"
    path = [str(site), *(entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry)]
    return {**environ, "PYTHONPATH": os.pathsep.join(path), "PERFKIT_RUN": json.dumps(options(args))}


def options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options as the hooks read them."""
    named = ("cluster", "model", "seq_len", "hardware", "peak_flops", "dtype", "metrics_port", "trigger")
    settings = {name: getattr(args, name) for name in named if getattr(args, name) is not None}
    settings |= {"store": str(Path(args.store).absolute()) if "://" not in args.store else args.store}
    settings["log_every"] = args.log_every
    if args.mesh:
        settings["mesh"] = _mesh(args.mesh)
    profile = {"every": args.every, "active": args.active, "ranks": args.ranks} if args.every is not None else None
    return {"run": args.run, "flops": args.flops, "settings": settings, "profile": profile}


def _mesh(text: str) -> dict[str, int]:
    try:
        return {name: int(size) for name, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise UsageError(f"--mesh {text!r}", next_step="write it like dp=8,tp=4") from None
