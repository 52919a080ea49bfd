"""What people write down about clusters and runs: annotations on a time line, and views worth coming back to.

    write_note(files, Note(kind="annotation", cluster="a", run="b", time_ns=…, text="driver upgraded here", by="ada"))
    read_notes(files)                 -> notes, oldest first, and the paths of those that cannot be read
    delete_note(files, id)

One small JSON object per note, below `notes/`: it appears whole or not at all, two writers never touch the same one,
and a note that is damaged costs the others nothing. This is all that the dashboard ever writes.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from perfkit.errors import UsageError
from perfkit.store.files import Files
from perfkit.store.layout import NOTES

FOLDER = NOTES
KINDS = ("annotation", "view")
MAX_TEXT = 500
MAX_LINK = 4000
MAX_NOTES = 10_000
"""Per store: notes are written by people; more than that is a script, and would slow every page down."""
_ID = re.compile(r"\d{1,20}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Note:
    """An annotation, or a saved view."""

    kind: str
    text: str
    """What it says, or the name of the view."""
    cluster: str | None = None
    run: str | None = None
    """None: about the whole cluster."""
    time_ns: int | None = None
    """Annotation: the moment it is about."""
    link: str | None = None
    """View: page and query, without the server's address."""
    by: str | None = None
    created_ns: int = 0
    id: str = ""

    @property
    def path(self) -> str:
        """Where it lies in a store."""
        return f"{FOLDER}/{self.id}.json"


def checked(note: Note) -> Note:
    """Return a note that can be kept; say what is wrong with another."""
    text = " ".join(note.text.split()) if isinstance(note.text, str) else ""
    if note.kind not in KINDS or not text or len(text) > MAX_TEXT:
        raise UsageError(f"a note needs a text of 1 to {MAX_TEXT} characters", next_step="shorten it, or write one")
    if note.kind == "annotation" and (not note.cluster or not isinstance(note.time_ns, int) or note.time_ns < 0):
        raise UsageError("an annotation needs a cluster and a time", next_step="open a cluster or a run first")
    if note.kind == "view" and (not note.link or not note.link.startswith("/") or len(note.link) > MAX_LINK):
        raise UsageError("a view needs the link it stands for", next_step="save it from the page that it shows")
    if note.kind == "view" and note.link and note.link.startswith("//"):
        raise UsageError("a view stays on this server", next_step="save it from the page that it shows")
    return replace(note, text=text)


def write_note(files: Files, note: Note, *, now_ns: int | None = None) -> Note:
    """Keep a note; return it with its id."""
    if len(files.walk(FOLDER)) >= MAX_NOTES:
        raise UsageError(f"the store holds {MAX_NOTES:,} notes already", next_step="delete some")
    created_ns = time.time_ns() if now_ns is None else now_ns
    kept = replace(checked(note), created_ns=created_ns, id=f"{created_ns}-{uuid.uuid4().hex[:12]}")
    files.publish_bytes(json.dumps(asdict(kept), ensure_ascii=False).encode("utf-8", "replace"), kept.path)
    return kept


def delete_note(files: Files, id: str) -> None:
    """Remove a note."""
    if not _ID.fullmatch(id):
        raise UsageError(f"{id!r} is no note")
    files.delete(f"{FOLDER}/{id}.json")


def read_notes(files: Files) -> tuple[list[Note], list[str]]:
    """Return all notes, oldest first, and the paths of those that cannot be read."""
    notes, damaged = [], []
    for info in files.walk(FOLDER):
        path = files.relative(info)
        note = parse_note(files.read_bytes(path), path)
        if note is None:
            damaged.append(path)
        else:
            notes.append(note)
    return sorted(notes, key=lambda note: (note.created_ns, note.id)), damaged


def parse_note(data: bytes | None, path: str) -> Note | None:
    """Read a note; None if it is none. Its id is the name of its file, whatever the file says."""
    try:
        document: Any = json.loads(data or b"")
        known = {field.name: document[field.name] for field in fields(Note) if field.name in document}
        note = checked(Note(**{**known, "id": path.rpartition("/")[2].removesuffix(".json")}))
    except (ValueError, TypeError, UsageError):
        return None
    texts = (note.cluster, note.run, note.link, note.by)
    if not _ID.fullmatch(note.id) or not all(text is None or isinstance(text, str) for text in texts):
        return None
    return note if isinstance(note.created_ns, int) else None
