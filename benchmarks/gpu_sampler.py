"""What reading GPU counters costs: CPU time of the sampler's process for 8 GPUs at 1 Hz, as a share of one core.

    python benchmarks/gpu_sampler.py [--gpus 8] [--seconds 60]

The driver is the tests' compiled stub under the real nvidia-ml-py, so the figure is perfkit's and ctypes' own
cost; the time that a real driver takes to answer comes on top and is recorded as gpu_driver_seconds_total. Start-up
(imports, finding the GPUs) is not counted: it is paid once per job.
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

from perfkit.capture.gpu_sampler import GpuSampler  # noqa: E402
from tests.capture.stub_library import StubGpus  # noqa: E402


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stub = StubGpus(Path(folder))
        stub.set(gpus=args.gpus)
        os.environ.update(stub.environ)
        sampler = GpuSampler()
        rows = 0
        while rows == 0:
            rows += len(sampler.poll().rows)
            time.sleep(0.05)
        process = sampler._process
        assert process is not None
        cpu, wall, own = cpu_seconds(process.pid), time.monotonic(), time.process_time()
        rows = 0
        while time.monotonic() < wall + args.seconds:
            rows += len(sampler.poll().rows)
            time.sleep(1)
        spent, passed, own = cpu_seconds(process.pid) - cpu, time.monotonic() - wall, time.process_time() - own
        sampler.close()
    print(f"{args.gpus} GPUs at 1 Hz for {passed:.0f} s: {rows / passed:.0f} values/s")
    print(f"reader process  {100 * spent / passed:.2f} % of one core")
    print(f"its parent      {100 * own / passed:.2f} % of one core")


if __name__ == "__main__":
    main()
