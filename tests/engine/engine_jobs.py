"""Functions for test_local.py to send to workers: they must be importable there."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from perfkit.engine.base import Later, report_progress
from perfkit.engine.local import available_cpus


def square(x):
    return x * x


def where(x):
    return os.getpid()


def environment(x):
    threads = os.environ.get("OMP_NUM_THREADS"), available_cpus()
    return threads, getattr(sys.modules["__main__"], "__file__", None)


def fail_on_odd(x):
    if x % 2:
        raise ValueError(f"{x} is odd")
    return x


def die_on(x):
    kind, value = x
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "exit":
        os._exit(7)
    return value


def die_once(x):
    marker, dies = x
    if dies and not Path(marker).exists():
        Path(marker).write_text("")
        report_progress(5)
        time.sleep(0.1)
        report_progress(5)
        os.kill(os.getpid(), signal.SIGKILL)
    report_progress(3)
    return "survived"


def running_beside(x):
    """Return how many others ran at the same time; the first attempt of a victim dies."""
    folder, name, victim = x
    mine = Path(folder, f"running-{name}")
    mine.write_text("")
    try:
        if victim and not Path(folder, "died").exists():
            Path(folder, "died").write_text("")
            mine.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        return len(list(Path(folder).glob("running-*"))) - 1
    finally:
        mine.unlink()


def order_of_start(x):
    folder, name = x
    with Path(folder, "log").open("a") as log:
        log.write(f"{name}\n")


def report(x):
    for _ in range(x):
        report_progress(1)


def raise_system_exit(x):
    sys.exit("enough")


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raise_unpicklable(x):
    raise Unpicklable("this", "that")


def return_unpicklable(x):
    return lambda: x


def no_memory(x):
    if x == "greedy":
        raise MemoryError
    return x


def print_something(x):
    sys.stdout.write("noise on standard output\n")  # in one piece: two workers write at once
    return x


def wait_for_the_end(x):
    """Say who is working, then wait; on the way out, leave a note."""
    folder, name = x
    Path(folder, f"pid-{name}").write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        Path(folder, f"cleaned-{name}").write_text("")


def grow(x):
    if not x:
        time.sleep(0.05)
        return 0
    held = bytearray(x)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(600)
    return len(held)


def finish_when_the_next_began(x):
    """Leave a note at the start; what is left for later waits for the note of another item."""
    folder, name, other = x
    Path(folder, f"began-{name}").write_text("")

    def finish():
        end = time.monotonic() + 300
        while not Path(folder, f"began-{other}").exists() and time.monotonic() < end:
            time.sleep(0.01)
        return name, Path(folder, f"began-{other}").exists()

    return Later(finish)


def later(x):
    """Do at the end what x says."""

    def finish():
        if x == "raise":
            raise ValueError("at the end")
        if x == "no memory":
            raise MemoryError
        if x == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return Later(finish)


def wait_for_go(x):
    """Say that it started, and wait until the test says go."""
    folder, name = x
    Path(folder, f"started-{name}-{os.getpid()}").write_text("")
    end = time.monotonic() + 300
    while not Path(folder, "go").exists() and time.monotonic() < end:
        time.sleep(0.05)
    return name
