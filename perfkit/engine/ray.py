"""Map a function over items on a Ray cluster: bounded, retrying, one failure per item.

    for outcome in RayEngine("10.0.0.1:6379").map(ingest_group, works, cost=size): ...

One task of one CPU per item, at most `AHEAD` times as many under way as the cluster has CPUs. Ray's own retries are
off: a task whose worker or node is lost is submitted again here, so that it is counted, moves to another node, and a
task that kills its worker each time is one item's error instead of an endless loop.

Files that tasks read and write must be reachable from every node: object storage or a shared file system. A task
starts in the folder of the driver where that exists, so that relative paths mean the same.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import perfkit
from perfkit.engine import base
from perfkit.engine.base import Item, Later, Outcome, Value, WorkerDied
from perfkit.engine.local import in_order, pickle_function
from perfkit.engine.worker import portable
from perfkit.errors import PerfkitError, UsageError

AHEAD = 2
CONNECT_SECONDS = 15.0
POLL_SECONDS = 5.0


class RayEngine:
    """Runs on a Ray cluster."""

    def __init__(self, address: str | None = None, *, max_attempts: int = 4) -> None:
        """Connect to `address` (host:port, ray://host:port, auto); without one, RAY_ADDRESS or a new local Ray.

        An item is tried `max_attempts` times if its worker or node is lost; one that raises is not tried again.
        """
        self._ray = _import_ray()
        self.max_attempts = max_attempts
        self.address = address or os.environ.get("RAY_ADDRESS")
        self._connected_here = not self._ray.is_initialized()
        if self._connected_here:
            _connect(self._ray, self.address)

    def close(self) -> None:
        """Disconnect, if the connection is this engine's own."""
        if self._connected_here and self._ray.is_initialized():
            self._ray.shutdown()

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

        Progress is reported when an item is done. Closing the iterator cancels what is under way.
        """
        listed = list(enumerate(items))
        if cost is not None:
            listed.sort(key=lambda entry: -cost(entry[1]))
        outcomes: Iterator[Outcome[Item, Value]] = self._run(pickle_function(function), listed, on_progress)
        return in_order(outcomes) if ordered else outcomes

    def _run(
        self, function: bytes, listed: list[tuple[int, Any]], on_progress: Callable[[Any, int], None] | None
    ) -> Iterator[Outcome[Any, Any]]:
        ray = self._ray
        call = ray.remote(max_retries=0, num_cpus=1, retry_exceptions=False)(_call)
        setting = ray.put((function, os.getcwd(), [entry or os.getcwd() for entry in sys.path], perfkit.__version__))  # noqa: PTH109
        waiting = deque((index, item, 1) for index, item in listed)
        running: dict[Any, tuple[int, Any, int]] = {}
        try:
            while waiting or running:
                limit = max(2, AHEAD * int(ray.cluster_resources().get("CPU", 1)))
                while waiting and len(running) < limit:
                    index, item, attempt = waiting.popleft()
                    try:
                        data = pickle.dumps(item)
                    except Exception as error:
                        yield Outcome(index, item, error=error, traceback=traceback.format_exc())
                        continue
                    running[call.remote(setting, data)] = index, item, attempt
                ready, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS) if running else ([], [])
                for reference in ready:
                    index, item, attempt = running.pop(reference)
                    try:
                        kind, value, text, progress = pickle.loads(ray.get(reference))
                    except ray.exceptions.RayError as error:
                        if attempt < self.max_attempts and not isinstance(error, ray.exceptions.TaskCancelledError):
                            waiting.append((index, item, attempt + 1))
                        else:
                            yield Outcome(index, item, error=_lost(error), attempts=attempt)
                        continue
                    if kind == "unusable":
                        raise UsageError(value, next_step=text)
                    if on_progress is not None and progress:
                        on_progress(item, progress)
                    if kind == "value":
                        yield Outcome(index, item, value=value, attempts=attempt)
                    else:
                        yield Outcome(index, item, error=value, attempts=attempt, traceback=text)
        finally:
            for reference in running:
                with suppress(Exception):  # the cluster may be gone
                    ray.cancel(reference, force=True)


def _call(setting: tuple[bytes, str, list[str], str], data: bytes) -> bytes:
    """Work on one item, in a worker of Ray; what comes of it is always bytes, never an exception."""
    function, folder, path, version = setting
    done = 0

    def count(increment: int) -> None:
        nonlocal done
        done += increment

    sys.path += [entry for entry in path if entry not in sys.path]
    import perfkit

    if perfkit.__version__ != version:
        problem = f"perfkit {perfkit.__version__} is installed on {socket.gethostname()}, and {version} here"
        return pickle.dumps(("unusable", problem, "install the same version on all nodes", 0))
    try:
        work = pickle.loads(function)
    except Exception as error:
        problem = f"a worker on {socket.gethostname()} cannot load the function: {type(error).__name__}: {error}"
        return pickle.dumps(("unusable", problem, "install perfkit and its extras on all nodes", 0))
    with suppress(OSError):
        os.chdir(folder)
    base.listen(count)
    try:
        value = base.finished(work(pickle.loads(data)))
        return pickle.dumps(("value", value, "", done))
    except MemoryError:
        raise
    except Exception as error:
        return pickle.dumps(("error", portable(error), traceback.format_exc(), done))
    finally:
        base.listen(None)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # without it Ray warns about a future default
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError(
            f"--engine ray needs Ray, which is not here ({error})", next_step="pip install 'perfkit[ray]'"
        ) from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    _check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None,
                 logging_level="ERROR")  # fmt: skip
    except Exception as error:
        raise PerfkitError(_why_not(error, address), next_step=_next_step(error)) from error


def _check_answers(address: str | None) -> None:
    """Ask the port first: Ray itself waits for a minute and then prints a page."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise PerfkitError(
            f"no Ray cluster answers at {address}: {error.strerror or error}",
            next_step="check --address; `ray status` on the head node shows it",
        ) from None


def _why_not(error: Exception, address: str | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "ersion mismatch" in str(error):
        return "the versions differ: " + " ".join(
            line for line in lines if "ersion mismatch" not in line or "Ray:" in line
        )
    return f"cannot connect to Ray{f' at {address}' if address else ''}: {lines[0] if lines else type(error).__name__}"


def _next_step(error: Exception) -> str:
    if "ersion mismatch" in str(error):
        return "install the cluster's versions of Ray and Python here"
    return "check --address; `ray status` on the head node shows it"


def _lost(error: Exception) -> WorkerDied:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return WorkerDied(
        f"the Ray worker that worked on it was lost ({type(error).__name__}: {lines[0] if lines else ''})",
        next_step="see whether the nodes have memory",
    )
