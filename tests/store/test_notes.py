"""Notes of people in a store: whole or not at all, and never in the way of each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfkit.errors import UsageError
from perfkit.store.files import Files
from perfkit.store.notes import MAX_TEXT, Note, delete_note, read_notes, write_note

NOTE = Note(kind="annotation", cluster="a", run="b", time_ns=5, text="driver upgraded here", by="ada")


def test_a_note_comes_back_as_it_was_written_and_goes_when_deleted(tmp_path: Path) -> None:
    files = Files(tmp_path)
    kept = write_note(files, NOTE)
    view = write_note(files, Note(kind="view", text=" Monday \n review ", link="/?a=b"), now_ns=kept.created_ns + 1)
    assert read_notes(files) == ([kept, view], [])
    assert view.text == "Monday review"
    delete_note(files, kept.id)
    delete_note(files, kept.id)
    assert read_notes(files) == ([view], [])


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write_note(files, NOTE, now_ns=7), range(40)))
    assert len(read_notes(files)[0]) == 40


@pytest.mark.parametrize(
    "note",
    [
        Note(kind="annotation", cluster="a", time_ns=5, text=""), Note(kind="annotation", cluster="a", text="x"),
        Note(kind="annotation", time_ns=5, text="x"), Note(kind="annotation", cluster="a", time_ns=-1, text="x"),
        Note(kind="annotation", cluster="a", time_ns=5, text="x" * (MAX_TEXT + 1)), Note(kind="other", text="x"),
        Note(kind="view", text="x"), Note(kind="view", text="x", link="//elsewhere"),
        Note(kind="view", text="x", link="javascript:alert(1)"),
    ],
)  # fmt: skip
def test_a_note_that_makes_no_sense_is_refused_and_nothing_is_written(tmp_path: Path, note: Note) -> None:
    with pytest.raises(UsageError):
        write_note(Files(tmp_path), note)
    assert not (tmp_path / "notes").exists()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"kind": "view"}', b"\xff", b'{"kind": 1, "text": []}'])
def test_a_damaged_note_is_named_and_the_others_are_read(tmp_path: Path, data: bytes) -> None:
    files = Files(tmp_path)
    kept = write_note(files, NOTE)
    (tmp_path / "notes" / "9-0123456789ab.json").write_bytes(data)
    (tmp_path / "notes" / "stray.txt").write_bytes(b"x")
    notes, damaged = read_notes(files)
    assert notes == [kept]
    assert damaged == ["notes/9-0123456789ab.json", "notes/stray.txt"]


@pytest.mark.parametrize("id", ["", "../manifests/x", "5-xyz", "5-0123456789ab/../x"])
def test_only_notes_can_be_deleted(tmp_path: Path, id: str) -> None:
    with pytest.raises(UsageError):
        delete_note(Files(tmp_path), id)
