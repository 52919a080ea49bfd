"""Routes that read and write notes: the only part of the dashboard that writes.

    GET    <prefix>notes?cluster=…&run=…      {"notes": […], "views": […], "writable": bool}
    POST   <prefix>notes                      {"kind": "annotation", "text": …, "time": "2025-11-01T12:00", "link": …}
    DELETE <prefix>notes/<id>                 by who wrote it; without users by anybody

Cluster and run are those of the link, and have to be there for who writes. `--read-only` turns writing off.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

import flask

from perfkit.errors import PerfkitError, UsageError
from perfkit.store.notes import FOLDER, Note, checked, delete_note, write_note

from . import data_notes
from .data import Source
from .limits import charge
from .view import View


def add_note_routes(server: flask.Flask, source: Source, prefix: str, *, writable: bool) -> None:
    """Add the routes to the server of the app."""

    @server.get(f"{prefix}{FOLDER}")
    def read() -> flask.Response:
        view = View.parse("/run", flask.request.query_string.decode("utf-8", "replace"))
        user = flask.g.get("perfkit_user")
        views = [_view_row(note, user, prefix) for note in data_notes.saved_views(source, user)]
        rows = data_notes.notes_on(source, view) if view.cluster is not None else []
        notes = [{**row, "time": _iso(row["time_ns"]), "mine": _may_delete(row["by"], user)} for row in rows]
        return flask.jsonify({"notes": notes, "views": views, "writable": writable})

    @server.post(f"{prefix}{FOLDER}")
    def write() -> flask.Response:
        if not writable:
            return _refusal("This dashboard only reads: it was started with --read-only.", 403)
        charge()
        try:
            note = note_of(flask.request.get_json(silent=True), source, prefix)
            kept = write_note(source.engine.files, note)
        except PerfkitError as error:
            return _refusal(str(error), 400)
        source.engine.forget(FOLDER)
        return flask.jsonify({"id": kept.id})

    @server.delete(f"{prefix}{FOLDER}/<id>")
    def remove(id: str) -> flask.Response:
        if not writable:
            return _refusal("This dashboard only reads: it was started with --read-only.", 403)
        user = flask.g.get("perfkit_user")
        note = next((note for note in data_notes.all_notes(source) if note.id == id), None)
        if note is None or not _may_delete(note.by, user):
            return _refusal("There is nothing of that name.", 404)
        delete_note(source.engine.files, id)
        source.engine.forget(FOLDER)
        return flask.jsonify({})


def note_of(body: Any, source: Source, prefix: str) -> Note:
    """Read what a browser sends; the names in it must be there for who sends it."""
    given = body if isinstance(body, dict) else {}
    link = str(given.get("link") or "")
    path, _, query = link.partition("?")
    if not link.startswith(prefix):
        raise UsageError("a note needs the link of its page", next_step="write it from that page")
    view = View.parse(path, query, prefix)
    if view.page == "missing" or not source.knows(view):
        raise UsageError("there is nothing of that name", next_step="write it from a page of this dashboard")
    kind = str(given.get("kind") or "")
    return checked(
        Note(
            kind=kind, text=str(given.get("text") or ""), cluster=view.cluster, run=view.run,
            time_ns=_time_ns(given.get("time")) if kind == "annotation" else None,
            link=view.href() if kind == "view" else None, by=flask.g.get("perfkit_user"),
        )
    )  # fmt: skip


def _time_ns(text: Any) -> int:
    try:
        moment = datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"{str(text)[:40]!r} is no time", next_step="write it like 2025-11-01T12:00") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return int(moment.timestamp()) * 10**9


def _iso(time_ns: int) -> str:
    moment = datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M")


def _may_delete(by: str | None, user: str | None) -> bool:
    return user is None or by == user


def _view_row(note: Note, user: str | None, prefix: str) -> dict[str, Any]:
    found = {name: value for name, value in asdict(note).items() if name in ("id", "text", "by")}
    link = f"{prefix.rstrip('/')}{note.link}" if note.link else prefix
    return {**found, "link": link, "mine": _may_delete(note.by, user)}


def _refusal(text: str, status: int) -> flask.Response:
    return flask.Response(f"{text}\n", status, mimetype="text/plain")
