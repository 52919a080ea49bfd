"""Explain a hang: which ranks everybody waits for, from Flight Recorder dumps.

Point it at the folder of dumps (one per rank; pickle or JSON, the rank in the file name). PyTorch writes them when
TORCH_FR_BUFFER_SIZE (once TORCH_NCCL_TRACE_BUFFER_SIZE) is set and a collective times out;
TORCH_NCCL_DEBUG_INFO_TEMP_FILE says where. Pickles are read without trusting them.

examples:
  perfkit hang /tmp/nccl_trace/
  perfkit hang dumps/ --format json | jq .suspect_ranks
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.report.format import plural

if TYPE_CHECKING:
    from perfkit.analysis.hang import Divergence, Hang, Suspect
    from perfkit.errors import InputError
    from perfkit.sources.flight_recorder import Recording

REASONS = {
    "absent": "never reached {op} #{seq} in group {group}, for which others wait:"
    " look at its host (Python stack, GIL, data, I/O)",
    "stuck": "enqueued {op} #{seq} in group {group} and did not complete it, while others did:"
    " look at its GPU (XID, dmesg, a kernel that spins)",
    "no dump": "left no dump that can be read, and others wait for it in group {group}:"
    " look whether the process or node still lives",
    "unanswered": "has not posted the other end of a {op} in group {group}: look at its host",
    "mismatch": "called something else than the rest of group {group}: look for a branch that only some ranks take",
    "undecided": "is a member of group {group}, whose {op} #{seq} all ranks entered and none left:"
    " look at the links and GPUs of the group",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("dumps", metavar="DIR", type=Path, help="folder of Flight Recorder dumps")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Read the dumps and say who is to blame."""
    from perfkit.analysis.hang import explain_hang
    from perfkit.sources.flight_recorder import read_dumps

    recording = read_dumps(args.dumps)
    if not recording.dumps:
        raise _no_dump(args.dumps, recording.rejected)
    hang = explain_hang(recording.dumps)
    if args.format == "json":
        print(json.dumps(as_json(hang, recording)))
    else:
        _print_text(hang, recording)
    return 0


def _no_dump(place: Path, rejected: Sequence[InputError]) -> InputError:
    from perfkit.errors import UnsupportedInput
    from perfkit.sources.flight_recorder import TraceInstead, folders_with_dumps

    first, below = rejected[0], folders_with_dumps(place)
    is_trace = isinstance(first, TraceInstead)
    if first.path == str(place) and is_trace:
        return first
    if below:
        next_step = f"there are dumps in {', '.join(map(str, below))}: `perfkit hang {below[0]}`"
    elif is_trace:
        next_step = f"`perfkit analyze {place}` reads traces"
    else:
        next_step = "set TORCH_FR_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT=1 before the next run"
    shown = f"{Path(first.path).name}: {first.message}" if is_trace else first
    return UnsupportedInput(
        f"no Flight Recorder dump among {plural(len(rejected), 'file')}; {shown}",
        path=str(place),
        next_step=next_step,
    )


def as_json(hang: Hang, recording: Recording) -> dict[str, Any]:
    """Return the answer as one JSON document."""
    return {
        "schema_version": 1,
        "suspect_ranks": hang.suspect_ranks,
        "decided": hang.decided,
        "ranks_present": list(hang.ranks_present),
        "ranks_missing": list(hang.ranks_missing),
        "suspects": [
            {
                "rank": s.rank,
                "why": s.why,
                "group": s.group,
                "group_desc": s.desc,
                "seq": s.seq,
                "op": s.op,
                "waiting_ranks": s.waiting_ranks,
                "stack": list(s.stack),
            }
            for s in hang.suspects
        ],
        "groups": [
            {
                "group": d.group,
                "group_desc": d.desc,
                "ranks": list(d.ranks),
                "first_divergence": {"seq": d.seq, "op": d.op},
                "absent_ranks": list(d.absent),
                "stuck_ranks": list(d.stuck),
                "mismatch": [{"call": what, "ranks": list(ranks)} for what, ranks in d.variants],
            }
            for d in hang.divergences
        ],
        "rejected": [{"path": error.path, "reason": error.message} for error in recording.rejected],
    }


def _print_text(hang: Hang, recording: Recording) -> None:
    missing = f", {len(hang.ranks_missing)} did not: {_ranks(hang.ranks_missing)}" if hang.ranks_missing else ""
    print(f"{plural(len(hang.ranks_present), 'rank')} left a dump that can be read{missing}")
    for error in recording.rejected:
        print(f"not used: {error}", file=sys.stderr)
    if not hang.suspects:
        print("nothing is pending: these dumps show no hang")
        return
    if hang.decided:
        print(f"suspects: rank {_ranks(tuple(hang.suspect_ranks))}")
    else:
        print(
            "undecided: no rank lags behind the others; the oldest open call is of ranks "
            f"{_ranks(tuple(hang.suspect_ranks))}"
        )
    for suspect in hang.suspects if hang.decided else hang.suspects[:1]:
        print(f"  rank {suspect.rank}  {_reason(suspect)} ({_who_waits(suspect.waiting_ranks)} for it)")
        for frame in suspect.stack:
            print(f"      {frame}")
    lagging = [d for d in hang.divergences if d.absent or d.stuck or d.variants]
    if lagging:
        print("groups in which members differ:")
    for divergence in lagging:
        print(f"  {_group(divergence)}")


def _reason(suspect: Suspect) -> str:
    group = f"{suspect.group} ({suspect.desc})" if suspect.desc else suspect.group
    return REASONS[suspect.why].format(op=suspect.op or "the collective", seq=suspect.seq, group=group)


def _who_waits(ranks: int) -> str:
    return f"{plural(ranks, 'rank')} {'waits' if ranks == 1 else 'wait'}"


def _group(divergence: Divergence) -> str:
    parts = [f"{divergence.group} {divergence.desc}".strip(), f"of {_ranks(divergence.ranks)}:"]
    parts.append(f"{divergence.op or 'collective'} #{divergence.seq}")
    if divergence.absent:
        parts.append(f"never reached by {_ranks(divergence.absent)}")
    if divergence.stuck:
        parts.append(f"stuck on {_ranks(divergence.stuck)}")
    if divergence.variants:
        parts.append("calls differ: " + "; ".join(f"{what} on {_ranks(ranks)}" for what, ranks in divergence.variants))
    return " ".join(parts)


def _ranks(ranks: tuple[int, ...], limit: int = 16) -> str:
    """Return `0-3, 7` for ranks, cut after some pieces."""
    pieces: list[list[int]] = []
    for rank in sorted(ranks):
        if pieces and rank == pieces[-1][-1] + 1:
            pieces[-1].append(rank)
        else:
            pieces.append([rank])
    shown = [f"{piece[0]}-{piece[-1]}" if len(piece) > 1 else str(piece[0]) for piece in pieces]
    return ", ".join(shown[:limit]) + (", …" if len(shown) > limit else "")
