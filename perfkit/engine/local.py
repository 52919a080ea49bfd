"""Map a function over items in local processes: bounded, retrying, one failure per item.

    for outcome in LocalEngine(workers=8).map(ingest_one, inputs, cost=size):
        ...

The most expensive items start first. A worker works on one item at a time and may be finishing the one before
(`Later`), so at most twice `workers` items are under way and a slow consumer stops the work. With one item or one
worker everything runs in this process, which costs nothing to start.

If a worker dies (killed, out of memory, segmentation fault), what it had is tried again at the end, alone,
with the machine to itself; only then is it reported as `WorkerDied`. The other items are not touched:
that is what concurrent.futures cannot do, whose pool breaks as a whole.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.engine import base
from perfkit.engine.base import Item, Later, Outcome, Value, WorkerDied
from perfkit.errors import UsageError

if TYPE_CHECKING:  # what only workers need is imported with the first of them
    import subprocess
    from multiprocessing.connection import Connection

SHARE = "PERFKIT_WORKER_CPUS"
"""Environment variable of a worker: how many CPUs are its own."""
_GRACE_SECONDS = 3.0
_WATCH_SECONDS = 0.2


class LocalEngine:
    """Runs in processes on this machine."""

    def __init__(
        self, workers: int | None = None, *, max_attempts: int = 2, max_memory_bytes: int | None = None
    ) -> None:
        """Set the number of processes (default: the CPUs that this process may use).

        `max_memory_bytes` bounds the resident memory of all workers together: above it, the worker with the
        youngest item is ended and its item is tried again alone, at the end. Needs /proc.
        """
        if workers is not None and workers < 1:
            raise UsageError(f"workers must be at least 1, is {workers}")
        if max_attempts < 1:
            raise UsageError(f"max_attempts must be at least 1, is {max_attempts}")
        if max_memory_bytes is not None and not Path("/proc/self/statm").exists():
            raise UsageError("a memory limit needs /proc, which this system does not have")
        self.workers = workers or available_cpus()
        self.max_attempts = max_attempts
        self.max_memory_bytes = max_memory_bytes
        self._early: tuple[bytes, list[_Worker]] = b"", []

    @contextmanager
    def hired(self, function: Callable[[Item], Value | Later[Value]], count: int) -> Iterator[None]:
        """Let the processes of a `map` of this function over about `count` items start while the items are found."""
        size, early = min(self.workers, count), list[_Worker]()
        try:
            if size > 1 and sys.executable:
                self._early = pickle_function(function), early
                early += (_Worker.start(self._early[0], threads_of(size)) for _ in range(size))
            yield
        finally:
            self._early = b"", []
            _dismiss(early)  # those that no `map` has taken

    def map(
        self,
        function: Callable[[Item], Value | Later[Value]],
        items: Iterable[Item],
        *,
        cost: Callable[[Item], float] | None = None,
        ordered: bool = False,
        on_progress: Callable[[Item, int], None] | None = None,
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield an outcome per item: as they finish, or in the order of the items if `ordered`.

        `on_progress(item, increment)` is called in this thread; the increments of an attempt that died are
        taken back. Closing the iterator, or an exception in the loop that consumes it, ends the workers.
        """
        listed = list(items)
        tasks = [_Task(index, item) for index, item in enumerate(listed)]
        if cost is not None:
            tasks.sort(key=lambda task: -cost(task.item))
        workers = min(self.workers, len(tasks))
        report = on_progress or (lambda item, increment: None)
        outcomes: Iterator[Outcome[Item, Value]]
        if workers <= 1 or not sys.executable:
            outcomes = _map_here(function, tasks, report)
        else:
            outcomes = _Crew(self, function, workers, report).run(tasks)
        return in_order(outcomes) if ordered else outcomes


def available_cpus() -> int:
    """CPUs that this process may use: its share if it is a worker, affinity, and the quota of a container."""
    if share := os.environ.get(SHARE):
        return int(share)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return cpus


