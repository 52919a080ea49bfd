"""Plain routes beside the pages: CSV of a section.

    GET <prefix>export/<section>.csv?<the view>       the rows behind a section, as the same link shows them

A cell that a spreadsheet would run as a formula gets an apostrophe before it, as in every CSV of perfkit.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import flask
import pyarrow as pa

from perfkit.errors import PerfkitError
from perfkit.export.tables import without_formulas

from .data import Source
from .limits import charge
from .pages import SECTIONS
from .view import View

EXPORT_COST = 4.0
"""Computed answers that a file counts as."""


def add_routes(server: flask.Flask, source: Source, prefix: str) -> None:
    """Add the routes to the server of the app."""

    @server.route(f"{prefix}export/<name>.csv")
    def export(name: str) -> flask.Response:
        section = SECTIONS.get(name)
        if section is None or section.table is None:
            flask.abort(404)
        page = section.name.split(".")[0]
        view = View.parse(f"/{page}", flask.request.query_string.decode("utf-8", "replace"))
        try:
            charge(EXPORT_COST)
            rows = section.table(source, view)
        except PerfkitError as error:
            return flask.Response(f"{error}\n", status=409, mimetype="text/plain")
        answer = flask.Response(to_csv(rows), mimetype="text/csv")
        answer.headers["Content-Disposition"] = f'attachment; filename="perfkit-{re.sub(r"[^a-z]+", "-", name)}.csv"'
        return answer


def to_csv(rows: pa.Table) -> Iterator[str]:
    """Yield the lines of a table."""
    yield _line(rows.column_names)
    for batch in without_formulas(rows).to_batches(max_chunksize=10_000):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield _line(values)


def _line(values: Iterable[Any]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(values)
    return out.getvalue()
