"""The trainer's end of the side process: start it, tell it things, never wait for it.

Lines of JSON go both ways through pipes that do not block: what does not fit is dropped, what has not come is
not waited for. The process is started with exec (never a bare fork, which a process with threads and a CUDA
context does not survive), in a session of its own, so that Ctrl-C and a launcher's kill of the trainer leave it
time to compact.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.capture.guard import describe

if TYPE_CHECKING:
    from perfkit.capture.recorder import Recorder


class Sidecar:
    """Handle of the side process."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.cpu_seconds: float | None = None
        self.metrics_port: int | None = None
        self._done = False

    def start(self, folder: Path) -> None:
        """Start the process for a rank's folder, or tell it that the folder has changed."""
        if not self._recorder.settings.side_process or not self._recorder.guard.ok("side process"):
            return
        if self._process is not None:
            self.send({"do": "follow", "folder": str(folder), "header": self._recorder.writer.header()})
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perfkit.capture.side"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
                cwd="/",
                start_new_session=True,
            )
            for pipe in (self._process.stdin, self._process.stdout):
                os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]
        except (OSError, ValueError) as error:
            self._recorder.guard.give_up("side process", describe(error), f"compact later: perfkit ingest {folder}")
            return
        self.send({"do": "start", "folder": str(folder), "header": self._recorder.writer.header(), **self._options()})

    def _options(self) -> dict[str, Any]:
        settings, who = self._recorder.settings, self._recorder.identity
        return {
            "store": settings.store, "spool": settings.spool, "trainer": os.getpid(),
            "host_seconds": settings.host_seconds, "gpu_seconds": settings.gpu_seconds,
            "ingest_traces": settings.ingest_traces,
            "metrics_port": settings.metrics_port if who.local_rank == 0 else None,
            "metrics_host": settings.metrics_host, "whole_host": who.local_rank == 0,
        }  # fmt: skip

    def send(self, message: dict[str, Any]) -> bool:
        """Send a line if the pipe takes it at once."""
        if self._process is None:
            return False
        try:
            os.write(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
        except (OSError, ValueError) as error:
            if not isinstance(error, BlockingIOError):
                self._let_go()
                self._recorder.guard.give_up(
                    "side process", "it has ended", "records stay in the spool; `perfkit ingest` takes them from there"
                )
            return False
        return True

    def listen(self) -> None:
        """Take what the process has said."""
        if self._process is None:
            return
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._process.stdout.fileno(), 65536):  # type: ignore[union-attr]
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        self.cpu_seconds = message.get("cpu_seconds", self.cpu_seconds)
        self.metrics_port = message.get("metrics_port", self.metrics_port)
        self._done = self._done or bool(message.get("done"))
        if "gave_up" in message:
            part, reason = message["gave_up"], str(message.get("reason"))
            self._recorder.guard.give_up(part, reason, message.get("next", ""), cause=message.get("errno"))

    def finish(self, deadline: float) -> None:
        """Ask for the last compaction and wait for it, but not beyond the deadline: it goes on without us."""
        if not self.send({"do": "finish"}):
            return
        while not self._done and self._process is not None and time.monotonic() < deadline:
            self.listen()
            if self._process.poll() is not None:
                self.listen()
                break
            time.sleep(0.01)
        if self._done:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, min(1.0, deadline - time.monotonic())))  # type: ignore[union-attr]
        self._let_go()

    def _let_go(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()  # type: ignore[union-attr]
        if process.poll() is None:
            process.returncode = 0  # it goes on by itself; no ResourceWarning about that

    def leave(self) -> None:
        """In a forked child: close our copies of the pipes, so that the process sees its trainer end."""
        self._let_go()


def environment() -> dict[str, str]:
    """Return the environment of a helper process: perfkit importable, one thread, no capture of its own."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    ours = ("_INJECTION64_PATH", "PERFKIT_RUN")  # neither tools that watch the trainer nor `perfkit run` follow us here
    inherited = {name: value for name, value in os.environ.items() if not name.endswith(ours)}
    return {
        **inherited,
        "PYTHONPATH": package if not path else f"{package}{os.pathsep}{path}",
        "PYTHONSAFEPATH": "1",
        "PERFKIT": "0",
        "OMP_NUM_THREADS": "1",
    }
