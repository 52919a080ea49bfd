"""How fast traces become columns, against what people use today; one table from one run.

    python benchmarks/ingest.py                     # the largest real traces and a 500 MB file
    python benchmarks/ingest.py --rounds 3 --peers "perfkit,perfkit parquet,HTA load"
    python benchmarks/quiet.py ingest.reader python benchmarks/ingest.py     # on a machine that does other things too
    python benchmarks/ingest.py --memory            # peak RSS on a 2 GB rank, plain and gzipped

Every measurement is a process of its own that imports first and then reads once, so that start-up is not
counted and peak RSS is the reader's. Rounds are interleaved (all tools, then all again) and the best wall and the
best CPU time of each are printed: this is a shared machine. Each tool reads a small file twice in a row: a virtual
machine gives freed memory back to its host, and who comes next has to wait for it. Ratios are of these times in this
run: `x wall` and `x CPU` against HTA's load, which is what TraceAnalysis() does per file, and `x reader` of wall times
against its JSON reader alone, the faster of its two measures. `x CPU` is of the CPU time of all threads, whatever
the number of cores: the work that is saved, where `x wall` is the time that is saved. MB/s and events/s are by wall
time.

What is compared, as equally as the tools allow:
  columns    all events as typed columns in memory. perfkit: every table, dictionary-encoded. json, orjson:
             parsed, then the same event columns as pandas. msgspec: typed structs, then Arrow columns.
             HTA: `HTA load` is what TraceAnalysis() does per file, with its joins (parse_trace_file);
             `HTA reader` is its JSON reader alone (parse_trace_dataframe), with its default arguments.
  parquet    the same on disk, through `perfkit.ingest`. HTA writes nothing: its times are the same.
`1 core` pins the process to one CPU; `2 cores` does not. OpenBLAS, which numpy loads and nobody here needs, gets one
thread for everybody: it searches for work on all cores while the measurement begins.
Stores are removed at the end: a file system that has just deleted many files is slow to make new ones.

HTA is installed as `traceinsight` (its name on PyPI) into a venv of its own under the cache folder; orjson
and msgspec go into another one. Files: $PERFKIT_TRACES or ../shared/traces; made ones go to the cache.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("PERFKIT_BENCH_CACHE", Path(tempfile.gettempdir()) / "perfkit-bench"))
TRACES = Path(os.environ.get("PERFKIT_TRACES", ROOT.parent / "shared" / "traces"))
PACKAGES = {"hta": ["traceinsight==0.6.1"], "peers": ["orjson", "msgspec", "pandas", "pyarrow", "numpy"]}

# ------------------------------------------------------------------ the readers, each run in its own process

TWICE_BELOW_BYTES = 100 << 20
READER_MARK = "ingest.reader"
"""In the command line of every reader, for benchmarks/quiet.py."""

COMMON = """
import json, os, resource, sys, time
path, cores, extra = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
if cores == 1:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def unpacked():
    if path.endswith(".gz"):
        import gzip
        return gzip.open(path).read()
    return open(path, "rb").read()
def timed(function):
    wall, cpu = time.perf_counter(), time.process_time()
    events = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            rss = int(line.split()[1]) * 1024
    print(json.dumps({"wall": wall, "cpu": cpu, "rss": rss, "events": events}))
KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur"]
ARGS = ["External id", "correlation", "stream", "device", "Input Dims", "Input type", "Sequence number", "bytes"]
"""

READERS = {
    "perfkit": (
        "perfkit",
        """
from perfkit.cli.lean import leave_out_what_takes_long
leave_out_what_takes_long()  # as `perfkit ingest` does
from pathlib import Path
from perfkit.sources import kineto
from perfkit.sources.base import Input, ReadOptions
import pyarrow.parquet  # imports are not counted for anyone
def run():
    file = Path(path)
    packed = "gzip" if path.endswith(".gz") else "none"
    given = Input(path, "kineto", file, file.stat().st_size, "", packed)
    reading = kineto.read(given, ReadOptions(threads=cores))
    kept = [chunk for chunk in reading]
    return reading.parts[0].num_events
timed(run)
""",
    ),
    "perfkit parquet": (
        "perfkit",
        """
import tempfile
from perfkit.cli.lean import leave_out_what_takes_long
leave_out_what_takes_long()  # as `perfkit ingest` does
import perfkit
from perfkit.sources import ingest as _, kineto
import pyarrow.parquet  # imports are not counted for anyone
folder = tempfile.mkdtemp(dir=extra[0])
def run():
    return perfkit.ingest(path, store=folder, workers=cores).num_events
