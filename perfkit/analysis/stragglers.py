"""Who does the same work more slowly than its peers (definition 16).

    stragglers(view, steps, idle, blame)         -> STRAGGLERS, one row per rank
    compare_ranks(steps, idle, roles, charged)   -> the same from stored tables, of all steps or of some

Own work is what a rank does itself: compute and the time in which its device waits for its own host (without a
device: the window less exposed communication). Waiting for others is not in it, and neither is a blocking receive of
a pipeline. It is compared with the other ranks of the same role, in the same step: score = Σ median of the peers /
Σ own, so 0.8 means that the peers need 80 % of the time. A rank is flagged below 0.90 if more than half of its steps
are below 0.90 too. Where there are no peers, the score is null.

`cause` is the part of own work with the largest excess over the peers: compute, or what its host was doing. Compute
that follows the load (perfkit.analysis.imbalance) says so: the rank is not slow, it was given more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.bubble import waits_for_receive
from perfkit.analysis.classify import encode_text
from perfkit.analysis.imbalance import Imbalance
from perfkit.analysis.intervals import Ints
from perfkit.analysis.layout import View
from perfkit.analysis.pipeline_work import add_up
from perfkit.analysis.schedules import Floats
from perfkit.analysis.timeline import ints
from perfkit.schema import STRAGGLERS, table_from_rows

FLAG_BELOW = 0.90
Charges = Mapping[int, tuple[int | None, int | None]]
"""Rank -> what the others paid for it (wait_caused_ns), and what a replay gives back (recoverable_ns)."""


def stragglers(
    view: View, steps: pa.Table, idle: pa.Table, blame: pa.Table | None = None, loads: Sequence[Imbalance] = ()
) -> pa.Table:
    """Compare every rank with its peers; `steps` are of `attribution`, `idle` of the idle table.

    `blame` has rank, wait_caused_ns and recoverable_ns: what the others paid for it, and what a replay gives back.
    A rank that computes longer because it was given more (`loads`) has that as its cause.
    """
    layout = view.layout
    roles = {rank: layout.role_of.get(rank) if layout is not None else None for rank in view.ranks}
    heavy = {load.worst_rank: f"compute: {load.what}" for load in loads if load.verdict == "load"}
    return compare_ranks(steps, idle, roles, _charged(blame), heavy)


def compare_ranks(
    steps: pa.Table,
    idle: pa.Table,
    roles: Mapping[int, str | None],
    charged: Charges = MappingProxyType({}),
    heavy: Mapping[int | None, str] = MappingProxyType({}),
) -> pa.Table:
    """Compare every rank with those of its role over the steps given; `heavy` names ranks that were given more."""
    if "carry_in" in steps.column_names:
        steps = steps.filter(pc.invert(pc.fill_null(steps["carry_in"], False)))
    parts = own_work(steps, idle)
    rank, step = ints(steps["rank"]), ints(steps["step"])
    ranks, row = np.unique(rank, return_inverse=True)
    known, column = np.unique(step, return_inverse=True)
    names = list(parts)
    cube = np.full((len(names), len(ranks), len(known)), np.nan)
    for i, name in enumerate(names):  # a rank with several devices does the work of all of them
        total = np.zeros(cube.shape[1:])
        np.add.at(total, (row, column), parts[name])
        cube[i] = np.where(_seen(row, column, total.shape), total, np.nan)
    rows: list[dict[str, Any]] = []
    for role in sorted({roles.get(int(r)) for r in ranks}, key=str):
        mine = np.array([roles.get(int(r)) == role for r in ranks])
        rows += _compare(ranks[mine], role, names, cube[:, mine], heavy)
    for one in rows:
        one["wait_caused_ns"], one["recoverable_ns"] = charged.get(one["rank"], (None, None))
    return table_from_rows(STRAGGLERS, sorted(rows, key=_worst_first))


def own_work(steps: pa.Table, idle: pa.Table) -> dict[str, Ints]:
    """Return the own work of each row of `steps` by what it was: `compute`, and `host` by culprit."""
    parts = {"compute": own_compute(steps)}
    idle = own_idle(idle)
    codes, culprits = encode_text(idle["culprit"])
    for code in np.unique(codes).tolist():
        chosen = idle.filter(pa.array(codes == code))
        parts[f"host: {culprits[code] if code >= 0 else 'unattributed'}"] = add_up(
            steps, chosen, ints(chosen["idle_ns"], 0)
        )
    return parts


def own_compute(steps: pa.Table) -> Ints:
    """Return the compute of each row of `steps`; without a device, all but exposed communication."""
    on_host = ~np.asarray(pc.is_valid(steps["device"]))
    found: Ints = np.where(
        on_host, ints(steps["window_ns"]) - ints(steps["exposed_comm_ns"]), ints(steps["compute_ns"])
    )
    return found


def own_idle(idle: pa.Table) -> pa.Table:
    """Return the rows in which a device waited for its own host, and the host for nobody."""
    idle = idle.filter(pc.and_(pc.equal(idle["cause"].cast(pa.utf8()), "host_late"), pc.is_valid(idle["device"])))
    return idle.filter(pa.array(~waits_for_receive(idle)))


def _seen(row: Ints, column: Ints, shape: tuple[int, ...]) -> np.ndarray:
    seen = np.zeros(shape, bool)
    seen[row, column] = True
    return seen


def median_of_others(values: Floats) -> Floats:
    """Return for each row and column the median of the other rows of that column; NaN is a missing value."""
    number = np.count_nonzero(~np.isnan(values), axis=0)
    order = np.argsort(values, axis=0, kind="stable")  # missing values come last
    place = np.argsort(order, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, axis=0)
    middle = []
    for half in ((number - 2) // 2, (number - 1) // 2):
        at = half + (place <= half)  # without the row itself, those behind it move up
        middle.append(np.take_along_axis(ranked, np.clip(at, 0, len(values) - 1), axis=0))
    result: Floats = np.where((number > 1) & ~np.isnan(values), (middle[0] + middle[1]) / 2, np.nan)
    return result


def _compare(
    ranks: Ints, role: str | None, names: list[str], cube: Floats, heavy: Mapping[int | None, str]
) -> list[dict[str, object]]:
    """Return the rows of the ranks of one role; `cube` is parts × ranks × steps."""
    own = cube.sum(axis=0)
    peers = median_of_others(own)
    usual = np.stack([median_of_others(part) for part in cube])
    compared = ~np.isnan(peers)
    rows: list[dict[str, object]] = []
    for i, rank in enumerate(ranks.tolist()):
        steps = np.flatnonzero(compared[i])
        row: dict[str, object] = {"rank": rank, "role": role, "peers": len(ranks) - 1, "steps": len(steps)}
        mine, theirs = own[i, steps].sum(), peers[i, steps].sum()
        if not len(steps) or mine <= 0:
            row |= {"own_ns": round(float(np.nansum(own[i]))), "flagged": False}
            rows.append(row)
            continue
        score = float(theirs / mine)
        persistence = float(np.mean(peers[i, steps] < FLAG_BELOW * own[i, steps]))
        excess = (cube[:, i][:, steps] - usual[:, i][:, steps]).sum(axis=1)
        flagged = score < FLAG_BELOW and persistence > 0.5
        cause = names[int(np.argmax(excess))] if mine > theirs else None
        cause = heavy.get(rank, cause) if cause == "compute" else cause
        row |= {
            "own_ns": round(float(mine)), "peers_ns": round(float(theirs)), "score": score,
            "persistence": persistence, "flagged": flagged, "cause": cause, "excess_ns": round(float(mine - theirs)),
        }  # fmt: skip
        if flagged:
            peers_text = "its peer" if len(ranks) == 2 else f"its {len(ranks) - 1} peers"
            of_role = f" of role {role}" if role not in (None, "all") else ""
            row["sentence"] = (
                f"rank {rank} needs {mine / theirs:.2f} times the own work of {peers_text}{of_role} in "
                f"{round(persistence * len(steps))} of {len(steps)} steps; most of the excess is {cause}"
            )
        rows.append(row)
    return rows


def _charged(blame: pa.Table | None) -> Charges:
    if blame is None:
        return {}
    columns = [blame[name].to_pylist() for name in ("rank", "wait_caused_ns", "recoverable_ns")]
    return {rank: (caused, gain) for rank, caused, gain in zip(*columns, strict=True)}


def _worst_first(row: dict[str, object]) -> tuple[bool, float, int]:
    score = row.get("score")
    assert isinstance(row["rank"], int)
    return not row["flagged"], float(score) if isinstance(score, float) else 2.0, row["rank"]
