"""Redacted copies of trace files: named, written beside and renamed, and proven.

redact_trace(source, target)      one
redact_traces(sources, folder)    all ranks of a job, with one salt
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from isal import isal_zlib

from perfkit.errors import PerfkitError, UnsupportedInput, UsageError, cannot_write
from perfkit.redact.proof import prove
from perfkit.redact.redactor import Redactor
from perfkit.redact.stream import redact_stream
from perfkit.sources.base import Input
from perfkit.sources.detect import find_inputs
from perfkit.sources.kineto import rank_in_name


@dataclass(slots=True)
class RedactionReport:
    """What was hashed."""

    source: str
    target: str
    names: dict[str, int] = field(default_factory=dict)
    """Distinct names hashed, by kind."""
    occurrences: dict[str, int] = field(default_factory=dict)
    """How often, by kind."""
    strings_kept: int = 0
    """Distinct strings that stayed."""
    bytes_in: int = 0
    bytes_out: int = 0
    problem: str | None = None
    """What is wrong with the source, if it is cut or broken; so is the copy, then."""
    rank_recorded: bool = False
    """Whether the rank stands in the trace; otherwise only its file name may say it."""
    strings_checked: int = 0
    """Distinct strings of the copy in which every hashed name was looked for, and not found."""


def redact_trace(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, salt: str | None = None
) -> RedactionReport:
    """Write a redacted copy of the Kineto trace `source` to `target`, gzipped if that ends in `.gz`.

    `salt` makes tokens comparable between exports; keep it secret. Without it a random one is used and forgotten.
    """
    inputs = _kineto_inputs([source])
    if len(inputs) != 1:
        raise UsageError(f"{source}: {len(inputs)} traces in there", next_step="name a folder for the copies with -o")
    return _redact_input(inputs[0], Path(target), salt)


def redact_traces(
    sources: Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str], *, salt: str | None = None
) -> list[RedactionReport]:
    """Write a redacted copy of every Kineto trace under `sources` into `folder`, named after its rank.

    All have one salt, random if none is given: names are the same in each, as they were in the traces.
    """
    inputs, folder = _kineto_inputs(sources), Path(folder)
    if not inputs:
        raise UsageError("no traces in there", next_step="name files or folders of torch.profiler traces")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    salt = salt or secrets.token_hex()
    return [_redact_input(trace, free_name(folder, trace.path), salt) for trace in inputs]


def free_name(folder: Path, trace: str) -> Path:
    """Name the copy by what may be known of the trace: its rank. A file that is there is not replaced."""
    rank = rank_in_name(trace)
    stem = "redacted" if rank is None else f"redacted-rank{rank}"
    names = itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(2)))
    return next(path for name in names if not os.path.lexists(path := folder / f"{name}.json.gz"))


def _kineto_inputs(sources: Sequence[str | os.PathLike[str]]) -> list[Input]:
    found = find_inputs(sources)
    if found.rejected:
        raise found.rejected[0]
    for trace in found.inputs:
        if trace.kind != "kineto":
            raise UnsupportedInput(
                "an nsys export, which --redact does not cover yet",
                path=trace.path,
                next_step="give a torch.profiler JSON trace",
            )
    return found.inputs


def _redact_input(trace: Input, target: Path, salt: str | None) -> RedactionReport:
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise UsageError(f"{target} is there and is no regular file", next_step="give another name with -o")
    if target.exists() and isinstance(trace.file, Path) and target.samefile(trace.file):
        raise UsageError(f"{target}: the copy would replace the trace", next_step="give another name with -o")
    redactor = Redactor(hashlib.blake2b(salt.encode()).digest() if salt else None)
    report = RedactionReport(trace.path, str(target))
    partial = target.with_name(target.name + ".part")
    try:
        with trace.open() as stream, _open_target(partial, gzipped=target.name.endswith(".gz")) as out:
            report.bytes_in, report.bytes_out, occurrences = redact_stream(stream, out, redactor, path=trace.path)
            report.problem = getattr(stream, "problem", None)
        report.strings_checked = prove(partial, redactor, gzipped=target.name.endswith(".gz"))
        partial.replace(target)
    except OSError as error:
        raise PerfkitError(
            f"{target}: cannot be written: {error.strerror or error}", next_step="choose another place with -o"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    report.names = redactor.names_by_kind()
    report.occurrences = dict(sorted(occurrences.items()))
    report.strings_kept = len(redactor.kept)
    report.rank_recorded = "rank" in redactor.kept
    return report


def _open_target(path: Path, *, gzipped: bool) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    raw = io.FileIO(descriptor, "wb")
    return cast(BinaryIO, _GzipWriter(raw)) if gzipped else io.BufferedWriter(raw)


class _GzipWriter(io.RawIOBase):
    """gzip without a name and a time in its header, which would say where and when the copy was made."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__()
        self._raw = raw
        self._encoder = isal_zlib.compressobj(3, isal_zlib.DEFLATED, 31)

    def write(self, data: Any) -> int:
        """Compress and write all of `data`."""
        self._write_all(self._encoder.compress(data))
        return len(data)

    def close(self) -> None:
        """Finish the gzip data and close the file."""
        if not self.closed:
            try:
                self._write_all(self._encoder.flush())
            finally:
                self._raw.close()
                super().close()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) or 0 :]
