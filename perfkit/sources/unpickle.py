"""Load pickles of plain data (dicts, lists, text, numbers) that nobody vouches for.

    load_plain_pickles(paths) -> one Loaded per path, in order

A pickle is a program. Here `find_class` always refuses, so no global is ever looked up, and the program runs in a
child process with a limit on memory and CPU time: a string that claims a terabyte, or a memo that grows without end,
kills the child and costs one file. The child answers with JSON, so nothing that it built reaches this process.
One child serves many files; it is started again after a file that killed it.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY_LIMIT_BYTES = 4 << 30
CPU_LIMIT_SECONDS = 30
DEFAULT_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Loaded:
    """What came of one file: its content, or the reason why not."""

    path: Path
    content: Any = None
    problem: str | None = None


class PlainUnpickler(pickle.Unpickler):
    """An unpickler for data without classes or functions."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every global."""
        raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}; plain data needs no global")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to something outside."""
        raise pickle.UnpicklingError("refused: the pickle refers to objects outside of itself")


def load_plain_pickles(
    paths: Sequence[Path], *, max_bytes: int = DEFAULT_MAX_BYTES, cpu_seconds: int = CPU_LIMIT_SECONDS
) -> Iterator[Loaded]:
    """Yield the content of each file; a file that is refused, broken or deadly gives a problem instead."""
    rest = list(paths)
    while rest:
        answered = 0
        with _start_child(rest, max_bytes, cpu_seconds) as child:
            assert child.stdout is not None
            for line in child.stdout:
                answer = json.loads(line)
                yield Loaded(rest[answered], answer.get("content"), answer.get("problem"))
                answered += 1
        if answered < len(rest):  # the child died on this file
            yield Loaded(
                rest[answered],
                problem=f"reading it took more than {MEMORY_LIMIT_BYTES >> 30} GB or {cpu_seconds} s of CPU,"
                " or broke the reader; it is damaged or hostile",
            )
            answered += 1
        rest = rest[answered:]


def _start_child(paths: list[Path], max_bytes: int, cpu_seconds: int) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, str(max_bytes), str(cpu_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps([str(path) for path in paths]))
    child.stdin.close()
    return child


def _answer(path: str, max_bytes: int) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            return {"problem": f"larger than {max_bytes} bytes"}
        return {"content": PlainUnpickler(io.BytesIO(data)).load()}
    except (MemoryError, RecursionError) as error:
        return {"problem": f"refused: too large or too deep ({type(error).__name__})"}
    except OSError as error:
        return {"problem": error.strerror or str(error)}
    except Exception as error:  # a damaged pickle can raise anything
        return {"problem": f"not a plain pickle: {error}"}


def _serve() -> None:
    """Answer for the paths on standard input, one JSON line each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    max_bytes, cpu_seconds = int(sys.argv[1]), int(sys.argv[2])
    for path in json.load(sys.stdin):
        used_seconds = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used_seconds + cpu_seconds, resource.RLIM_INFINITY))
        answer = _answer(path, max_bytes)
        try:
            text = json.dumps(answer)
        except (
            TypeError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as error:  # sets, bytes, keys that are no text, cycles
            text = json.dumps({"problem": f"not plain data: {error}"})
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