timed(run)
""",
    ),
    "json": (
        "peers",
        """
import pandas as pd
def run():
    document = json.loads(unpacked())
    events = document["traceEvents"] if isinstance(document, dict) else document
    columns = {key: [event.get(key) for event in events] for key in KEYS}
    args = [event.get("args") or {} for event in events]
    columns.update({key: [a.get(key) for a in args] for key in ARGS})
    frame = pd.DataFrame(columns)
    return len(frame)
timed(run)
""",
    ),
    "orjson + pandas": (
        "peers",
        """
import orjson, pandas as pd
def run():
    document = orjson.loads(unpacked())
    events = document["traceEvents"] if isinstance(document, dict) else document
    columns = {key: [event.get(key) for event in events] for key in KEYS}
    args = [event.get("args") or {} for event in events]
    columns.update({key: [a.get(key) for a in args] for key in ARGS})
    frame = pd.DataFrame(columns)
    return len(frame)
timed(run)
""",
    ),
    "msgspec": (
        "peers",
        """
import msgspec, pyarrow as pa
from typing import Any
Args = msgspec.defstruct("Args", [("a%d" % i, Any, None) for i in range(len(ARGS))], gc=False,
                         rename={"a%d" % i: key for i, key in enumerate(ARGS)})
Event = msgspec.defstruct("Event", [(key, Any, None) for key in KEYS] + [("args", Args | None, None)], gc=False)
Trace = msgspec.defstruct("Trace", [("traceEvents", list[Event])], gc=False)
decoder, listed = msgspec.json.Decoder(Trace), msgspec.json.Decoder(list[Event])
def run():
    data = unpacked()
    events = listed.decode(data) if data.lstrip()[:1] == b"[" else decoder.decode(data).traceEvents
    columns = {}
    for key in ("ts", "dur"):
        columns[key] = pa.array([getattr(e, key) for e in events], pa.float64())
    for key in ("ph", "cat", "name"):
        columns[key] = pa.array([getattr(e, key) for e in events], pa.utf8())
    for i, key in enumerate(ARGS):
        values = [getattr(e.args, "a%d" % i) if e.args is not None else None for e in events]
        columns[key] = pa.array([None if v is None else v if type(v) is int else str(v) for v in values]
                                if all(v is None or type(v) is int for v in values)
                                else [None if v is None else str(v) for v in values])
    return len(pa.table(columns))
timed(run)
""",
    ),
    "HTA reader": (
        "hta",
        """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
def run():
    result = parse_trace_dataframe(path, ParserConfig.get_default_cfg())
    return len(result[1])
timed(run)
""",
    ),
    "HTA load": (
        "hta",
        """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace import parse_trace_file
def run():
    return len(parse_trace_file(path)[1])
