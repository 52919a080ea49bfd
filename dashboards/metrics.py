"""The definition of every number on the page: shown when a pointer or the keyboard rests on its name.

The words follow perfkit's definitions (docs/analyze.md, docs/goodput.md); ratios over runs or
days are ratios of sums.
"""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "mfu": "Model FLOPs utilisation of the steps: model FLOPs (no recompute) / (peak of the device × GPU-time inside "
    "steps). Ratio of sums over the runs whose device has a known peak.",
    "effective_mfu": "Model FLOPs of steps that were kept / (peak × all allocated GPU-time): MFU after restarts, "
    "stalls, start-up and lost work.",
    "tokens": "Tokens trained per second and GPU, over the GPU-time inside steps.",
    "goodput": "Productive / allocated GPU-time. Productive is the time of steps whose work was kept, at the run's "
    "normal pace.",
    "uptime": "GPU-time of nodes that could work / installed GPU-time of known state. Down, drained and unhealthy "
    "nodes count against it.",
    "delivered": "Uptime × goodput: the share of GPU-time that was neither down nor wasted. Clusters are sorted by "
    "it, worst first.",
    "active": "GPUs held by runs, averaged over the newest hour.",
    "idle": "GPUs that could work and that no run held, averaged over the newest hour.",
    "unhealthy": "GPUs of nodes that are down, drained or unhealthy at the end of the newest hour.",
    "mttf": "Mean time to failure: allocated wall time of runs / unplanned interruptions.",
    "mttr": "Mean time from an interruption to the first step after it.",
    "interruptions": "Times that work of a run ended before the run did, by cause.",
    "lemon": "A node that was slow, or blamed for an interruption, in more of its jobs than chance explains.",
    "ettr": "Effective training time ratio: productive / (end − eligible), queue included.",
    "step_time": "From step end to step end, so that waiting for data counts.",
    "own_work": "Device compute plus time the host was late: what the rank did itself, without waiting for others.",
    "exposed_comm": "Communication that no compute hides.",
    "data_wait": "Time the step waited for data.",
    "compute": "Time in which at least one compute kernel ran.",
    "waterfall": "Where 100 points of peak went. The losses and MFU add up to exactly 100.",
    "straggler": "Own work compared with ranks of the same role: score = Σ median of the peers / Σ own. Flagged "
    "below 0.90, if more than half of the steps are below 0.90 too.",
    "wait_caused": "GPU-time that other ranks waited for this one in collectives, no compute hiding it. While several "
    "are missing they share the charge, and who was late for having waited elsewhere passes it on.",
    "waited_for": "GPU-time that others waited in collectives which in the end waited for this rank. Each collective "
    "names one rank; the page Ranks shares the charge among all that were late.",
    "throttle": "Share of time lost to thermal and hardware slow-down, against the clock of the published peak: a "
    "fault. The power limit is counted apart.",
    "temperature": "Highest temperature of the GPU in the interval.",
    "health": "Worst state of the node in the interval.",
    "loss": "Training loss as the script logged it.",
    "group_role": "What the group is for: data (dp, fsdp), tensor (tp), pipeline (pp) or expert (ep) parallelism; its "
    "name where that cannot be told.",
    "busbw": "Bus bandwidth as nccl-tests defines it: bytes / time × what the operation sends per byte, from the last "
    "arrival to the last end, in GB/s (10⁹). In-switch reduction can exceed the wire.",
    "link_share": "Bus bandwidth / peak of the link that the group spans, a ratio of sums.",
    "wait": "Time in the collective until the last member arrived (its root, for a broadcast), on aligned clocks.",
    "transfer": "The rest of the collective: moving data.",
    "skew": "From the first to the last arrival of an instance. Below twice the clock error nobody can be blamed.",
    "waste": "Time beyond the roofline: time − max(FLOPs / peak, bytes / bandwidth). Unknown if shapes or peaks are.",
    "roofline": "FLOPs and bytes from the shapes of the op, against the peaks that the analysis used.",
    "bound": "Which of the two roofs is nearer: compute or memory.",
    "family": "Kind of kernel by its name and op. Waste is known where FLOPs, bytes and peaks are.",
    "rank_spread": "Summed time of the kernel on each rank. The same work should take the same time everywhere.",
    "health_events": "XIDs, ECC errors, throttling and link errors, as drivers, exporters and capture report them.",
    "slowdown": "Median over runs of the node's own work per step / that of the run's other nodes: 1 is normal.",
    "steps_slowed": "Steps above median + 3·1.4826·MAD on ranks of the node while the event lasted; the excess over "
    "the median, each step once.",
    "timeline": "Events of one step on the clock of the job: each rank's clock is moved by what synchronising "
    "collectives tell about it, and is right to the error beside its name.",
    "hfu": "Hardware FLOPs utilisation: what was executed, recompute included.",
}  # fmt: skip

BUCKETS: dict[str, str] = {
    "productive": "productive", "init": "start-up", "compile": "compile, first steps", "slow_step": "slow steps",
    "data_stall": "data stalls", "checkpoint": "checkpoints", "restore": "restore", "eval": "evaluation",
    "lost": "work run again", "recovery": "recovery", "hang": "hangs", "unknown": "unexplained",
}  # fmt: skip
"""Goodput buckets in words."""

QUANTITIES: dict[str, tuple[str, str]] = {
    "step_time": ("step time", "ms"), "data_wait": ("data wait", "ms"), "compute": ("compute", "ms"),
    "exposed_comm": ("exposed communication", "ms"), "idle": ("idle", "ms"), "own_work": ("own work", "ms"),
    "mfu": ("MFU", "%"), "throttle": ("thermal throttle", "%"), "temperature": ("temperature", "°C"),
    "health": ("health", ""),
}  # fmt: skip
"""What heat maps show: label and unit."""
