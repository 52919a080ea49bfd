"""Annotations and saved views of a store, as one user sees them.

    notes_on(source, view)      -> rows {time_ns, text, by, run}: of the cluster, and of the run where one is shown
    saved_views(source, user)   -> notes that hold a link

Each note is read once per file version. A note about what somebody may not see is not there for them; a saved view of
the whole fleet belongs to who saved it.
"""

from __future__ import annotations

from perfkit.store.notes import FOLDER, Note, parse_note

from .data import Rows, Source
from .view import View

MAX_SHOWN = 40


def all_notes(source: Source) -> list[Note]:
    """Return the notes that somebody may see, oldest first."""
    made = source.remember((FOLDER, source.engine.version([FOLDER])), None, lambda: _read(source))
    return [note for note in made if all(source.scope.sees(*name) for name in _names(note))]


def _names(note: Note) -> list[tuple[str, str | None]]:
    """Return what a note is about, and what its link compares it with."""
    path, _, query = (note.link or "").partition("?")
    own = [] if note.cluster is None else [(note.cluster, note.run)]
    return [*own, *View.parse(path, query).names()]


def _read(source: Source) -> list[Note]:
    found = [parse_note(source.engine.read(path), path) for path in source.engine.listing(FOLDER)]
    return sorted((note for note in found if note is not None), key=lambda note: (note.created_ns, note.id))


def notes_on(source: Source, view: View) -> Rows:
    """Return what was written about the time line of a cluster, and on a run's page also about the run."""
    mine = [
        note
        for note in all_notes(source)
        if note.kind == "annotation" and note.cluster == view.cluster and note.run in (None, view.run)
    ]
    rows = [{"id": n.id, "time_ns": n.time_ns, "text": n.text, "by": n.by, "run": n.run} for n in mine]
    return sorted(rows, key=lambda row: row["time_ns"])[-MAX_SHOWN:]


def saved_views(source: Source, user: str | None) -> list[Note]:
    """Return the views that were saved, newest first."""
    return [
        note
        for note in reversed(all_notes(source))
        if note.kind == "view" and (note.cluster is not None or user is None or note.by == user)
    ]