timed(run)
""",
    ),
}


def venv(name: str) -> Path:
    """Python of a venv with the packages of a peer."""
    if name == "perfkit":
        return Path(sys.executable)
    folder = CACHE / f"venv-{name}"
    if not (folder / "done").exists():
        print(f"installing {', '.join(PACKAGES[name])} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [folder / "bin/pip", "install", "--quiet", *PACKAGES[name]], check=True, stderr=subprocess.DEVNULL
        )
        (folder / "done").touch()
    return folder / "bin/python"


def measure(reader: str, path: Path, cores: int, stores: str) -> dict[str, float] | None:
    """Read once in a process of its own; None if the tool fails."""
    where, code = READERS[reader]
    environment = {**os.environ, "PYTHONPATH": str(ROOT) if where == "perfkit" else "", "OPENBLAS_NUM_THREADS": "1"}
    command = [venv(where), "-c", f"# {READER_MARK}\n{COMMON}{code}", str(path), str(cores), stores]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{reader} failed on {path.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


# ------------------------------------------------------------------ files


def repeat_trace(source: Path, target: Path, size: int) -> Path:
    """Repeat the events of a real trace with shifted times until the file has `size` bytes."""
    if target.exists() and target.stat().st_size >= size:
        return target
    text = gzip.decompress(source.read_bytes())
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = text.rindex(b"]")
    # ids are shifted too: repeated correlation ids would make HTA's joins explode, which no real trace does
    shift = re.compile(rb'("(?:(ts)|[Ee]xternal id|correlation|id)":\s*)(\d+)')
    with target.open("wb") as file:
        file.write(text[:start])
        for copy in range(1 + size // (end - start)):
            body = shift.sub(lambda m, k=copy: m[1] + str(int(m[3]) + k * 10**8).encode(), text[start:end])
            file.write((b"," if copy else b"") + body)
        file.write(text[end:])
    return target


def compress(path: Path) -> Path:
    """Gzip a file beside it."""
    target = path.with_name(path.name + ".gz")
    if not target.exists():
        with path.open("rb") as source, gzip.open(target, "wb", 1) as packed:
            while block := source.read(1 << 24):
                packed.write(block)
    return target


def uncompressed_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    with gzip.open(path) as file:
        total = 0
        while block := file.read(1 << 24):
            total += len(block)
    return total


def pick_files(size: int) -> list[Path]:
    """Unpack the largest real traces into the cache as .json, and one of them repeated to `size`."""
    hta = TRACES / "facebookresearch__HolisticTraceAnalysis/tests/data/trace_diff"
    real = [hta / "control/control.json.gz", TRACES / "pytorch__kineto/tb_plugin/samples/resnet50_num_workers_0"]
    real[1] = next(real[1].glob("*.gz"))
    files = []
    for source in real:
        target = CACHE / source.name.removesuffix(".gz")
        if not target.exists():
            target.write_bytes(gzip.decompress(source.read_bytes()))
        files.append(target)
    big = repeat_trace(real[0], CACHE / f"repeated-{size >> 20}MB.json", size)
    return [*files, big, compress(big)]


# ------------------------------------------------------------------ tables

RATIOS = (("HTA load", "wall"), ("HTA load", "cpu"), ("HTA reader", "wall"))


COLUMNS = (
    f"{'':18}{'cores':>6}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}{'MB/s':>8}{'events/s':>13}"
    f"{'x wall':>9}{'x CPU':>8}{'x reader':>10}"
)


def compare(readers: list[str], files: list[Path], rounds: int, stores: str) -> None:
    for path in files:
        size = uncompressed_size(path)
        runs = [(reader, cores) for reader in readers for cores in ((1, 2) if reader.startswith("perfkit") else (1,))]
        best: dict[tuple[str, int], dict[str, float]] = {}
        for _ in range(rounds):
            for run in (run for run in runs for _ in range(2 if size < TWICE_BELOW_BYTES else 1)):
                if result := measure(run[0], path, run[1], stores):
                    have = best.setdefault(run, result)
                    best[run] = {name: min(value, result[name]) for name, value in have.items()}
        print(
            f"\n{path.name}: {size / 1e6:.0f} MB of JSON, {path.stat().st_size / 1e6:.0f} MB stored, best of {rounds}"
        )
        print(COLUMNS)
        for (reader, cores), own in best.items():
            ratios = [_ratio(best.get((peer, 1)), own, by) for peer, by in RATIOS]
            print(
                f"{reader:18}{cores:>6}{own['wall']:>9.3f}{own['cpu']:>9.3f}{own['rss'] / 1e6:>9.0f}"
                f"{size / 1e6 / own['wall']:>8.0f}{own['events'] / own['wall']:>13,.0f}"
                f"{ratios[0]:>9}{ratios[1]:>8}{ratios[2]:>10}"
            )


def _ratio(peer: dict[str, float] | None, own: dict[str, float], by: str) -> str:
    return f"{peer[by] / own[by]:.1f}" if peer else "–"


def memory(size: int, stores: str) -> None:
    source = TRACES / "facebookresearch__HolisticTraceAnalysis/tests/data/trace_diff/control/control.json.gz"
    big = repeat_trace(source, CACHE / f"repeated-{size >> 20}MB.json", size)
    print(f"{'ingest to parquet':30}{'wall s':>9}{'peak MB':>9}{'MB/s':>8}")
    for path in (big, compress(big)):
        result = measure("perfkit parquet", path, 2, stores)
        if result:
            rate = uncompressed_size(path) / 1e6 / result["wall"]
            print(f"{path.name:30}{result['wall']:>9.2f}{result['rss'] / 1e6:>9.0f}{rate:>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size-mb", type=int, default=500)
    parser.add_argument("--peers", default=",".join(READERS), help="comma-separated readers")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files with this in their name")
    parser.add_argument("--memory", action="store_true", help="peak RSS on a 2 GB rank")
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as stores:
        if args.memory:
            memory(2 << 30, stores)
            return
        files = pick_files(args.size_mb << 20)
        chosen = [file for file in files if args.only in file.name]
        compare(args.peers.split(","), chosen, args.rounds, stores)


if __name__ == "__main__":
    main()
