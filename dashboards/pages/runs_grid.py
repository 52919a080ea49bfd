"""The table of runs on the Fleet page: sorted and paged by the server, a hundred rows at a time."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import pyarrow as pa
from dash import Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from .. import cards, data_fleet
from .. import format as fmt
from ..data import Source
from ..section import Context
from ..view import View

PAGE_ROWS = 100
ROW_PX, HEADER_PX, SCROLLBAR_PX = 32, 34, 18
SHOWN_ROWS = 12


COLUMNS = (
    ("run", "Run", {"cellRenderer": "PerfkitLink", "flex": 2, "minWidth": 112}),
    ("cluster", "Cluster", {"flex": 1, "minWidth": 84}),
    ("user", "User", {"flex": 1, "minWidth": 68}),
    ("model", "Model", {"flex": 1, "minWidth": 100}),
    ("state", "State", {"width": 86}),
    ("gpus", "GPUs", {"type": "rightAligned", "width": 74}),
    ("start", "Start (UTC)", {"width": 138, "colId": "start_ns"}),
    ("hours", "Hours", {"type": "rightAligned", "width": 78}),
    ("mfu", "MFU", {"type": "rightAligned", "width": 76}),
    ("effective_mfu", "Eff. MFU", {"type": "rightAligned", "width": 92}),
    ("goodput", "Goodput", {"type": "rightAligned", "width": 88}),
    ("tokens_per_gpu_s", "Tokens/s/GPU", {"type": "rightAligned", "width": 108}),
    ("lost_hours", "GPU-h lost", {"type": "rightAligned", "width": 100, "sort": "desc"}),
    ("interruptions", "Interruptions", {"type": "rightAligned", "width": 106}),
)


def runs(found: Context) -> Any:
    """List the runs of the range, page by page."""
    _, total = data_fleet.runs(found.source, found.view, count=1)
    if not total:
        text = "No run matches." if found.view.search else "No run in this range."
        return cards.card("Runs", cards.empty(text, "Clear the search or choose a longer time range."))
    columns = [
        {"field": name, "headerName": label, "sortable": True, "filter": False, **extra}
        for name, label, extra in COLUMNS
    ]
    grid = dag.AgGrid(
        id="runs", columnDefs=columns, rowModelType="infinite", className="",
        style={"height": f"{height_px(total)}px"},
        dashGridOptions={
            "cacheBlockSize": PAGE_ROWS, "maxBlocksInCache": 5, "rowHeight": ROW_PX, "headerHeight": HEADER_PX,
            "suppressCellFocus": False, "ensureDomOrder": True, "animateRows": False,
        },
        defaultColDef={"resizable": True},
    )  # fmt: skip
    return cards.card(
        "Runs", grid, sub=f"{total:,} in this range; most GPU-hours lost first", csv=found.csv("fleet.runs")
    )


def height_px(total: int) -> int:
    """Return the height of a grid: no taller than its rows, and then it scrolls."""
    return HEADER_PX + SCROLLBAR_PX + ROW_PX * min(max(total, 1), SHOWN_ROWS)


def grid_row(row: dict[str, Any], found: Context) -> dict[str, Any]:
    """Return a run as the grid shows it: text, so that nothing has to be computed in the browser."""

    def share(name: str) -> str:
        return fmt.percent(data_fleet.valid_mfu(row.get(name)) if "mfu" in name else row.get(name))

    return {
        "run": fmt.clean(row["run"], 200),
        "cluster": fmt.clean(row["cluster"], 80),
        "user": fmt.clean(row.get("user") or "", 60),
        "model": fmt.clean(row.get("model") or "", 60),
        "state": row.get("state") or fmt.UNKNOWN,
        "gpus": fmt.count(row.get("gpus")),
        "start": fmt.utc(row.get("start_ns")),
        "hours": fmt.number(row.get("hours"), 1),
        "mfu": share("mfu"),
        "effective_mfu": share("effective_mfu"),
        "goodput": share("goodput"),
        "tokens_per_gpu_s": fmt.number(row.get("tokens_per_gpu_s")),
        "lost_hours": fmt.gpu_hours(row.get("lost_hours")),
        "interruptions": fmt.count(row.get("interruptions")),
        "href": found.href("run", cluster=row["cluster"], run=row["run"]),
    }


def wire(app: Dash, source: Source, prefix: str) -> None:
    """Answer the grid's request for a page of rows."""
    from ..app import context

    @app.callback(
        Output("runs", "getRowsResponse"),
        Input("runs", "getRowsRequest"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def show_runs(request: dict[str, Any] | None, view_data: dict[str, str] | None) -> Any:
        if not request or not view_data:
            raise PreventUpdate
        found = context(source, view_data, prefix)
        sort = (request.get("sortModel") or [{}])[0]
        first = max(0, int(request.get("startRow") or 0))
        rows, total = data_fleet.runs(
            source, found.view, order=str(sort.get("colId", "lost_hours")), descending=sort.get("sort") != "asc",
            first=first, count=PAGE_ROWS,
        )  # fmt: skip
        return {"rowData": [grid_row(row, found) for row in rows], "rowCount": total}


def runs_table(source: Source, view: View) -> pa.Table:
    """All runs of the range."""
    rows, _ = data_fleet.runs(source, view, count=100_000)
    names = (
        "cluster",
        "run",
        "user",
        "model",
        "state",
        "gpus",
        "start_ns",
        "end_ns",
        "hours",
        "mfu",
        "effective_mfu",
        "goodput",
        "tokens_per_gpu_s",
        "lost_hours",
        "interruptions",
    )
    return pa.Table.from_pylist([{n: row.get(n) for n in names} for row in rows], schema=_runs_schema(names))


def _runs_schema(names: tuple[str, ...]) -> pa.Schema:
    types = {
        "cluster": pa.utf8(),
        "run": pa.utf8(),
        "user": pa.utf8(),
        "model": pa.utf8(),
        "state": pa.utf8(),
        "gpus": pa.int64(),
        "start_ns": pa.int64(),
        "end_ns": pa.int64(),
        "interruptions": pa.int64(),
    }
    return pa.schema([(name, types.get(name, pa.float64())) for name in names])
