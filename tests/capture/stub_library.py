"""Compile the NVML stub and give the environment in which a process finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")


def build_stub(folder: Path, *flags: str) -> Path:
    """Compile libnvidia-ml.so.1 into a folder and return the folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    library = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wl,-soname,libnvidia-ml.so.1",
        *flags,
        "-o",
        str(library),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return folder


class StubGpus:
    """The stub in a folder of its own, with its control file."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._control = folder / "control"
        self._control.write_text("")
        build_stub(folder, *flags)
        self.environ = os.environ | {"LD_LIBRARY_PATH": str(folder), "NVML_STUB": str(self._control)}

    def set(self, **settings: int | str) -> None:
        """Change what the driver does from its next call on."""
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        fresh = self._control.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._control)
