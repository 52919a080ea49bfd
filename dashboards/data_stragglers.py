"""Who is slow, why, and what it costs (definition 16), as the analysis says it.

    stragglers(source, view) -> rows, slowest first: columns of the table `stragglers`, with label and host
    why_none(source, view)   -> why there are none: no_analysis, older_analysis, no_steps, no_peers

The rows are those that `perfkit analyze` stored. Of a view that is cut to some steps the ranks are compared again, over
these steps, by the same function on the stored rows; what a replay would give back is known of the whole only. An
analysis by a perfkit that did not store the comparison has none here: nothing is worked out in another way.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.stragglers import compare_ranks
from perfkit.store.layout import RunKey

from .data import Rows, Source, remembered
from .data_ranks import OWN_WORK, place
from .data_run import analysed
from .view import View


@remembered
def stragglers(source: Source, view: View, count: int = 12) -> Rows:
    """Return the slowest ranks against their peers, over the steps of the view."""
    key = source.run_key(view)
    table = _compared(source, key, view) if key else None
    if key is None or table is None:
        return []
    ranks = np.sort(table["rank"].to_numpy())
    labels = dict(zip(ranks.tolist(), place(source, key, ranks)[1], strict=True))
    hosts = {commit.rank: commit.host for commit in source.engine.commits(key)[0]}
    rows = table.filter(pc.is_valid(table["score"])).slice(0, count).to_pylist()
    return [{**row, "label": labels[row["rank"]], "host": hosts.get(row["rank"])} for row in rows]


def why_none(source: Source, view: View) -> str:
    """Say why nobody is compared: the analysis is of one rank, did not keep it, lacks the steps, or all are alone."""
    key = source.run_key(view)
    rows = analysed(source, key, "attribution", columns=["rank"]) if key else None
    if key is None or rows is None or len(pc.unique(rows["rank"])) < 2:
        return "no_analysis"
    if _stored(source, key, "stragglers") is None:
        return "older_analysis"
    return "no_steps" if _compared(source, key, view) is None else "no_peers"


def _stored(source: Source, key: RunKey, table: str, columns: list[str] | None = None) -> pa.Table | None:
    """Return a table of the newest analysis, not of an older one that also had it."""
    newest = source.engine.newest_analysis("attribution", key)
    return analysed(source, key, table, columns=columns, analysis=newest) if newest else None


def _compared(source: Source, key: RunKey, view: View) -> pa.Table | None:
    """Return the comparison of all ranks over the steps of the view."""
    whole = _stored(source, key, "stragglers")
    if whole is None:
        return None
    charges = _stored(source, key, "blame_steps")
    at = whole.column_names.index("wait_caused_ns")
    if charges is None:  # nothing could be matched, and so nobody blamed
        whole = whole.set_column(at, "wait_caused_ns", pa.nulls(len(whole), pa.int64()))
    if view.first is None and view.last is None:
        return whole
    steps, idle = _stored(source, key, "attribution", OWN_WORK), _stored(source, key, "idle")
    steps = _cut(steps, view) if steps is not None else None
    if steps is None or not len(steps):
        return None
    rows = whole.select(["rank", "role", "cause"]).to_pylist()
    heavy = {row["rank"]: row["cause"] for row in rows if (row["cause"] or "").startswith("compute: ")}
    none = source.engine.nothing("idle")
    paid = {} if charges is None else _sums(_cut(charges, view), [row["rank"] for row in rows])
    return compare_ranks(
        steps, _cut(none if idle is None else idle, view), {row["rank"]: row["role"] for row in rows}, paid, heavy
    )


def _cut(rows: pa.Table, view: View) -> pa.Table:
    keep = pc.is_valid(rows["step"])
    if view.first is not None:
        keep = pc.and_(keep, pc.greater_equal(rows["step"], view.first))
    if view.last is not None:
        keep = pc.and_(keep, pc.less_equal(rows["step"], view.last))
    return rows.filter(keep)


def _sums(charges: pa.Table, ranks: list[int]) -> dict[int, tuple[int | None, int | None]]:
    sums = charges.group_by("rank").aggregate([("wait_caused_ns", "sum")]).to_pydict()
    known = dict(zip(sums["rank"], sums["wait_caused_ns_sum"], strict=True))
    return {rank: (known.get(rank, 0), None) for rank in ranks}
