"""perfkit against HTA (`traceinsight`): equal where HTA is right, and why not where it is wrong.

HTA lives in a Python of its own ($PERFKIT_HTA_PYTHON, else a venv in pytest's cache): it pulls jupyterlab.

HTA keeps device work whose launch is in the trace and starts before the last step ends, and takes everything
with a stream for device work. `as_hta_sees` does the first; the second is HTA's mistake.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from perfkit.analysis.analyze import analyze, analyze_tables
from perfkit.analysis.classify import DEVICE_WORK
from perfkit.sources.kineto import read_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first run installs HTA and its 100 dependencies

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("traceinsight==0.6.1", "numpy", "pyarrow", "isal")
Times = dict[str, float]
HTA = "facebookresearch__HolisticTraceAnalysis/tests/data"
TORCHREC = "pytorch__torchrec/examples/golden_training"
NANOGPT = "KellerJordan__modded-nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook"
COMPILED = [f"{NANOGPT}/modded-nanogpt-{name}-gpu-rank-00-chrome-trace.json.gz" for name in ("current", "hook")]
RIGHT = [
    f"{HTA}/nccl_parser_config/nccl_data.json.gz",
    f"{HTA}/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    f"{HTA}/negative_queue_length_values_check/rank0.json.gz",
    f"{HTA}/timeline_analysis/sampled_rank-0.json.gz",
    f"{HTA}/trace_diff/control/control.json.gz",
    f"{HTA}/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "pytorch__kineto/tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "facebookresearch__param/et_replay/tests/inputs/linear_kineto.json.gz",
    "AMD-AGI__TraceLens/tests/traces/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
    *(f"{TORCHREC}/log/resnet18/*{n}.*.json" for n in (85866, 85867)),
    *(f"{TORCHREC}/trace/sst_long_a2a_optimizer_3/*_{n}.*.json" for n in range(29220, 29224)),
]


def without_hta(reason: str) -> None:
    """Skip, but fail where everything must be had."""
    (pytest.fail if os.environ.get("PERFKIT_CI") else pytest.skip)(f"no HTA: {reason}")


@pytest.fixture(scope="module")
def hta_python(request: pytest.FixtureRequest) -> str:
    if given := os.environ.get("PERFKIT_HTA_PYTHON"):
        return given
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("hta")
    python, done = folder / "bin" / "python", folder / " ".join(PACKAGES)
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *PACKAGES]
        installed = subprocess.run(command, capture_output=True, text=True)
        if installed.returncode:
            without_hta(installed.stderr[-500:])
        done.touch()
    return str(python)


@pytest.fixture(scope="module")
def ask_hta(hta_python: str) -> Callable[..., dict[str, Times]]:
    def ask(*paths: Path, how: str = "times") -> dict[str, Times]:
        command = [hta_python, str(Path(__file__).with_name("hta_script.py")), how, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr[-2000:]
        answer: dict[str, Times] = json.loads(done.stdout)
        return answer

    return ask


@pytest.fixture(scope="module")
def theirs(traces: Path, ask_hta: Callable[..., dict[str, Times]]) -> dict[str, Times]:
    """HTA's answers for all files, from one process: it takes seconds to start."""
    return ask_hta(*(one_file(traces, pattern) for pattern in (*RIGHT, *COMPILED)))


def one_file(traces: Path, pattern: str) -> Path:
    (path,) = traces.glob(pattern)
    return path


def as_hta_sees(path: Path, *, streams_are_devices: bool = False) -> pa.Table:
    """Return the events that HTA keeps; with its mistake, ops that carry a stream are kernels."""
    events = read_tables(path)["events"]
    classes = events["class"].cast(pa.utf8())
    device = np.array(pc.is_in(classes, pa.array(DEVICE_WORK)))
    host = np.array(pc.is_in(classes, pa.array(["op", "runtime", "range"])))
    correlation, start = (np.array(events[name].fill_null(-1)) for name in ("correlation", "start_ns"))
    end = start + np.array(events["dur_ns"].fill_null(0))
    is_step = host & np.array(pc.starts_with(events["name"].cast(pa.utf8()), "ProfilerStep").fill_null(False))
    last = end[is_step if is_step.any() else host].max()
    launched = np.isin(correlation, correlation[host & (start <= last) & (correlation > 0)])
    if streams_are_devices:
        mistaken = host & (np.array(events["stream"].fill_null(-1)) >= 0) & (start <= last)
        wrong = pa.chunked_array(
            [pa.array(np.where(mistaken, "compute", np.array(classes.fill_null("")))).dictionary_encode()]
        )
        events = events.set_column(events.column_names.index("class"), "class", wrong.cast(events["class"].type))
        events = events.set_column(
            events.column_names.index("device"), "device", pa.array([0] * len(events), pa.int32())
        )
    return events.filter(pa.array(~device | launched))


def our_times(events: pa.Table) -> tuple[dict[str, float], float | None]:
    totals = analyze_tables({"events": events}, window="trace").summary["totals"]
    non_compute = totals["exposed_comm_ns"] + totals["exposed_memcpy_ns"]
    times = {"idle": totals["idle_ns"], "compute": totals["compute_ns"], "non_compute": non_compute}
    return {k: v / 1e3 for k, v in {**times, "kernel": totals["window_ns"]}.items()}, totals["overlap"]


def disagreement(ours: Times, theirs: Times) -> float:
    return max(abs(ours[k] - theirs[k]) for k in ours) / theirs["kernel"]


@pytest.mark.parametrize("pattern", RIGHT)
def test_breakdown_and_overlap_agree_where_hta_is_right(traces: Path, theirs: dict[str, Times], pattern: str) -> None:
    path = one_file(traces, pattern)
    ours, overlap = our_times(as_hta_sees(path))
    assert disagreement(ours, theirs[str(path)]) < 1e-3
    if overlap is not None:
        assert 100 * overlap == pytest.approx(theirs[str(path)]["overlap"], abs=0.1)


@pytest.mark.parametrize("pattern", COMPILED)
def test_under_torch_compile_hta_counts_ops_of_the_host_as_device_work(
    traces: Path, theirs: dict[str, Times], pattern: str
) -> None:
    path = one_file(traces, pattern)
    wrong = theirs[str(path)]
    right = analyze(path, window="trace").summary["totals"]
    assert wrong["idle"] / wrong["kernel"] > 0.15
    assert right["idle_ns"] / right["window_ns"] < 0.03
    # the same two mistakes, made on purpose, give HTA's numbers
    mistaken, _ = our_times(as_hta_sees(path, streams_are_devices=True))
    assert disagreement(mistaken, wrong) < 1e-3


def test_an_analysis_hands_its_dump_to_hta(
    traces: Path, theirs: dict[str, Times], ask_hta: Callable[..., dict[str, Times]]
) -> None:
    path = one_file(traces, RIGHT[0])
    assert ask_hta(path, how="bridge")[str(path)] == theirs[str(path)]
