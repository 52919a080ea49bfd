"""Write the answer of `perfkit whatif` for a terminal.

to_text(WhatIf) -> str
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.analysis.replay.critical import by_kind, by_rank
from perfkit.report.format import clean, duration, percent, plural

if TYPE_CHECKING:
    from perfkit.analysis.whatif import WhatIf

SHOWN_KINDS = 8
SHOWN_RANKS = 5


def to_text(found: WhatIf) -> str:
    """Return the table, the critical path, and the limits."""
    lines = [*_head(found), *_straggling(found), "", *_predictions(found), "", *_path(found)]
    if found.notes:
        lines += ["", *(f"note: {note}" for note in found.notes)]
    return "\n".join(lines) + "\n"


def _head(found: WhatIf) -> list[str]:
    ranks = plural(len(found.ranks), "rank")
    if found.world_size is not None:
        ranks = f"{len(found.ranks)} of {plural(found.world_size, 'rank')}"
    synthetic = "SYNTHETIC  " if found.synthetic else ""
    mfu = "" if found.mfu is None else f", MFU {percent(found.mfu)}"
    return [
        f"{synthetic}mean step {duration(found.step_time_ns)}{mfu} as measured "
        f"({ranks}, {plural(found.steps, 'step')} by {found.steps_source})",
        f"replay reproduces the measured step within {percent(abs(found.replay_error))}; "
        f"{'without delays that nothing explains' if found.straggling else 'with usual latencies for measured ones'} "
        f"within {percent(abs(found.structure_error))}",
    ]


def _straggling(found: WhatIf) -> list[str]:
    one = found.straggling
    if one is None:
        return []
    measures = (("Mw", one.mw), ("Ms", one.ms))
    shares = [f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in measures]
    return [
        f"without unexplained delays {duration(one.step_time_ns)}, ideal {duration(one.ideal_ns)}: slowdown "
        f"{one.slowdown:.2f}, caused by {one.cause} ({', '.join(shares)}; worst: rank "
        f"{', '.join(map(str, one.worst_ranks))})"
    ]


def _predictions(found: WhatIf) -> list[str]:
    has_mfu = found.mfu is not None
    rows = [("what if", "step time", "gain", *(("MFU",) if has_mfu else ()), "")]
    known = sorted((one for one in found.predictions if one.gain is not None), key=lambda one: -(one.gain or 0.0))
    for one in known:
        mfu = ("-" if one.mfu is None else percent(one.mfu),) if has_mfu else ()
        assert one.gain is not None
        gain = f"{100 * one.gain:+.1f} %".replace("-", "−")
        rows.append((one.name, duration(one.step_time_ns), gain, *mfu, one.bound or ""))
    width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(width[0]), *(c.rjust(w) for c, w in zip(row[1:-1], width[1:-1], strict=True)), row[-1]])
        for row in rows
    ]
    lines += [f"{one.name}: cannot be told, {one.note}" for one in found.predictions if one.gain is None]
    return [line.rstrip() for line in lines]


def _path(found: WhatIf) -> list[str]:
    kinds = by_kind(found.path)
    total = max(sum(ns for _, _, ns in kinds), 1)
    lines = [f"critical path, {duration(total)} {'in the median step' if found.straggling else 'over all steps'}"]
    for kind, family, ns in kinds[:SHOWN_KINDS]:
        name = clean(f"{kind} ({family})" if family else kind)
        lines.append(f"  {percent(ns / total):>7}  {duration(ns):>10}  {name}")
    ranks = by_rank(found.path)
    if len(ranks) > 1:
        shown = ", ".join(f"rank {rank} {percent(ns / total)}" for rank, ns in ranks[:SHOWN_RANKS])
        lines.append(f"  on {shown}" + (", …" if len(ranks) > SHOWN_RANKS else ""))
    return lines
