"""The recorder: steps, data, events, numbers; and that it never harms the script."""

from __future__ import annotations

import gc
import os
import time
from itertools import pairwise

import pytest

import perfkit
from perfkit.capture import api, names
from perfkit.capture.spans import NOTHING
from perfkit.schema import LIFECYCLE_KINDS


def test_steps_are_numbered_counted_and_in_order(init, compacted):
    pk = init(first_step=100)
    for n in range(3):
        with pk.step(tokens=10 * n, samples=n):
            pk.log("loss", n / 2)
    with pk.step(step=500):
        pass
    rows = compacted().read("steps", run="r").to_pylist()
    assert [row["step"] for row in rows] == [100, 101, 102, 500]
    assert [row["tokens"] for row in rows] == [0, 10, 20, None]
    assert [row["samples"] for row in rows] == [0, 1, 2, None]
    assert [row["loss"] for row in rows] == [0.0, 0.5, 1.0, None]
    assert all(a["end_ns"] <= b["start_ns"] for a, b in pairwise(rows))


def test_what_is_known_only_inside_the_step_can_be_set_there(init, compacted):
    pk = init()
    with pk.step() as step:
        step.tokens, step.loss = 77, 1.5
    (row,) = compacted().read("steps", run="r").to_pylist()
    assert (row["tokens"], row["loss"]) == (77, 1.5)


def test_a_step_decorator_records_every_call(init, compacted):
    pk = init()

    @pk.step(tokens=8)
    def train():
        return "done"

    assert [train(), train()] == ["done", "done"]
    assert compacted().read("steps", run="r")["step"].to_pylist() == [0, 1]


def test_a_step_that_raises_is_no_step_and_its_number_is_used_again(init, compacted):
    pk = init()
    with pytest.raises(ValueError, match="bad batch"), pk.step(tokens=1):
        raise ValueError("bad batch")
    with pk.step(tokens=2):
        pass
    store = compacted()
    assert store.read("steps", run="r").select(["step", "tokens"]).to_pylist() == [{"step": 0, "tokens": 2}]
    (failed,) = [row for row in store.read("spans", run="r").to_pylist() if row["error"]]
    assert (failed["name"], failed["error"]) == ("perfkit.step", "ValueError")


def test_waiting_for_data_is_charged_to_the_step_that_follows(init, compacted):
    pk = init()

    def loader():
        for n in range(3):
            time.sleep(0.02)
            yield n

    seen = []
    for item in pk.data(loader()):
        with pk.step():
            seen.append(item)
    assert seen == [0, 1, 2]
    waits = compacted().read("steps", run="r")["data_wait_ns"].to_pylist()
    assert all(wait >= 20_000_000 for wait in waits)


def test_a_watched_loader_is_still_the_loader(init):
    class Loader(list):
        sampler = "the sampler"

    watched = init().data(Loader([1, 2]))
    assert (len(watched), watched.sampler, list(watched), list(watched)) == (2, "the sampler", [1, 2], [1, 2])


def test_an_exception_of_the_loader_passes_through(init):
    def broken():
        yield 1
        raise RuntimeError("worker died")

    with pytest.raises(RuntimeError, match="worker died"):
        list(init().data(broken()))


def test_events_become_lifecycle_rows_and_others_are_said_and_kept_as_spans(init, compacted, said):
    pk = init()
    with pk.event("checkpoint_save", detail="step 5", blocking=False):
        pass
    with pytest.raises(OSError, match="gone"), pk.event("eval"):
        raise OSError("gone")
    with pk.event("lunch"):
        pass
    store = compacted()
    rows = {row["kind"]: row for row in store.read("lifecycle", run="r").to_pylist()}
    assert (rows["checkpoint_save"]["detail"], rows["checkpoint_save"]["blocking"]) == ("step 5", False)
    assert rows["eval"]["cause"] == "OSError"
    assert rows["end"]["end_ns"] is None
    assert [row["name"] for row in store.read("spans", run="r").to_pylist()] == ["lunch"]
    assert sum("'lunch'" in line for line in said()) == 1


