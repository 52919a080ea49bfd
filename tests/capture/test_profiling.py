"""Profile windows with the real torch.profiler: recorded, exported, respected, and never raising."""

from __future__ import annotations

import gzip
import json
import time

import pytest

import perfkit
from perfkit.capture import profiling
from perfkit.cli.main import main

torch = pytest.importorskip("torch")
FREE = {"min_free_bytes": 0}


def train(pk, steps, *, before_step=None):
    layer = torch.nn.Linear(8, 8)
    for _ in pk.data(range(steps)):
        if before_step is not None:
            before_step(pk.current_step)
        with pk.step(tokens=8), pk.span("forward"):
            layer(torch.ones(4, 8)).sum().backward()


def trace_of(store):
    (path,) = store.glob("traces/**/*.json.gz")
    return path, json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def wait_for_export(pk):
    if pk.profiling._export is not None:
        pk.profiling._export.join(120)


def test_a_window_records_the_steps_it_should_under_the_numbers_of_the_loop(init, compacted, store):
    pk = init(profile=perfkit.ProfileSchedule(first=3, every=0, active=2, **FREE), first_step=1000)
    train(pk, 10)
    wait_for_export(pk)
    tables = compacted()
    path, events = trace_of(store)
    assert path.name == "rank-00000.step-00001003.json.gz"
    names = {event["name"]: event.get("cat") for event in events}
    assert {name for name in names if name.startswith("ProfilerStep")} == {"ProfilerStep#1003", "ProfilerStep#1004"}
    assert names["forward"] == names["perfkit.data"] == names["perfkit.step"] == "user_annotation"
    rows = tables.read("steps", run="r").to_pylist()
    assert [row["step"] for row in rows if row["profiled"]][:3] == [1002, 1003, 1004]
    assert not any(row["profiled"] for row in rows[:2])
    assert "ProfilerStep#1003" in tables.read("events", run="r")["name"].to_pylist()
    assert perfkit.analyze(path).summary["scope"]["steps"]


def test_windows_come_back_and_other_ranks_are_left_alone(init, compacted, store):
    schedule = perfkit.ProfileSchedule(first=2, every=4, active=1, ranks="1", **FREE)
    pk = init(profile=schedule)
    train(pk, 6)
    assert pk.profiling._export is None
    pk.finish()
    pk = init(run="r2", rank=1, world_size=2, profile=schedule)
    train(pk, 12, before_step=lambda _: wait_for_export(pk))
    wait_for_export(pk)
    compacted()
    found = sorted(path.name.split(".")[1] for path in store.glob("traces/**/*.gz"))
    assert found == ["step-00000002", "step-00000006", "step-00000010"]


def test_a_window_that_is_open_at_the_end_is_kept(init, compacted, store):
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=0, active=50, **FREE))
    train(pk, 6)
    pk.finish(timeout=60)
    wait_for_export(pk)
    compacted()
    assert "ProfilerStep#4" in {event["name"] for event in trace_of(store)[1]}


def test_a_profiler_that_the_script_runs_is_respected(init, said):
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=0, active=2, **FREE))
    with torch.profiler.profile() as mine:
        train(pk, 6)
    assert pk.profiling._export is None
    assert {"forward", "perfkit.step#3"} <= {event.name for event in mine.events()}
    assert sum("a profiler of the script is running" in line for line in said()) == 1


def test_a_script_that_starts_a_profiler_during_a_window_gets_its_own_data_whole(init, said):
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=0, active=20, **FREE))
    mine = torch.profiler.profile()

    def start(step):
        if step == 5:
            mine.start()

    train(pk, 9, before_step=start)
    mine.stop()
    assert {f"perfkit.step#{n}" for n in range(5, 9)} <= {event.name for event in mine.events()}
    assert sum("the window was thrown away" in line for line in said()) == 1
    assert pk.profiling._window is None


def test_an_export_that_fails_costs_the_traces_and_one_line(init, compacted, said, monkeypatch):
    def full_disk(*_, **__):
        raise RuntimeError("could not write: No space left on device")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", full_disk)
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=4, active=1, **FREE))
    train(pk, 14, before_step=lambda _: wait_for_export(pk))
    wait_for_export(pk)
    assert len(compacted().read("steps", run="r")) == 14
    assert len([line for line in said() if "profiling is off" in line]) == 1


