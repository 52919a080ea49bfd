"""Measure what one core reaches: `python -m perfkit.reference.core_peak measured.json`.

A process of its own, because it must be pinned, with one thread, before torch starts: the demo gives every rank one
core, so that is the device whose peak its MFU is against. The file is that of `perfkit hardware --calibrate`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(path: str, seconds: float = 0.8) -> int:
    """Calibrate one core and write the measurement."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch

    torch.set_num_threads(1)
    from perfkit.hardware.calibration import calibrate
    from perfkit.hardware.overrides import save_measured

    for entry in calibrate(seconds=seconds, device="cpu"):
        save_measured({**entry, "device": f"{entry['device']} (one core)"}, Path(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
