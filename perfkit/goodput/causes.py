"""Why runs stop: one vocabulary for capture, schedulers and the simulator.

    cause_of_state(state)    -> a name of CAUSES, or null while it runs
    is_planned(cause)        -> whether it is no failure at all; null if unknown

Schedulers say how a job ended, seldom why: NODE_FAIL is `node`, a non-zero exit is `application` and nothing finer.
Capture and health checks know more (an XID, a lost link) and use the finer names.
"""

from __future__ import annotations

CAUSES: dict[str, tuple[str, bool | None]] = {
    "completed": ("ended as planned", True),
    "gpu": ("GPU fault: XID, ECC, fallen off the bus", False),
    "gpu_memory": ("HBM: uncorrectable ECC, failed row remap", False),
    "network": ("link, switch, NIC or collective time-out", False),
    "node": ("host died or was taken away as broken", False),
    "storage": ("file system or disk", False),
    "software": ("framework, driver or library", False),
    "application": ("the training program failed", False),
    "out_of_memory": ("killed for memory", False),
    "hang": ("stopped making progress", False),
    "deadline": ("killed at its time limit", False),
    "silent_data_corruption": ("wrong results", False),
    "launch": ("never started", False),
    "no_heartbeat": ("went silent without a word", False),
    "user": ("cancelled by a person", True),
    "preemption": ("gave way to another job", True),
    "maintenance": ("planned work on the cluster", True),
    "requeue": ("put back in the queue by a person or a policy", None),
    "unknown": ("nothing says", None),
}
"""Name -> (what it means, planned)."""

_STATES = {
    "COMPLETED": "completed", "CD": "completed", "FAILED": "application", "F": "application", "CANCELLED": "user",
    "CA": "user", "TIMEOUT": "deadline", "TO": "deadline", "DEADLINE": "deadline", "DL": "deadline",
    "NODE_FAIL": "node", "NF": "node", "BOOT_FAIL": "launch", "BF": "launch", "LAUNCH_FAILED": "launch",
    "OUT_OF_MEMORY": "out_of_memory", "OOM": "out_of_memory", "PREEMPTED": "preemption", "PR": "preemption",
    "REVOKED": "preemption", "REQUEUED": "requeue", "RQ": "requeue", "SUCCEEDED": "completed", "PASS": "completed",
    "KILLED": "user", "EVICTED": "preemption", "DEADLINEEXCEEDED": "deadline", "OOMKILLED": "out_of_memory",
}  # fmt: skip
_RUNNING = {
    "RUNNING", "R", "PENDING", "PD", "SUSPENDED", "S", "COMPLETING", "CG", "CONFIGURING", "CF", "RESIZING", "STAGE_OUT",
    "SIGNALING", "STOPPED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "ACTIVE",
}  # fmt: skip


_EXCEPTIONS = {
    "OutOfMemoryError": "out_of_memory",
    "MemoryError": "out_of_memory",
    "KeyboardInterrupt": "user",
    "SystemExit": "user",
    "DistBackendError": "network",
    "DistNetworkError": "network",
    "DistStoreError": "network",
    "OSError": "storage",
}


def cause_of_state(state: str | None) -> str | None:
    """Translate a scheduler's state; `CANCELLED by 1234` counts as CANCELLED. Null while the job is alive."""
    words = (state or "").upper().split()
    word = words[0].rstrip("+") if words else ""
    if word in _RUNNING:
        return None
    return _STATES.get(word, "unknown")


def normalise_cause(text: str | None, *, missing: str = "unknown") -> str:
    """Return the cause that a record's text stands for: a name of CAUSES, the class of an exception, or nothing."""
    if not text:
        return missing
    if text in CAUSES:
        return text
    if text in _EXCEPTIONS:
        return _EXCEPTIONS[text]
    return "application" if text.endswith(("Error", "Exception")) else "unknown"


def is_planned(cause: str | None) -> bool | None:
    """Whether an end is no failure: null if the cause does not tell."""
    return CAUSES.get(cause or "unknown", CAUSES["unknown"])[1]
