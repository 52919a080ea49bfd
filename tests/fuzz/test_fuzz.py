"""Damaged input: no crash, no hang, no wrong row. A short run here, 20,000 files and sanitizers when asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pytest

from perfkit.sources import scan
from perfkit.sources.kineto_fields import PLAN_WITH_ARGS
from tests.conftest import ROOT
from tests.fuzz.fuzz_ingest import run


def test_a_few_hundred_damaged_files():
    tally = run(1, 500)
    assert sum(tally.values()) == 500
    assert tally["verified"] > 50


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_twenty_thousand_damaged_files():
    command = [sys.executable, "-m", "tests.fuzz.fuzz_ingest", "--count", "20000", "--seed", "100000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


HARNESS = """
import importlib.machinery, importlib.util, json, random, sys
sys.path.insert(0, sys.argv[3])
loader = importlib.machinery.ExtensionFileLoader("_scan", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_scan", loader))
loader.exec_module(module)
spec = json.loads(sys.argv[2])
fields = [(scope, key.encode(), group, column) for scope, key, group, column in spec["fields"]]
plan = module.compile_plan(spec["groups"], fields, *spec["special"])
from tests.fuzz.mutate import build_event, damage

def padded(data):  # an exact allocation, so that a read beyond the promised padding is seen
    return bytearray(data + bytes(module.PADDING))

def scan_all(data):
    scan = module.begin(plan, 10**18, len(data))
    status, consumed = scan.feed(padded(data), 0, len(data), True)
    return status, scan.finish()[0]

def scan_in_slices(data, size):
    scan, start, status = module.begin(plan, 10**18, len(data)), 0, 1
    while start < len(data) and status in (0, 1):
        part = data[start : start + size]
        status, consumed = scan.feed(padded(part), 0, len(part), start + size >= len(data))
        size += 0 if consumed else size
        start += consumed
        if start + len(part) - consumed >= len(data):
            break
    return scan.finish()[0]

events = 0
for seed in range(int(sys.argv[4])):
    dice = random.Random(seed)
    text = ",".join(json.dumps(build_event(dice, n)) for n in range(dice.randint(0, 12))).encode()
    data = damage(text, dice)
    scan_in_slices(data, dice.randint(1, 1000))
    status, rows = scan_all(data)
    if status == 6:  # not UTF-8
        assert rows == 0
        status, rows = scan_all(data.decode("utf-8", "replace").encode())
    events += rows
print(events)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_c_scanner_is_clean_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    compiler = shutil.which("gcc")
    library = subprocess.run(
        [compiler or "false", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    )
    if compiler is None or not Path(library.stdout.strip()).is_absolute():
        if os.environ.get("PERFKIT_CI"):
            pytest.fail("CI installs gcc and libasan, and here they are missing")
        pytest.skip("needs gcc and libasan")
    built = tmp_path / "_scan.so"
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    command = [compiler, *flags, "-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}"]
    subprocess.run([*command, str(ROOT / "perfkit/sources/_scan.c"), "-o", str(built)], check=True)
    plan = PLAN_WITH_ARGS
    special = [plan.column("ph"), plan.column("raw_args"), plan.column("unknown_args")]
    groups = [[int(kind) for _, kind in group] for group in plan.groups]
    spec = json.dumps({"groups": groups, "fields": plan.fields, "special": special})
    environment = {**os.environ, "LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, str(built), spec, str(ROOT), "30000"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 30_000


def test_the_fuzzer_would_notice_a_wrong_row(monkeypatch):
    """A scanner that loses the last digit of a time must not pass."""
    if not scan.have_c_scanner():
        pytest.skip("needs two scanners")
    from perfkit.sources import kineto_tables

    true_piece = kineto_tables.make_piece

    def wrong(result, first):
        piece = true_piece(result, first)
        events = piece.tables["events"]
        blunt = [None if ns is None else ns // 10 * 10 + 1 for ns in events["dur_ns"].to_pylist()]
        piece.tables["events"] = events.set_column(
            events.column_names.index("dur_ns"), "dur_ns", pa.array(blunt, pa.int64())
        )
        return piece

    monkeypatch.setattr("perfkit.sources.kineto.make_piece", wrong)
    with pytest.raises(SystemExit, match="dur_ns"):
        run(1, 50)