def test_the_kinds_are_those_of_the_schema():
    assert names.LIFECYCLE_KINDS == LIFECYCLE_KINDS


def test_init_is_recorded_from_the_start_of_the_process_to_the_first_step(init, compacted):
    pk = init()
    with pk.step():
        pass
    store = compacted()
    (row,) = [row for row in store.read("lifecycle", run="r").to_pylist() if row["kind"] == "init"]
    assert row["end_ns"] <= store.read("steps", run="r")["start_ns"][0].as_py()
    assert row["start_ns"] < row["end_ns"]


def test_logged_numbers_become_counters(init, compacted):
    pk = init()
    pk.log("lr", 0.1)
    pk.log("grad_norm", float("inf"))
    rows = compacted().read("counters", run="r").to_pylist()
    logged = {row["name"]: row["value"] for row in rows if row["series"] == "log"}
    assert logged == {"lr": 0.1, "grad_norm": float("inf")}


def test_a_value_that_is_no_number_does_not_raise(init):
    pk = init()
    for _ in range(5):
        pk.log("x", "not a number")
    assert "log" in pk.guard.given_up


def test_a_full_buffer_drops_and_counts(init, compacted):
    pk = init(buffer_records=100, flush_seconds=3600)
    for n in range(1000):
        with pk.span(str(n)):
            pass
    assert pk.dropped == 900
    with pk.step(tokens=5):
        pass
    store = compacted()
    assert len(store.read("spans", run="r")) == 100
    assert len(store.read("steps", run="r")) == 1  # steps and events still go in
    assert "end" in store.read("lifecycle", run="r")["kind"].to_pylist()
    quality = {row["kind"]: row["count"] for row in store.read("quality", run="r").to_pylist()}
    assert quality["lost_events"] >= 900


def test_long_collections_are_recorded_as_spans(init, compacted, monkeypatch):
    monkeypatch.setattr("perfkit.capture.recorder.LONG_GC_NS", 0)
    init(gc_events=True)
    gc.collect()
    assert "perfkit.gc" in compacted().read("spans", run="r")["name"].to_pylist()
    assert not [callback for callback in gc.callbacks if "Recorder" in repr(callback)]


def test_switched_off_nothing_is_written_and_everything_still_works(store, monkeypatch):
    monkeypatch.setenv("PERFKIT", "0")
    pk = api.init(run="r", store=store)
    for x in pk.data([1, 2]):
        with pk.step(tokens=x) as step, pk.span("s"), pk.event("eval"):
            step.tokens = 5
            pk.log("loss", x)
    assert pk.span("x") is NOTHING
    assert pk.span("x")(len) is len
    pk.finish()
    assert not store.exists()


def test_without_init_the_module_level_hooks_do_nothing():
    perfkit.finish()
    with perfkit.step(tokens=1), perfkit.span("x"), perfkit.event("eval"):
        perfkit.log("loss", 1)
    assert list(perfkit.data([1])) == [1]
    assert perfkit.current() is None


def test_instrument_starts_finishes_and_names_the_exception(store, compacted):
    @perfkit.instrument(run="r", store=store, side_process=False, host_seconds=0)
    def main(fail):
        with perfkit.step(tokens=1):
            pass
        if fail:
            raise RuntimeError("no luck")
        return 5

    assert main(False) == 5
    with pytest.raises(RuntimeError, match="no luck"):
        main(True)
    rows = compacted().read("lifecycle", run="r").to_pylist()
    assert [row["cause"] for row in rows if row["kind"] == "fault"] == ["RuntimeError"]
    assert len([row for row in rows if row["kind"] == "end"]) == 2


def test_a_store_that_is_a_file_is_one_line_and_no_harm(tmp_path, said):
    path = tmp_path / "file"
    path.write_text("x")
    for place in (path, path / "below"):
        pk = api.init(run="r", store=place)
        with pk.step(tokens=1):
            pass
    assert len(said()) == 2
    assert all("is a file" in line and "choose a folder" in line for line in said())
    assert path.read_text() == "x"


