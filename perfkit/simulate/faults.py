"""What can be wrong with a simulated job, and how it is written on the command line.

    parse_fault("slow-rank:5:1.3x") -> Fault(kind="slow-rank", target=5, permille=1300)
    parse_fault("data-stall:3:80ms@1-2")        only in the second and third step
    parse_fault("sync-point:all") · parse_fault("recompute") · parse_fault("small-bucket:16x")

A fault changes what it names and nothing else: all other random draws stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfkit.errors import UsageError
from perfkit.simulate.noise import Ints

KINDS: dict[str, tuple[str, str, str]] = {
    "slow-rank": ("rank", "factor", "every compute kernel of a rank takes longer"),
    "throttle": ("rank", "factor", "a lower clock: matrix and attention kernels of a rank take longer"),
    "slow-host": ("host", "factor", "everything that a host's CPUs do takes longer"),
    "data-stall": ("rank", "time", "the data loader of a rank answers late"),
    "slow-link": ("rank", "factor", "transfers of every group that has the rank as a member take longer"),
    "late-rank": ("rank", "time", "Python code of a rank runs before its step"),
    "sync-point": ("rank", "", "`.item()` after every layer of the forward pass"),
    "hot-expert": ("rank", "factor", "the experts of a rank receive so many times their share of the tokens"),
    "recompute": ("", "", "the forward pass of each layer is run again in the backward pass"),
    "small-bucket": ("", "factor", "gradient buckets are so many times smaller"),
    "allocator-churn": ("rank", "time", "cudaFree and cudaMalloc after every layer of the forward pass"),
    "stream-stall": ("rank", "time", "attention kernels start late although launched and not waited for"),
    "lost-launches": ("rank", "", "the profiler lost the launch calls of some kernels"),
}
"""Kind -> (what the target is, what the amount is, what it does)."""
ALL = -1
"""Target `all`."""

_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_EXAMPLE = "write KIND[:TARGET][:AMOUNT][@FIRST[-LAST]], for example slow-rank:5:1.3x or data-stall:3:80ms@1-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `permille` is a factor of 1000 = unchanged; steps count from 0 in the trace."""

    kind: str
    target: int | None = None
    permille: int | None = None
    time_ns: int | None = None
    steps: tuple[int, int] | None = None
    """First and last step; None is all of them."""

    def active(self, step: int) -> bool:
        """Say whether the fault acts in a step."""
        return self.steps is None or self.steps[0] <= step <= self.steps[1]

    def __str__(self) -> str:
        text = self.kind
        if self.target is not None:
            text += ":all" if self.target == ALL else f":{self.target}"
        if self.permille is not None:
            text += f":{self.permille / 1000:g}x"
        if self.time_ns is not None:
            text += f":{self.time_ns}ns"
        return text if self.steps is None else f"{text}@{self.steps[0]}-{self.steps[1]}"


def parse_fault(text: str) -> Fault:
    """Read a fault, or say what is wrong with it."""
    body, _, steps = text.partition("@")
    kind, *parts = body.split(":")
    if kind not in KINDS:
        raise UsageError(f"unknown fault {kind!r}", next_step=f"use one of: {', '.join(KINDS)}")
    target_of, amount_of, _ = KINDS[kind]
    wanted = [what for what in (target_of, amount_of) if what]
    if len(parts) != len(wanted):
        raise UsageError(f"fault {text!r}: {kind} wants {' and '.join(wanted) or 'nothing'}", next_step=_EXAMPLE)
    values: dict[str, int] = {}
    for what, part in zip(wanted, parts, strict=True):
        name, value = _parse_part(what, part, text)
        values[name] = value
    return Fault(
        kind=kind,
        target=values.get("target"),
        permille=values.get("permille"),
        time_ns=values.get("time_ns"),
        steps=_parse_steps(steps, text) if steps else None,
    )


def _parse_part(what: str, part: str, text: str) -> tuple[str, int]:
    if what in ("rank", "host"):
        if part == "all":
            return "target", ALL
        if part.isdigit():
            return "target", int(part)
    elif what == "factor":
        match = re.fullmatch(r"(\d+(?:\.\d{1,3})?)x", part)
        if match:
            return "permille", round(float(match[1]) * 1000)
    else:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s)", part)
        if match:
            return "time_ns", round(float(match[1]) * _UNITS[match[2]])
    raise UsageError(f"fault {text!r}: {part!r} is not a {what}", next_step=_EXAMPLE)


def _parse_steps(steps: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", steps)
    if not match:
        raise UsageError(f"fault {text!r}: {steps!r} is not a range of steps", next_step=_EXAMPLE)
    return int(match[1]), int(match[2] or match[1])


def amounts(faults: Iterable[Fault], kind: str, step: int, units: Ints) -> Ints:
    """Return the nanoseconds (or 1 where the kind has no time) that a fault adds, per rank; 0 where it does not act.

    `units` holds what the fault's target names for each rank: the rank itself, or its host.
    """
    total = np.zeros(len(units), np.int64)
    for fault in faults:
        if fault.kind == kind and fault.active(step):
            hit = np.ones(len(units), bool) if fault.target == ALL else units == fault.target
            total += hit * (1 if fault.time_ns is None else fault.time_ns)
    return total


def factors(faults: Iterable[Fault], kind: str, step: int, units: Ints) -> Ints:
    """Return the factor of a kind per rank in thousandths; factors of several faults multiply."""
    total = np.full(len(units), 1000, np.int64)
    for fault in faults:
        if fault.kind == kind and fault.active(step) and fault.permille is not None:
            hit = np.ones(len(units), bool) if fault.target in (ALL, None) else units == fault.target
            total = np.where(hit, total * fault.permille // 1000, total)
    return total