def threads_of(workers: int) -> int:
    """Return how many threads each of so many processes may use."""
    return max(1, available_cpus() // workers)


@dataclass(slots=True)
class _Task:
    index: int
    item: Any
    attempts: int = 0
    progress: int = 0


def in_order(outcomes: Iterator[Outcome[Item, Value]]) -> Iterator[Outcome[Item, Value]]:
    """Hold outcomes back until their turn."""
    waiting: dict[int, Outcome[Item, Value]] = {}
    following = 0
    for outcome in outcomes:
        waiting[outcome.index] = outcome
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def _map_here(
    function: Callable[[Any], Any], tasks: list[_Task], report: Callable[[Any, int], None]
) -> Iterator[Outcome[Any, Any]]:
    for task in tasks:
        base.listen(lambda increment, item=task.item: report(item, increment))  # type: ignore[misc]  # a default binds
        try:
            outcome = Outcome(task.index, task.item, value=base.finished(function(task.item)))
        except (Exception, SystemExit) as error:  # as in a worker
            outcome = Outcome(task.index, task.item, error=error, traceback=traceback.format_exc())
        finally:
            base.listen(None)
        yield outcome


@dataclass(eq=False, slots=True)
class _Worker:
    """A worker process as its parent sees it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    lifeline: int
    task: _Task | None = None
    finishing: _Task | None = None
    """The task before, if its last part is still under way."""
    ready: bool = False
    over_memory: bool = False
    given: int = 0
    """When it got its task, as a count of the tasks given out."""

    @classmethod
    def start(cls, function: bytes, threads: int) -> _Worker:
        import subprocess
        from multiprocessing.connection import Connection

        from perfkit.engine import worker

        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # as multiprocessing does
                    "-c",
                    worker.start_command(theirs.fileno(), read_end),
                ],
                pass_fds=(theirs.fileno(), read_end),
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output belongs to the command: with --format json it is one document
                start_new_session=True,  # Ctrl-C goes to the parent alone, which ends them; see the lifeline
                env={**os.environ, "OMP_NUM_THREADS": str(threads), SHARE: str(threads)},
            )
        except BaseException:
            os.close(write_end)
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(read_end)
        started = cls(process, Connection(ours.detach()), write_end)
        with suppress(OSError):  # it may have died already; reading will tell
            started.connection.send_bytes(function)
        return started

    @property
    def busy(self) -> bool:
        """Say whether it holds anything."""
        return self.task is not None or self.finishing is not None

    def end(self) -> None:
        """Ask it to end; see `reap`."""
        with suppress(OSError):
            self.process.terminate()

    def reap(self, timeout: float = 0.0) -> int:
        """Wait for it, killing it if need be, and release what it held."""
        import subprocess

        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.connection.closed:
            self.connection.close()
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        return int(self.process.returncode)

    def resident_bytes(self) -> int:
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0


@dataclass(slots=True)
class _Crew:
    """The workers of one `map`."""

    engine: LocalEngine
    function: Callable[[Any], Any]
    size: int
    report: Callable[[Any, int], None]
    pickled: bytes = b""
    waiting: deque[_Task] = field(default_factory=deque)
    suspects: deque[_Task] = field(default_factory=deque)
    """Tasks whose worker died; each is tried again with nothing beside it."""
    workers: list[_Worker] = field(default_factory=list)
    finished: deque[Outcome[Any, Any]] = field(default_factory=deque)
    given: int = 0

    def run(self, tasks: list[_Task]) -> Iterator[Outcome[Any, Any]]:
        self.pickled = pickle_function(self.function)
        self.waiting.extend(tasks)
        function, early = self.engine._early
        if function == self.pickled:
            self.workers, early[:] = early[: self.size], early[self.size :]
        try:
            while True:
                self._hire()
                while self.finished:
                    yield self.finished.popleft()
                if not (self.waiting or self.suspects or any(w.busy for w in self.workers)):
                    return
                self._listen()
        finally:
            self._dismiss(self.workers)

    # ---------------------------------------------------------------- giving out work

    def _hire(self) -> None:
        """Keep as many workers as there is work for, and give each idle one its next task."""
        busy = sum(worker.busy for worker in self.workers)
        if self.waiting:
            wanted = min(self.size, sum(w.task is not None for w in self.workers) + len(self.waiting))
        else:
            wanted = busy if busy or not self.suspects else 1  # a suspect waits until it is alone
            if not busy:
                self._dismiss(self.workers[wanted:])
        while len(self.workers) < wanted:
            self.workers.append(_Worker.start(self.pickled, threads_of(self.size)))
        for each in [w for w in self.workers if w.task is None and w.ready]:
            queue = self.waiting or (self.suspects if not any(w.busy for w in self.workers) else None)
            if queue:
                self._give(each, queue.popleft())

    def _give(self, to: _Worker, task: _Task) -> None:
        try:
            data = pickle.dumps(task.item)
        except Exception as error:
            self._finish(task, error=error, traceback=traceback.format_exc())
            return
        task.attempts += 1
        task.progress = 0
        to.task = task
        self.given += 1
        to.given = self.given
        with suppress(OSError):  # a worker that died meanwhile is noticed when it is listened to
            to.connection.send_bytes(data)

    # ---------------------------------------------------------------- hearing of it

    def _listen(self) -> None:
        from multiprocessing.connection import wait

        limited = self.engine.max_memory_bytes is not None
        channels = {each.connection: each for each in self.workers}
        for channel in wait(list(channels), _WATCH_SECONDS if limited else None):
            each = channels[channel]  # type: ignore[index]  # `wait` is typed for sockets and handles too
            try:
                self._hear(each, pickle.loads(each.connection.recv_bytes()))
            except (EOFError, OSError):
                self._bury(each)
        if limited:
            self._watch_memory()

    def _hear(self, each: _Worker, message: tuple[Any, ...]) -> None:
        kind, task = message[0], each.task
        if kind == "ready":
            each.ready = True
            return
        if kind == "unusable":
            raise UsageError(
                f"a worker cannot load {self.function!r}: {message[1]}",
                next_step="define the function in a module that can be imported",
            )
        if kind == "finished":
            assert each.finishing is not None
            task, each.finishing = each.finishing, None
            self._conclude(task, pickle.loads(message[1]))
            return
        assert task is not None, kind
        if kind == "progress":
            task.progress += message[1]
            self.report(task.item, message[1])
            return
        each.task = None
        if kind == "finishing":
            each.finishing = task
        else:
            self._conclude(task, message)

    def _conclude(self, task: _Task, message: tuple[Any, ...]) -> None:
        if message[0] == "no memory":
            self._try_again(task, MemoryError("out of memory"))
        elif message[0] == "value":
            self._finish(task, value=message[1])
        else:
            self._finish(task, error=message[1], traceback=message[2])

    def _bury(self, dead: _Worker) -> None:
        code = dead.reap(_GRACE_SECONDS)
        self.workers.remove(dead)
        if not dead.ready:
            raise WorkerDied(f"a worker process ended while starting ({_cause(code)})")
        cause = "it needed more memory than allowed" if dead.over_memory else _cause(code)
        error = WorkerDied(
            f"the process that worked on it died: {cause}", next_step="see whether the machine has memory"
        )
        for task in (dead.finishing, dead.task):
            if task is not None:
                self._try_again(task, error)

    def _try_again(self, task: _Task, error: BaseException) -> None:
        if task.progress:
            self.report(task.item, -task.progress)
        if task.attempts < self.engine.max_attempts:
            self.suspects.append(task)
        else:
            self._finish(task, error=error)

    def _finish(self, task: _Task, **what: Any) -> None:
        self.finished.append(Outcome(task.index, task.item, attempts=max(1, task.attempts), **what))

    def _watch_memory(self) -> None:
        busy = [each for each in self.workers if each.busy]
        limit = self.engine.max_memory_bytes or 0
        if busy and sum(each.resident_bytes() for each in busy) > limit:
            youngest = max(busy, key=lambda each: each.given)
            youngest.over_memory = True
            youngest.process.kill()

    def _dismiss(self, some: list[_Worker]) -> None:
        _dismiss(some)
        self.workers = [each for each in self.workers if each not in some]


def _dismiss(workers: Iterable[_Worker]) -> None:
    listed = list(workers)
    for each in listed:
        each.end() if each.busy or not each.ready else each.connection.close()
    for each in listed:
        each.reap(_GRACE_SECONDS)


def pickle_function(function: Callable[[Any], Any]) -> bytes:
    """Pickle a function for another process, or say why that cannot be."""
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise UsageError(
            f"{function!r} cannot be sent to another process: {error}",
            next_step="define it at the top level of a module, or use one worker",
        ) from None
    if b"c__main__\n" in pickle.dumps(function, protocol=0):
        raise UsageError(
            f"{function!r} is defined in __main__, which workers do not import",
            next_step="define it in a module, or use one worker",
        )
    return data


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        return f"{name} (out of memory?)" if name == "SIGKILL" else name
    return f"signal {-code}"
