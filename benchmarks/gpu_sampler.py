"""What GPU counters cost: CPU time for 8 GPUs at 1 Hz, as a share of one core.

    python benchmarks/gpu_sampler.py [--gpus 8] [--seconds 60]

The driver is the tests' compiled stub under the real nvidia-ml-py, so the figure is perfkit's and ctypes' own
cost; the time that a real driver takes to answer comes on top and is recorded as gpu_driver_seconds_total. Start-up
(imports, finding the GPUs) is not counted: it is paid once per job. The parent does what the side process does: it
polls once a second and appends the rows of each GPU to the spool of the rank that uses it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from perfkit.capture.gpu_records import GpuRecords  # noqa: E402
from perfkit.capture.gpu_sampler import GpuBatch, GpuSampler  # noqa: E402
from perfkit.capture.segments import SpoolWriter, write_atomically  # noqa: E402
from tests.capture.stub_library import StubGpus  # noqa: E402


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(folder: Path, gpus: int) -> tuple[GpuRecords, GpuSampler, list[int]]:
    """Return what the side process of local rank 0 has, with one rank per GPU, and a list of rows per poll."""
    header = {"format": 1, "cluster": "c", "run": "r", "attempt": 0, "rank": 0, "world_size": gpus, "host": "h"}
    folders = [folder / f"c/r/attempt-0/rank-{rank:05d}" for rank in range(gpus)]
    for rank, own in enumerate(folders):
        own.mkdir(parents=True)
        write_atomically(own / "live/metrics.json", {"host": "h", "rank": rank, "gpu_uuid": f"GPU-{rank}"})
    sampler, counted = GpuSampler(), list[int]()
    poll = sampler.poll

    def counting() -> GpuBatch:
        batch = poll()
        if batch.rows:
            counted.append(len(batch.rows))
        return batch

    sampler.poll = counting  # type: ignore[method-assign]
    writer = SpoolWriter(folders[0], header)
    return GpuRecords(folders[0], header, writer.append, sampler=sampler), sampler, counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stub = StubGpus(Path(folder))
        stub.set(gpus=args.gpus)
        os.environ.update(stub.environ)
        records, sampler, counted = start(Path(folder), args.gpus)
        while not counted:
            records.turn()
            time.sleep(0.05)
        process = sampler._process
        assert process is not None
        cpu, wall, own = cpu_seconds(process.pid), time.monotonic(), time.process_time()
        counted.clear()
        while time.monotonic() < wall + args.seconds:
            records.turn()
            time.sleep(1)
        spent, passed, own = cpu_seconds(process.pid) - cpu, time.monotonic() - wall, time.process_time() - own
        rows = sum(counted)
        records.close()
    print(f"{args.gpus} GPUs at 1 Hz for {passed:.0f} s: {rows / passed:.0f} values/s")
    print(f"reader process  {100 * spent / passed:.2f} % of one core")
    print(f"its parent      {100 * own / passed:.2f} % of one core")


if __name__ == "__main__":
    main()
