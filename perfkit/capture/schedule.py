"""When perfkit runs torch.profiler, on which ranks, and how much it may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSchedule:
    """Windows of `active` steps, every `every` steps, after one warm-up step."""

    every: int = 500
    """Steps from one window to the next; 0: only the first one."""
    active: int = 3
    """Steps that are recorded in a window."""
    warmup: int = 1
    """Steps before them under a profiler that discards; the first events of a trace are unreliable."""
    first: int = 10
    """First recorded step, counted from the start of this process: compilation and caches come before."""
    ranks: str = "0"
    """`0,8,16`, `all`, or `per-host` for local rank 0 of every host."""
    max_bytes: int = 2 << 30
    """Raw trace bytes of one rank and attempt; when they are used up, there are no more windows."""
    max_seconds: float = 120.0
    """Longest window; it is ended at the next step boundary after this."""
    min_free_bytes: int = 2 << 30
    """No window starts while the spool's disk has less space than this."""
    record_shapes: bool = True
    """Shapes of op inputs: without them there are no op FLOPs and no roofline."""
    with_stack: bool = False
    """Python stacks: file:line for culprits, at several times the cost."""
    profile_memory: bool = False
    """Allocator events."""

    def __post_init__(self) -> None:
        if self.active < 1 or self.every < 0 or self.warmup < 0 or self.first < 0:
            raise ValueError("active must be at least 1; every, warmup and first must not be negative")
        if self.every and self.every < self.active + self.warmup:
            raise ValueError(f"every={self.every} leaves no room for warmup={self.warmup} and active={self.active}")
        self.applies_to(0, 0)

    def applies_to(self, rank: int, local_rank: int) -> bool:
        """Whether a rank is recorded."""
        if self.ranks == "all":
            return True
        if self.ranks == "per-host":
            return local_rank == 0
        try:
            return rank in {int(one) for one in self.ranks.split(",") if one.strip()}
        except ValueError:
            raise ValueError(f"ranks={self.ranks!r} is neither `all`, `per-host` nor numbers such as 0,8,16") from None

    def starts_at(self, count: int) -> bool:
        """Whether a window (its warm-up) starts with the step that is the `count`-th of this process, from 0."""
        since = count - max(0, self.first - self.warmup)
        return since == 0 or (since > 0 and self.every > 0 and since % self.every == 0)
