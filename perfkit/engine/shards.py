"""One share of the work for each of many independent processes: `--shard i/n`, or what a scheduler says.

    parse_shard("3/16")             -> Shard(3, 16)         counted from 0
    parse_shard("auto", os.environ) -> from Slurm, a Kubernetes Indexed Job, or MPI
    shard.take(items, cost)         -> its own items

Nobody talks to anybody: every process computes the same division from the same list. The largest items are dealt
out first, each to the shard with the least so far, so that the shards end at about the same time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfkit.errors import UsageError

T = TypeVar("T")

COUNT_VARIABLE = "PERFKIT_SHARD_COUNT"
"""How many there are, where the scheduler does not say: Kubernetes tells a pod its index and no more."""
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
)


@dataclass(frozen=True, slots=True)
class Shard:
    """One share of `count`, counted from 0."""

    index: int
    count: int

    def take(self, items: Sequence[T], cost: Callable[[T], float]) -> list[T]:
        """Return the items of this shard, in the order given; all shards together have each item once."""
        order = sorted(range(len(items)), key=lambda i: (-cost(items[i]), i))
        loads = [(0.0, shard) for shard in range(self.count)]
        own = set()
        for i in order:
            load, shard = heapq.heappop(loads)
            heapq.heappush(loads, (load + cost(items[i]), shard))
            if shard == self.index:
                own.add(i)
        return [item for i, item in enumerate(items) if i in own]

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """Read `i/n`, or find out what this process is in a job."""
    if text == "auto":
        return _from_environment(environment)
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise UsageError(f"--shard {text!r} is no share", next_step="write it like 0/8 … 7/8, or auto in a job")
    return _checked(int(index), int(count), f"--shard {text}")


def _checked(index: int, count: int, where: str) -> Shard:
    if not 0 <= index < count:
        raise UsageError(
            f"{where}: there is no share {index} of {count}",
            next_step=f"they are counted from 0 to {max(count - 1, 0)}",
        )
    return Shard(index, count)


def _from_environment(environment: Mapping[str, str]) -> Shard:
    array, step = _slurm_array(environment), _pair(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    if array or step:
        outer, inner = array or Shard(0, 1), step or Shard(0, 1)
        return Shard(outer.index * inner.count + inner.index, outer.count * inner.count)
    if "JOB_COMPLETION_INDEX" in environment:
        if COUNT_VARIABLE not in environment:
            raise UsageError(
                f"--shard auto: JOB_COMPLETION_INDEX is set and {COUNT_VARIABLE} is not",
                next_step="set it to the `completions` of the Job, in the pod's env",
            )
        pair = _pair(environment, "JOB_COMPLETION_INDEX", COUNT_VARIABLE)
        assert pair is not None
        return pair
    for names in _MPI:
        if found := _pair(environment, *names):
            return found
    raise UsageError(
        "--shard auto: this is no Slurm array or step, no Kubernetes Indexed Job and no MPI process",
        next_step="write --shard i/n",
    )


def _slurm_array(environment: Mapping[str, str]) -> Shard | None:
    if "SLURM_ARRAY_TASK_ID" not in environment:
        return None
    id, first, last, count = (
        _number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "MIN", "MAX", "COUNT")
    )
    step = _number(environment, "SLURM_ARRAY_TASK_STEP", default=1) or 1
    if (last - first) // step + 1 != count or (id - first) % step:
        raise UsageError(
            f"--shard auto: the array has {count} tasks between {first} and {last}, with gaps",
            next_step="use an array without gaps, such as --array=0-15, and submit the missing ones again as i/n",
        )
    return _checked((id - first) // step, count, "SLURM_ARRAY_TASK_ID")


def _pair(environment: Mapping[str, str], index: str, count: str) -> Shard | None:
    if index not in environment or count not in environment:
        return None
    return _checked(_number(environment, index), _number(environment, count), index)


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if text.strip().isdecimal():
        return int(text)
    if default is not None and not text:
        return default
    raise UsageError(f"--shard auto: {name} is {text!r}, which is no number", next_step="write --shard i/n")