def test_a_profiler_that_cannot_start_or_step_does_not_raise(init, compacted, said, monkeypatch):
    def broken(*_):
        raise RuntimeError("CUPTI is unhappy")

    monkeypatch.setattr(torch.profiler.profile, "step", broken)
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=0, active=3, **FREE))
    train(pk, 8)
    assert len(compacted().read("steps", run="r")) == 8
    assert len([line for line in said() if "CUPTI is unhappy" in line]) == 1
    assert not torch.autograd._profiler_enabled()


def test_a_trace_that_was_cut_off_is_not_taken(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [\n{"ph": "X"')
    with pytest.raises(OSError, match="cut off"):
        profiling._check_whole(path)
    path.write_text('{"traceEvents": []\n}\n')
    profiling._check_whole(path)


@pytest.mark.parametrize(
    ("caps", "line"),
    [({"min_free_bytes": 1 << 62}, "min_free_bytes"), ({"max_bytes": 10, "min_free_bytes": 0}, "max_bytes")],
)
def test_too_little_space_or_too_many_bytes_end_profiling(init, said, caps, line):
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=4, active=1, **caps))
    train(pk, 12, before_step=lambda _: wait_for_export(pk))
    wait_for_export(pk)
    assert len([one for one in said() if line in one]) == 1


def test_a_window_that_takes_too_long_is_ended_at_a_step(init, compacted, store):
    pk = init(profile=perfkit.ProfileSchedule(first=2, every=0, active=10_000, max_seconds=0.0, **FREE))
    train(pk, 10)
    wait_for_export(pk)
    compacted()
    assert not torch.autograd._profiler_enabled()


def test_a_request_reaches_the_ranks_between_steps_and_the_trace_comes(init, store, compacted, capsys):
    pk = init(flush_seconds=0.01, run="live-run")
    train(pk, 3)
    deadline = time.monotonic() + 60
    live = pk.writer.folder / "live/metrics.json"
    while not live.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert main(["trace", "live-run", "--store", str(store), "--steps", "2"]) == 0
    asked = capsys.readouterr().out
    while pk.profiling._request is None and time.monotonic() < deadline:
        time.sleep(0.01)
    start = pk.profiling._request["start_step"]
    assert f"steps {start} to {start + 1}" in asked
    with pk.step(step=start - 2):
        pass
    train(pk, 5)
    wait_for_export(pk)
    compacted()
    path, events = trace_of(store)
    steps = {event["name"] for event in events if event["name"].startswith("ProfilerStep")}
    assert steps == {f"ProfilerStep#{start}", f"ProfilerStep#{start + 1}"}
    assert f"step-{start:08d}" in path.name


def test_a_request_for_nobody_is_one_line(store, capsys):
    (store / "spool").mkdir(parents=True)
    assert main(["trace", "no-such-run", "--store", str(store)]) == 2
    assert "no run 'no-such-run' is being recorded" in capsys.readouterr().err


def test_a_request_from_before_this_process_or_nonsense_is_ignored(init, said):
    pk = init()
    pk.profiling.requested({"steps": 2, "time_ns": 5})
    pk.profiling.requested({"steps": 2, "time_ns": time.time_ns() + 10**12, "ranks": "7"})
    assert pk.profiling._request is None
    pk.profiling.requested({"steps": "many"})
    assert len([line for line in said() if "not understood" in line]) == 1


def test_the_profiler_costs_nothing_between_windows(init):
    pk = init()
    train(pk, 3)
    assert pk.profiling._window is None
    assert not pk.profiling.disturbed
    assert torch.autograd.profiler.profile._prepare_trace.__name__ == "_prepare_trace"  # and not our watchman


@pytest.mark.parametrize("switch", ["1", "0"])
def test_hooks_inside_a_compiled_function_do_not_break_its_graph(init, monkeypatch, switch):
    monkeypatch.setenv("PERFKIT", switch)
    pk = init()

    @perfkit.span("decorated")
    def inner(x):
        return x * 3

    def function(x):
        with pk.span("a"), perfkit.span("b"), pk.event("eval"):
            pk.log("loss", 1.0)
            return inner(x) + 1

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == function(torch.ones(2)).tolist() == [4.0, 4.0]
    torch._dynamo.reset()
