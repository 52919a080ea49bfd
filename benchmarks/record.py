"""Run a benchmark and keep what it prints in `benchmarks/results/`, with the command, the day and the machine.

    python benchmarks/record.py whatif
    python benchmarks/record.py ingest --rounds 4 --peers "perfkit,perfkit parquet,HTA load"

What follows the name goes to the benchmark. Paths of this machine are written as they are seen from the project.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"


def machine() -> str:
    """Describe what the figures depend on."""
    words = {"model name": "CPU", "MemTotal": ""}
    for file in ("/proc/cpuinfo", "/proc/meminfo"):
        for line in Path(file).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in words:
                words[name.strip()] = value.strip()
    memory_gb = int(words["MemTotal"].split()[0]) / 1e6
    virtual = ", virtual" if "hypervisor" in Path("/proc/cpuinfo").read_text() else ""
    return (
        f"{os.cpu_count()} cores ({words['model name']}{virtual}), {memory_gb:.0f} GB, {platform.system()} "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def without_paths(text: str) -> str:
    """Name files as they lie beside the project, not on this machine."""
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".").replace(f"{ROOT.parent}/", "../")
    return re.sub(r"(?<![\w.])/tmp/[\w./-]*/", "…/", text)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-") or not (HERE / f"{sys.argv[1]}.py").is_file():
        print(__doc__, file=sys.stderr)
        return 2
    name, *options = sys.argv[1:]
    load, started = os.getloadavg()[0], time.strftime("%Y-%m-%d")
    command = [sys.executable, str(HERE / f"{name}.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(without_paths(line).rstrip())
    if process.returncode:
        print(f"{name} ended with {process.returncode}; nothing was kept", file=sys.stderr)
        return process.returncode
    shown = shlex.join(["python", f"benchmarks/{name}.py", *(without_paths(option) for option in options)])
    head = [f"# {shown}", f"# {started}, {machine()}, load {load:.1f} before it", ""]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.txt").write_text("\n".join([*head, *lines]).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
