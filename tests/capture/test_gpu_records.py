"""GPU counters of a recorded run: real recorder, real side process, the stub driver below nvidia-ml-py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perfkit.capture import gpus as gpu_names
from perfkit.capture.gpu_records import GpuRecords, own_gpu
from perfkit.capture.gpu_sampler import GpuSampler
from perfkit.capture.segments import SpoolWriter, write_atomically
from perfkit.errors import CorruptInput
from perfkit.sources.spool import compact_folder, read_segment
from perfkit.store import Store
from tests.capture.stub_library import StubGpus
from tests.conftest import ROOT

pytest.importorskip("pynvml")
HEADER = {"format": 1, "cluster": "c", "run": "r", "attempt": 0, "rank": 0, "world_size": 3, "host": "h"}


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    stub = StubGpus(tmp_path / "driver")
    for name, value in stub.environ.items():
        monkeypatch.setenv(name, value)
    return stub


def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def in_the_spool(store: Path, name: str) -> list[dict]:
    """Rows of a counter that have not been compacted yet."""
    rows = []
    for path in (store / "spool").rglob("*.spool"):
        try:
            tables = read_segment(path).tables
        except (CorruptInput, FileNotFoundError):  # just being opened, or just compacted
            continue
        rows += [row for row in tables["counters"].to_pylist() if row["name"] == name] if "counters" in tables else []
    return sorted(rows, key=lambda row: row["time_ns"])


def train(pk, steps: int) -> None:
    for _ in range(steps):
        with pk.step(tokens=1):
            pass


def metadata(store: Path) -> dict:
    (run,) = Store(store).runs()
    return run.metadata


def test_every_counter_is_documented():
    names = [v for k, v in vars(gpu_names).items() if k.isupper() and isinstance(v, str)]
    text = (ROOT / "docs/integrations.md").read_text()
    assert len(names) > 15
    assert [name for name in (*names, "gpu_sampler_up") if f"`{name}`" not in text] == []


# ------------------------------------------------------------------ which rank


class Told:
    """What `append` was given."""

    def __init__(self) -> None:
        self.batches: list[dict] = []

    def __call__(self, batch) -> None:
        self.batches.append(batch)

    def rows(self, table):
        return [row for batch in self.batches for row in batch.get(table, ())]


def claim(attempt: Path, rank: int, uuid: str, host: str = "h") -> Path:
    folder = attempt / f"rank-{rank:05d}"
    folder.mkdir(parents=True)
    write_atomically(folder / "live/metrics.json", {"host": host, "rank": rank, "gpu_uuid": uuid})
    return folder


def test_rows_go_to_the_rank_that_uses_the_gpu_and_to_nobody_if_no_rank_does(gpus, tmp_path):
    gpus.set(gpus=3)
    attempt = tmp_path / "c/r/attempt-0"
    own = claim(attempt, 0, "GPU-0")
    other = claim(attempt, 1, "1")  # torch leaves the prefix out
    claim(attempt, 2, "GPU-2", host="another host")
    told = Told()
    records = GpuRecords(own, HEADER, told, interval_s=0.05)
    until(lambda: (records.turn(), told.rows("unclaimed_gpu_counters"))[1])
    records.close()
    assert {row[2] for row in told.rows("gpu_counters")} == {"GPU-0"}
    assert {row[2] for row in told.rows("unclaimed_gpu_counters")} == {"GPU-2"}
    assert records.folders == [other]
    writer = SpoolWriter(own, HEADER)
    for batch in told.batches:
        writer.append(batch)
    writer.close()
    for folder in (own, other):
        assert not compact_folder(folder, str(tmp_path / "store")).problems
    powers = [r for r in Store(tmp_path / "store").read("counters").to_pylist() if r["name"] == "gpu_power_watts"]
    assert {(r["rank"], r["device"], r["uuid"], r["host"]) for r in powers} == {
        (0, 0, "GPU-0", "h"), (1, 1, "GPU-1", "h"), (None, 2, "GPU-2", "h"),
    }  # fmt: skip
    assert metadata(tmp_path / "store")["gpu_counters"] == "3 GPUs"


def test_a_driver_that_stops_answering_is_a_health_event_and_the_metadata_has_what_was_sampled(gpus, tmp_path):
    own = claim(tmp_path / "c/r/attempt-0", 0, "GPU-0")
    told = Told()
    records = GpuRecords(own, HEADER, told, sampler=GpuSampler(interval_s=0.05, patience_s=0.5))
    until(lambda: (records.turn(), told.rows("gpu_counters"))[1])
    gpus.set(hang=1)
    until(lambda: (records.turn(), told.rows("health"))[1])
    records.close()
    assert [row[3] for row in told.rows("health")] == ["nvml_unresponsive"]
    assert told.batches[0]["metadata"] == {"gpu_counters": "2 GPUs"}


def test_the_environment_names_the_gpu_of_a_process(monkeypatch):
    assert own_gpu() is None  # this torch has no CUDA, and is perhaps not even loaded
    monkeypatch.setenv("PERFKIT_GPU_UUID", "GPU-7")
    assert own_gpu() == "GPU-7"


# ------------------------------------------------------------------ whole runs


@pytest.mark.slow
def test_counters_meet_steps_by_clock_to_within_one_sample(init, gpus, store, monkeypatch):
    monkeypatch.setenv("PERFKIT_GPU_UUID", "GPU-1")
    pk = init(side_process=True, gpu_seconds=0.1, flush_seconds=0.02)
    name = "gpu_utilization_ratio"

    def samples(value):
        train(pk, 1)
        found = [r for r in in_the_spool(store, name) if r["uuid"] == "GPU-1" and r["rank"] == 0]
        return [row for row in found if row["value"] == value]

    until(lambda: len(samples(0.51)) >= 3)
    changed = pk.current_step
    with pk.step(tokens=1):
        gpus.set(utilization=90)
    until(lambda: len(samples(0.91)) >= 3)
    pk.finish(timeout=120)
    (step,) = [row for row in Store(store).read("steps", run="r").to_pylist() if row["step"] == changed]
    rows = [r for r in Store(store).read("counters", run="r", ranks=[0]).to_pylist() if r["name"] == name]
    assert {(row["rank"], row["uuid"]) for row in rows} >= {(0, "GPU-1")}
    mine = sorted((r["time_ns"], r["value"]) for r in rows if r["uuid"] == "GPU-1")
    first = next(place for place, (_, value) in enumerate(mine) if value == 0.91)
    assert mine[first - 1][0] <= step["end_ns"]
    assert mine[first + 1][0] >= step["start_ns"]
    assert metadata(store)["gpu_counters"] == "2 GPUs"


@pytest.mark.slow
def test_the_side_process_of_local_rank_0_stores_the_counters_of_its_neighbours_too(init, gpus, store):
    pk = init(side_process=True, gpu_seconds=0.1, flush_seconds=0.02, rank=0, local_rank=0, world_size=2)
    train(pk, 1)
    until(lambda: pk.acknowledged_step is not None)
    claim(pk.writer.folder.parent, 1, "GPU-0", host=pk.identity.host)
    until(lambda: [row for row in in_the_spool(store, "gpu_power_watts") if row["rank"] == 1])
    pk.finish(timeout=120)
    rows = Store(store).read("counters", run="r", ranks=[1]).to_pylist()
    assert {(row["rank"], row["uuid"]) for row in rows} == {(1, "GPU-0")}
    assert not list((store / "spool").rglob("*.spool"))


@pytest.mark.slow
def test_an_xid_is_in_the_health_events_of_the_fleet(init, gpus, store):
    gpus.set(xid="1 79")
    pk = init(side_process=True, gpu_seconds=0.1, flush_seconds=0.02, cluster="c")
    train(pk, 3)
    until(lambda: in_the_spool(store, "gpu_power_watts"))
    until(lambda: _health(store))
    pk.finish(timeout=120)
    (event,) = Store(store).read("health_events", cluster="c").to_pylist()
    assert (event["kind"], event["code"], event["device"], event["severity"]) == ("xid", 79, 1, "fault")
    assert "fault" not in {row["kind"] for row in Store(store).read("lifecycle", run="r").to_pylist()}


def _health(store):
    for path in (store / "spool").rglob("*.spool"):
        try:
            if read_segment(path).health is not None:
                return True
        except (CorruptInput, FileNotFoundError):
            continue
    return False


def drivers(kind: str, folder: Path) -> dict[str, str]:
    """Environment of a driver that is absent, broken, or hangs from the start."""
    folder.mkdir()
    if kind == "absent":
        return {"LD_LIBRARY_PATH": str(folder)}
    if kind == "broken":
        (folder / "libnvidia-ml.so.1").write_bytes(b"not a library")
        return {"LD_LIBRARY_PATH": str(folder)}
    stub = StubGpus(folder)
    stub.set(hang=1)
    return {name: stub.environ[name] for name in ("LD_LIBRARY_PATH", "NVML_STUB")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "says"), [("absent", "absent: "), ("broken", "absent: "), ("hung", "none: no answer")]
)
def test_without_a_driver_that_works_steps_are_untouched_and_the_run_says_so(
    init, store, tmp_path, monkeypatch, said, kind, says
):
    for name, value in drivers(kind, tmp_path / "driver").items():
        monkeypatch.setenv(name, value)
    pk = init(side_process=True, gpu_seconds=0.1, flush_seconds=0.02)
    train(pk, 20)
    side = until(lambda: pk.writer.sidecar._process)
    if kind == "hung":
        until(lambda: _children(side.pid))  # the reader has been started; it will not say anything
    else:
        until(lambda: in_the_spool(store, "gpu_sampler_up"))
    pk.finish(timeout=120)
    assert [row["step"] for row in Store(store).read("steps", run="r").to_pylist()] == list(range(20))
    assert metadata(store)["gpu_counters"].startswith(says)
    counters = Store(store).read("counters", run="r").to_pylist()
    assert {row["value"] for row in counters if row["name"] == "gpu_sampler_up"} == {0.0}
    assert not [row for row in counters if row["uuid"] is not None]
    assert not [line for line in said() if "is off" in line]
    assert not list((store / "spool").rglob("*.spool"))


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
