"""Make the sample traces again: python sample_traces/make.py [NAME…] [-o FOLDER]

    reference_ddp          the reference loop on two cores, DDP over gloo, captured by perfkit (real)
    reference_slow_rank    the same with `--fault slow-rank:1:2x`: rank 1 really computes more (real)
    simulated_h100         4 ranks of a simulated H100 job in which rank 2 is slow, with truth.json (synthetic)

The real ones need torch and two idle cores. `ddp_gloo` is older and made by capture.py.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROFILE = ("--capture.profile_first", "8", "--capture.profile_active", "4", "--train.steps", "14")
SIMULATED = ("--ranks", "4", "--hardware", "h100", "--parallel", "dp=4", "--steps", "3", "--layers", "2",
             "--fault", "slow-rank:2:1.3x", "--seed", "7")  # fmt: skip


def capture(target: Path, *faults: str) -> None:
    """Train on two processes and keep the traces that perfkit captured."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
        words += ["perfkit.reference.train", "--train.folder", folder, *PROFILE]
        for fault in faults:
            words += ["--fault", fault]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
        subprocess.run(words, env=environment, check=True)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(folder).glob("store/traces/*/*/*/rank-*.json.gz")):
            raw = gzip.decompress(path.read_bytes()).replace(folder.encode(), b"runs/reference")
            with gzip.GzipFile(target / f"rank{int(path.name[5:10])}.json.gz", "wb", mtime=0) as packed:
                packed.write(raw)
        config = (Path(folder) / "config.json").read_text()
        (target / "config.json").write_text(config.replace(folder, "runs/reference"))


def simulate(target: Path) -> None:
    """Write the simulated set; the same seed gives the same bytes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "perfkit", "simulate", "trace", *SIMULATED, "-o", str(target)], check=True)


MAKERS = {
    "reference_ddp": capture,
    "reference_slow_rank": lambda target: capture(target, "slow-rank:1:2x"),
    "simulated_h100": simulate,
}


def main() -> int:
    """Make what was asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MAKERS))
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    args = parser.parse_args()
    for name in args.names or MAKERS:
        if name not in MAKERS:
            parser.error(f"no set {name!r}; there are {', '.join(MAKERS)}")
        MAKERS[name](args.output / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
