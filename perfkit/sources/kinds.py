"""Tell what a file is by its content: a trace, an archive, or why it is neither.

    classify(head)               -> Verdict(kind, compression)     from a bounded head, nothing else is read
    check_nsys_tables(file)      raises unless a SQLite file is an nsys export
    check_nsys_projection(file)  raises unless a parquet file is what nsys's projection recipe writes
    nsys_exports(names)          -> the nsys parquetdir exports among names of parquet files

Whatever is no input raises: `NotATrace` for a sound file of another kind, another `InputError` for what was
meant as a trace and is damaged or in the wrong form.

JSON that has not shown `traceEvents` within its head is still taken for a trace (a header may be megabytes
of process groups): the reader decides. One table of a parquetdir tells nothing by itself, so an export is
known by the names of its files.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from perfkit.errors import CorruptInput, InputError, UnsupportedInput
from perfkit.sources import archives
from perfkit.sources.inputs import UTF8_BOM, BytesStream, Limits, compression_of, decompress

HEAD_BYTES = 1 << 16
"""Stored, and then uncompressed, bytes that decide what a file is."""
SQLITE_MAGIC = b"SQLite format 3\0"
SPOOL_MAGIC = b"PKSPOOL1"
NSYS_REP_MAGIC = b"NVIDIA Tegra Profiler Report"
NSYS_TABLE = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|StringIds|META_DATA_EXPORT|EXPORT_META_DATA|TARGET_INFO_\w+"
    r"|ENUM_NSYS_EVENT_TYPE"
)
"""Names of tables that only an nsys export has."""
_TABLE_NAME = re.compile(r"[A-Za-z]\w{0,99}", re.ASCII)
_PROJECTION_COLUMNS = {"Name", "Projected Start", "Projected Duration"}


class NotATrace(UnsupportedInput):
    """Readable and undamaged, but nothing to ingest; ignored unless the user named it."""


class Verdict(NamedTuple):
    """What a file is, from its head."""

    kind: str
    """`kineto`, `torchtitan`, `megatron`, `nsys-sqlite`, `tar`, `zip`, `parquet`, `spool`."""
    compression: str


def classify(head: bytes, *, path: str, complete: bool, limits: Limits | None = None) -> Verdict:
    """Decide from the first `HEAD_BYTES` stored bytes; `complete` says that there are no more.

    Raises `NotATrace`, or another `InputError` for what was meant as a trace and is damaged or in the wrong form.
    """
    if (compression := compression_of(head)) == "none":
        return Verdict(_classify_plain(head, path, complete), compression)
    with decompress(lambda: BytesStream(head, path=path), compression, path=path, limits=limits) as stream:
        inner = stream.read(HEAD_BYTES) or b""
        inner_complete = complete and not stream.read(1)
        problem = stream.problem if complete else None
    if not inner:
        raise CorruptInput(
            f"empty or broken {compression} data", path=path, next_step="copy it again from where it was made"
        )
    if compression_of(inner) != "none":
        raise UnsupportedInput("compressed twice", path=path, next_step="decompress it once and give the result")
    with blaming(problem, path=path):
        return Verdict(_classify_plain(inner, path, inner_complete), compression)


@contextlib.contextmanager
def blaming(problem: str | None, *, path: str) -> Iterator[None]:
    """Say what is wrong with the stored bytes, if anything is, where their content looks damaged."""
    try:
        yield
    except CorruptInput as error:
        if problem is None:
            raise
        raise CorruptInput(problem, path=path, next_step="copy it again from where it was made") from error


def _classify_plain(head: bytes, path: str, complete: bool) -> str:
    if head.startswith(SQLITE_MAGIC):
        return "nsys-sqlite"
    if head.startswith((archives.ZIP_MAGIC, archives.ZIP_EMPTY_MAGIC)):
        return "zip"
    if archives.is_tar(head):
        return "tar"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(SPOOL_MAGIC):
        return "spool"
    _refuse_known(head, path)
    text = head.removeprefix(UTF8_BOM).lstrip(b" \t\r\n")
    if kind := log_kind(text):
        return kind
    if text[:1] in (b"{", b"["):
        _check_json(text, path, complete)
        return "kineto"
    name = path.lower()
    if not text:
        what = "empty file" if not head else "nothing but white space"
        if _is_trace_name(name):
            raise CorruptInput(what, path=path, next_step="export the trace again")
        raise NotATrace(what, path=path, next_step="give a trace file")
    for ending, format in ((".gz", "gzip"), (".tgz", "gzip"), (".zst", "zstd"), (".parquet", "parquet")):
        if name.endswith(ending):
            raise CorruptInput(
                f"named {ending} but it is not {format} data (it starts with {_shown(head)})",
                path=path,
                next_step="copy it again from where it was made",
            )
    if name.endswith(".json"):
        raise CorruptInput(f"not JSON: it starts with {_shown(head)}", path=path, next_step="export the trace again")
    raise NotATrace(
        f"not a trace that perfkit knows (it starts with {_shown(head)})",
        path=path,
        next_step="give a torch.profiler JSON trace or an nsys SQLite export",
    )


def log_kind(text: bytes) -> str | None:
    """Return `torchtitan` or `megatron` if these lines are of a training log that perfkit reads."""
    if b'"log_type_name"' in text and b'"traceEvents"' not in text:
        from perfkit.sources.torchtitan import SIGN  # only then: neither is needed to look at a trace

        if SIGN.search(text):
            return "torchtitan"
    if b"iteration" in text and b"consumed samples" in text:
        from perfkit.sources.megatron import COLOURS, LINE

        if any(LINE.search(COLOURS.sub(b"", line)) for line in text.split(b"\n") if b"consumed samples" in line):
            return "megatron"
    return None


def _refuse_known(head: bytes, path: str) -> None:
    """Raise for content that perfkit recognises and cannot use."""
    if head.startswith(NSYS_REP_MAGIC) or path.lower().endswith((".nsys-rep", ".qdrep")):
        from perfkit.sources.nsys import nsys_rep_hint  # only then: it imports what SQLite and parquet need

        raise UnsupportedInput("an nsys report, which only nsys can read", path=path, next_step=nsys_rep_hint(path))
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise UnsupportedInput(
            "a git-LFS pointer, not the file itself", path=path, next_step="run `git lfs pull` in its repository"
        )
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        if b"pg_config" in head or b"pg_status" in head:
            raise NotATrace(
                "a Flight Recorder dump (pickle)",
                path=path,
                next_step="`perfkit hang FOLDER` explains it",
            )
        raise NotATrace("a pickle, which perfkit never loads", path=path, next_step="give a profiler trace")
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff", b"FEA1")):
        raise NotATrace("an Arrow file, not a trace", path=path, next_step="give a profiler trace")
    wide = head.startswith((b"\0\0\xfe\xff", b"\0\0\0{", b"\0\0\0["))
    if wide or head.startswith((b"\xff\xfe", b"\xfe\xff")) or head[:2] in (b"{\0", b"[\0", b"\0{", b"\0["):
        code = "UTF-32" if wide or head[2:4] == b"\0\0" else "UTF-16"
        raise UnsupportedInput(
            f"text in {code}", path=path, next_step=f"convert it with `iconv -f {code} -t UTF-8 FILE > NEW`"
        )
    if head.startswith((b"\xfd7zXZ\0", b"BZh")):
        what = "xz" if head.startswith(b"\xfd") else "bzip2"
        error: type[InputError] = UnsupportedInput if ".json" in path.lower() or ".tar" in path.lower() else NotATrace
        raise error(f"compressed with {what}", path=path, next_step="decompress it and give the result")
    start = head[:512].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")) or (start.startswith(b"<?xml") and _is_trace_name(path.lower())):
        error = CorruptInput if _is_trace_name(path.lower()) else NotATrace
        raise error(
            "a web page, not a trace (a failed download?)",
            path=path,
            next_step="download the file itself, with the credentials it needs",
        )


def _check_json(text: bytes, path: str, complete: bool) -> None:
    """Raise if this JSON is surely no trace: `NotATrace` if it is sound, `CorruptInput` if it is broken."""
    next_step = "give the file that torch.profiler's export_chrome_trace wrote"
    if text[:1] == b"{":
        if b'"traceEvents"' in text:
            return
        keys, closed = _top_level_keys(text)
        if "nodes" in keys:
            raise NotATrace("a PyTorch execution trace (ET), not a Kineto trace", path=path, next_step=next_step)
        if complete:
            _refuse_broken(text, path)
        if closed or (complete and not keys):
            shown = ", ".join(repr(key) for key in keys[:4]) or "no keys"
            raise NotATrace(f"JSON without traceEvents (it has {shown})", path=path, next_step=next_step)
        return
    first = text[1:].lstrip(b" \t\r\n")[:1]
    if first == b"{" and b'"ph"' in text:
        return
    if first == b"{" and not complete and b"}" not in text:
        return  # one enormous first element
    if not first and not complete:
        return
    if complete:
        _refuse_broken(text, path)
    what = "an empty list" if first == b"]" else "a JSON list that holds no trace events"
    raise NotATrace(what, path=path, next_step=next_step)


_JSON_NAME = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)
_JSON_START = re.compile(rb'\[?\s*\{\s*"(?:[^"\\]|\\.)*"\s*:', re.DOTALL)


def _refuse_broken(text: bytes, path: str) -> None:
    """Raise `CorruptInput` if the whole text of a file is meant as one JSON document and is none.

    Many texts begin with a bracket: sections of settings, lines of a log. Only a name, or else a key in quotes, says
    that JSON is meant. Several documents, as in logs of one per line, are sound; so are comments.
    """
    from perfkit.sources.chunks import DECODER  # only then: most files are sound

    name = path.rpartition("/")[2].rpartition("!")[2]
    if not (_JSON_NAME.search(name) or ("." not in name and _JSON_START.match(text))):
        return
    decoded = text.decode("utf-8", "surrogateescape")
    try:
        DECODER.raw_decode(decoded)
    except RecursionError:
        return
    except json.JSONDecodeError as error:
        rest = decoded[error.pos :].lstrip()
        if rest.startswith(("//", "/*")):
            return
        where = len(decoded[: error.pos].encode("utf-8", "surrogateescape"))
        what = f"{error.msg[:1].lower()}{error.msg[1:]} at byte {where:,}"
        raise CorruptInput(
            f"broken JSON: {what if rest and 'Unterminated' not in error.msg else 'it ends in the middle'}",
            path=path,
            next_step="export it again, or copy it again from where it was made",
        ) from error


_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


def _top_level_keys(text: bytes) -> tuple[list[str], bool]:
    """Return the keys of the top-level object as far as `text` goes, and whether the object is closed."""
    depth = 0
    keys = []
    for token in _JSON_TOKEN.finditer(text):
        char = text[token.start()]
        if char == 0x22:
            if depth == 1 and text[token.end() : token.end() + 64].lstrip()[:1] == b":":
                keys.append(token.group()[1:-1][:80].decode("utf-8", "replace"))
        elif char in b"{[":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return keys, True
    return keys, False


def _is_trace_name(name: str) -> bool:
    return name.endswith(
        (".json", ".json.gz", ".json.zst", ".gz", ".tgz", ".zst", ".tar", ".zip", ".sqlite", ".parquet")
    )


def _shown(head: bytes) -> str:
    """Show the first bytes on one line, whatever they are."""
    return repr(head[:16])[1:]


def check_nsys_tables(file: Path, *, path: str) -> None:
    """Raise unless a SQLite file holds tables of an nsys export."""
    import sqlite3

    uri = file.absolute().as_uri() + "?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            query = "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 10000"
            tables = [str(row[0]) for row in connection.execute(query)]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise CorruptInput(
            f"broken SQLite database ({error})", path=path, next_step="run `nsys export` again"
        ) from error
    if not any(NSYS_TABLE.fullmatch(table) for table in tables):
        shown = ", ".join(archives.shown_name(table) for table in tables[:4]) or "no tables"
        raise NotATrace(
            f"a SQLite database that nsys did not export (it has {shown})",
            path=path,
            next_step="give the file that `nsys export --type sqlite` wrote",
        )


def check_nsys_projection(file: Path, *, path: str) -> None:
    """Raise unless a parquet file holds NVTX ranges projected onto the GPU; only its footer is read."""
    from perfkit.store.parquet import check_parquet  # only then: the store is not needed to look at a trace

    try:
        schema = check_parquet(file).schema
        columns = {schema.column(number).path.removesuffix(" (ns)") for number in range(len(schema))}
    except InputError as error:
        step = error.next_step or "copy it again from where it was made"
        raise type(error)(error.message, path=path, next_step=step) from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:  # a broken column name fails to decode
        raise CorruptInput(
            f"broken parquet footer ({type(error).__name__})",
            path=path,
            next_step="copy it again from where it was made",
        ) from error
    if not columns >= _PROJECTION_COLUMNS:
        raise NotATrace(
            "a parquet file that is not part of an nsys parquetdir export",
            path=path,
            next_step="for nsys, give the whole folder that `nsys export --type parquetdir` wrote",
        )


def nsys_exports(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Find exports among the names of parquet files: folder -> {name within that folder: name}.

    A table is TABLE.parquet or TABLE/*.parquet. One name that only nsys uses makes its folder an export, and
    every other table in the same layout belongs to it.
    """
    places = {name: _places(name) for name in names if name.endswith(".parquet")}
    # A folder named like a table comes first: StringIds/StringIds.parquet is a part of StringIds.
    telling = (next((p for p in found if NSYS_TABLE.fullmatch(p.table)), None) for found in places.values())
    known = {(place.folder, place.layout) for place in telling if place}
    exports: dict[str, dict[str, str]] = {}
    for name in sorted(places):
        nearest = (place for place in reversed(places[name]) if (place.folder, place.layout) in known)
        if place := next(nearest, None):
            exports.setdefault(place.folder, {})[name.removeprefix(f"{place.folder}/")] = name
    return exports


class _Place(NamedTuple):
    folder: str
    layout: str
    table: str


def _places(name: str) -> list[_Place]:
    """Return what a parquet file may be: a part of the table its folder is named after, or a table itself."""
    folder, _, file = name.rpartition("/")
    above, _, table = folder.rpartition("/")
    places = [_Place(above, "folders", table), _Place(folder, "files", file.removesuffix(".parquet"))]
    return [place for place in places if _TABLE_NAME.fullmatch(place.table)]
