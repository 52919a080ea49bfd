"""The side process of a rank: `python -m perfkit.capture.side`, started by perfkit.capture.sidecar.

It waits on a pipe from its trainer, samples the host, and has the spool compacted: when a segment is complete,
when a trace was exported, and when the trainer ends, however it ends. Compaction and compression run in a child
of their own (`perfkit.capture.compact`), so that this process stays small and a store that hangs cannot stop its
heartbeat. It ends by itself, at the latest `LINGER_SECONDS` after its trainer.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from perfkit.capture.guard import say
from perfkit.capture.segments import LIVE, SpoolWriter, write_atomically
from perfkit.capture.sidecar import environment

LINGER_SECONDS = 600.0
TURN_SECONDS = 1.0


class Side:
    """State of the process."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.parent = os.getppid()  # not always the trainer's: some interpreters are started by a launcher
        self.folder: Path | None = None
        self.spool: SpoolWriter | None = None
        self.sampler: Any = None
        self.gpus: Any = None
        self.others: list[Path] = []
        self.server: Any = None
        self.worker: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.finishing = False
        self.orphaned = False
        self.quiet = False
        self.ended_at: float | None = None
        self.failed: dict[str, Any] | None = None
        self._unread = b""
        self._sampled = self._told = 0.0

    # ---------------------------------------------------------------- the loop

    def run(self) -> int:
        """Work until the trainer has ended and everything is compacted."""
        os.set_blocking(0, False)
        while True:
            self._wait()
            self._listen()
            if self.folder is None:
                if self.orphaned:
                    return 0
                continue
            self._sample()
            self._work()
            self._tell()
            if self.finishing and self.worker is None and not self.wanted and not self.others:
                return self._end()
            if self.ended_at is not None and time.monotonic() - self.ended_at > LINGER_SECONDS:
                return self._end(f"the store did not answer in {LINGER_SECONDS:.0f} s")

    def _wait(self) -> None:
        quick = self.worker is not None or self.finishing
        if self.orphaned or self.finishing:
            time.sleep(0.02)
        else:
            select.select([0], [], [], 0.05 if quick else TURN_SECONDS)

    def _listen(self) -> None:
        if self.finishing:
            return
        try:
            while True:
                data = os.read(0, 65536)
                if not data:
                    self.orphaned = True
                    break
                self._unread += data
        except BlockingIOError:
            pass
        except OSError:
            self.orphaned = True
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        self.orphaned = self.orphaned or os.getppid() != self.parent
        if self.orphaned and self.folder is not None and not self.finishing:
            if not self.quiet:
                self._record_fault()
            self._finish()

    def _hear(self, message: dict[str, Any]) -> None:
        what = message["do"]
        if what in ("start", "follow"):
            self.options.update(message)
            if self.spool is not None:
                self.spool.close()
            self.folder, self.spool = Path(message["folder"]), None
            if what == "start":
                self._start()
            elif self.gpus is not None:
                self.gpus.follow(self.folder, message["header"])
        elif what == "compact":
            self.wanted = True
        elif what == "quiet":
            self.quiet = True  # the trainer has said that it could not finish
        elif what == "finish":
            self._finish()

    def _start(self) -> None:
        if self.options["host_seconds"] > 0:
            from perfkit.capture.host import HostSampler

            self.sampler = HostSampler(self.options["trainer"], whole_host=self.options["whole_host"])
        if self.options["gpu_seconds"] > 0 and self.options["whole_host"]:
            from perfkit.capture.gpu_records import GpuRecords

            seconds = self.options["gpu_seconds"]
            self.gpus = GpuRecords(self.folder, self.options["header"], self._append, interval_s=seconds)  # type: ignore[arg-type]
        if self.options["metrics_port"] is not None:
            from perfkit.capture.prometheus import serve_in_thread

            try:
                self.server = serve_in_thread(
                    Path(self.options["spool"]), self.options["metrics_host"], self.options["metrics_port"]
                )
                self._say({"metrics_port": self.server.server_address[1]})
            except OSError as error:
                self._say({"gave_up": "metrics endpoint", "reason": str(error), "next": "choose another metrics_port"})

    def _finish(self) -> None:
        self.finishing = self.wanted = True
        if self.gpus is not None:
            self.gpus.close()
            self.others = self.gpus.folders
        self.ended_at = time.monotonic()
        if self.spool is not None:
            with contextlib.suppress(OSError):
                self.spool.close()
            self.spool = None

    # ---------------------------------------------------------------- work

    def _append(self, batch: dict[str, Any]) -> None:
        try:
            if self.spool is None and self.folder is not None and self.folder.is_dir():
                self.spool = SpoolWriter(self.folder, {**self.options["header"], "side": True})
            if self.spool is not None:
                self.spool.append(batch)
        except OSError:  # the trainer meets the same disk and says so
            self.sampler = None

    def _sample(self) -> None:
        now = time.monotonic()
        if self.gpus is not None and not self.finishing:
            self.gpus.turn()
        if self.sampler is None or self.finishing or now - self._sampled < self.options["host_seconds"]:
            return
        self._sampled = now
        rows = self.sampler.sample()
        if rows:
            self._append({"counters": rows})
        if self.spool is not None and self.spool.age_seconds > 1200:
            self.spool.rotate()

    def _record_fault(self) -> None:
        now = time.time_ns()
        self._append({"lifecycle": [("fault", now, None, None, "ended without finish()", True, None)]})

    def _work(self) -> None:
        if self.worker is not None:
            if self.worker.poll() is None:
                return
            self._worked(self.worker)
            self.worker = None
        if self.wanted or self.others:
            folder = self.folder if self.wanted else self.others.pop()  # where GPU counters of other ranks are
            self.wanted = False
            command = [sys.executable, "-m", "perfkit.capture.compact", str(folder), self.options["store"]]
            command += ["--ingest-traces"] if self.options["ingest_traces"] else []
            quiet = subprocess.DEVNULL  # the job's log is not for tracebacks of ours
            self.worker = subprocess.Popen(
                command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=environment(), cwd="/"
            )

    def _worked(self, worker: subprocess.Popen[bytes]) -> None:
        said = worker.stdout.read() if worker.stdout else b""
        try:
            outcome = json.loads(said)
        except ValueError:
            outcome = {"reason": f"the compactor ended with {worker.returncode}"}
        self.failed = outcome if "reason" in outcome else None
        if self.failed is not None:
            spool = self.options["spool"]
            self.failed |= {
                "gave_up": "compaction",
                "next": f"records are safe: perfkit ingest {spool} --store {self.options['store']}",
            }
            if not self.orphaned:
                self._say(self.failed)

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told >= 5.0:
            self._told = now
            own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
            seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
            self._say({"cpu_seconds": seconds})
            with contextlib.suppress(OSError):
                heartbeat = {"pid": os.getpid(), "trainer": self.options["trainer"], "time_ns": time.time_ns()}
                write_atomically(self.folder / LIVE / "side.json", heartbeat | {"cpu_seconds": seconds})  # type: ignore[operator]

    def _end(self, reason: str | None = None) -> int:
        with contextlib.suppress(OSError):
            (self.folder / LIVE / "side.json").unlink()  # type: ignore[operator]
        if reason is not None:
            self.failed = {"reason": reason, "next": f"later: perfkit ingest {self.options['spool']}"}
        if self.orphaned and not self.quiet:
            header = self.options["header"]
            where = f"what it had recorded is in {self.options['store']}"
            if self.failed is not None:
                where = f"{self.failed['reason']}; {self.failed['next']}"
            say(f"rank {header['rank']} of {header['run']} ended without finish(); {where}")
        else:
            self._say({"done": True})
        return 0

    @staticmethod
    def _say(message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.write(1, json.dumps(message).encode() + b"\n")


def main() -> int:
    """Run the side process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its trainer has ended, not with the job's signals
    with contextlib.suppress(OSError):
        os.nice(10)
    return Side().run()


if __name__ == "__main__":
    sys.exit(main())