def test_a_wrong_argument_raises_at_once(store):
    with pytest.raises(TypeError, match="sead"):
        api.init(run="r", store=store, sead=3)
    with pytest.raises(ValueError, match="no room"):
        perfkit.ProfileSchedule(every=2, active=3)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_records_nothing_and_leaves_the_parents_recording_alone(init, compacted):
    pk = init()
    with pk.step(tokens=1):
        pass
    child = os.fork()
    if child == 0:
        ok = not pk.on and perfkit.current() is None
        with pk.step(tokens=99), pk.span("child"):
            pk.log("x", 1)
        pk.finish()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pk.step(tokens=2):
        pass
    assert compacted().read("steps", run="r")["tokens"].to_pylist() == [1, 2]


def test_a_hook_that_fails_is_switched_off_with_one_line(init, said, monkeypatch):
    pk = init()

    def broken(*_):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(pk, "record", broken)
    for _ in range(10):
        with pk.span("x"):
            pass
    assert [line for line in said() if "a bug of ours" in line] == [
        "perfkit: spans is off: RuntimeError: a bug of ours; training goes on without it"
    ]


def test_acknowledged_steps_are_on_disk(init, store):
    from perfkit.sources.spool import find_spools, read_segment

    pk = init(flush_seconds=0.01)
    for _ in range(5):
        with pk.step():
            pass
    deadline = time.monotonic() + 60
    while pk.acknowledged_step != 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pk.acknowledged_step == 4
    (folder,) = find_spools(store / "spool")
    (path,) = folder.glob("*.spool")
    assert read_segment(path).tables["steps"]["step"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_second_init_ends_the_first(init, compacted):
    first = init()
    with first.step():
        pass
    second = init(run="r2")
    assert (first.on, second.on) == (False, True)
    with second.step():
        pass
    store = compacted()
    assert [len(store.read("steps", run=name)) for name in ("r", "r2")] == [1, 1]


def test_a_rank_that_torch_knows_only_later_is_used(init, compacted, monkeypatch):
    import sys
    import types

    pk = init()
    dist = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    with pk.step():
        pass
    store = compacted()
    assert store.read("steps", run="r")["rank"].to_pylist() == [3]
    assert store.runs()[0].world_size == 4


def test_the_run_remembers_what_mfu_was_measured_with(init, compacted):
    pk = init(
        model="llama3-8b", seq_len=2048, hardware="NVIDIA H100 80GB HBM3", mesh={"dp": 1}, metadata={"user": "me"}
    )
    with pk.step(tokens=2048):
        pass
    store = compacted()
    (run,) = store.runs()
    assert (run.metadata["model"], run.metadata["convention"], run.metadata["user"]) == ("llama3-8b", "palm", "me")
    assert run.metadata["peak_source"]
    (row,) = store.read("steps", run="r").to_pylist()
    assert row["model_flops"] == pytest.approx(2048 * run.metadata["flops_per_token"])


def test_what_perfkit_costs_is_stored_with_the_run(init, compacted):
    pk = init()
    with pk.step():
        pass
    rows = compacted().read("counters", run="r").to_pylist()
    values = {row["name"]: row["value"] for row in rows}
    assert values["perfkit_writer_cpu_seconds"] > 0
    assert values["perfkit_step_hook_seconds"] > 0
    assert values["perfkit_dropped_records"] == 0
    assert abs(values["perfkit_clock_offset_seconds"]) < 3600


def test_a_trainer_loads_neither_torch_nor_arrow_for_it(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, perfkit; pk = perfkit.init(run='r', store=sys.argv[1], side_process=False, model='llama3-8b',"
        "seq_len=128, hardware='NVIDIA H100 80GB HBM3')\n"
        "with pk.step(tokens=1), pk.span('x'): pass\n"
        "pk.finish(timeout=60); print([n for n in ('torch', 'pyarrow', 'pandas', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_script_that_changes_its_folder_records_where_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pk = api.init(run="r", store="here", side_process=False, flush_seconds=3600)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pk.step():
        pass
    pk.finish(timeout=60)
    assert list((tmp_path / "here/spool").rglob("*.spool"))
    assert not list((tmp_path / "elsewhere").iterdir())
