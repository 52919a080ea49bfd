"""Ranges: what other tools see. Kineto is in test_profiling; here a real NVTX tool attaches, as Nsight does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.capture.ranges import Ranges
from tests.conftest import IN_CI, ROOT

SCRIPT = """
import asyncio, sys, perfkit
pk = perfkit.init(run="r", store=sys.argv[1], side_process=False)
for _ in pk.data([1]):
    with pk.step(tokens=1), pk.span("forward"), pk.span("layer"):
        pass
try:
    with pk.event("checkpoint_save"), pk.span("forward"):
        raise KeyError
except KeyError:
    pass
async def task():
    with pk.span("in a task"):
        await asyncio.sleep(0)
asyncio.run(task())
pk.finish()
"""


def test_a_tool_sees_every_span_once_in_one_domain_with_registered_strings(tmp_path):
    pytest.importorskip("nvtx")
    compiler = shutil.which("gcc")
    if compiler is None:
        assert not IN_CI, "CI installs gcc"
        pytest.skip("needs gcc")
    tool, out = tmp_path / "tool.so", tmp_path / "out"
    source = Path(__file__).with_name("nvtx_tool.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tool), str(source)], check=True)
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(tool), "NVTX_TOOL_OUT": str(out)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
    seen = [line.partition(" ") for line in out.read_text().splitlines()]
    events = [("pop" if kind == "pop" else rest.partition(" ")[2]) for kind, _, rest in seen if kind != "register"]
    assert {rest.partition(" ")[0] for _, _, rest in seen} == {"perfkit"}
    data = ["perfkit.data", "pop"] * 2  # the second finds the end of the loader
    assert events == [
        *data[:2], "perfkit.step", "forward", "layer", "pop", "pop", "pop", *data[2:],
        "perfkit.checkpoint_save", "forward", "pop", "pop",
    ]  # fmt: skip
    registered = [rest for kind, _, rest in seen if kind == "register"]
    assert len(registered) == len(set(registered)) == 5


def test_without_a_tool_and_without_a_profiler_nothing_is_opened():
    ranges = Ranges()
    if os.environ.get("NVTX_INJECTION64_PATH"):
        pytest.skip("a tool is attached to the tests themselves")
    assert not ranges.watched()
    assert ranges.open("x") is None
