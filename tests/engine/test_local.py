import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from perfkit.engine.base import RemoteError, WorkerDied, report_progress
from perfkit.engine.local import LocalEngine, available_cpus
from perfkit.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import engine_jobs

    return engine_jobs


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.fixture(autouse=True)
def no_child_is_left():
    before = children()
    yield
    gc.collect()
    assert children() <= before


def values(outcomes):
    return [outcome.unwrap() for outcome in outcomes]


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_item_gets_its_outcome(jobs, workers):
    outcomes = list(LocalEngine(workers).map(jobs.square, range(12)))
    assert sorted((o.index, o.item, o.value, o.attempts) for o in outcomes) == [(i, i, i * i, 1) for i in range(12)]


def test_outcomes_can_come_in_the_order_of_the_items(jobs):
    outcomes = LocalEngine(2).map(jobs.square, range(20), cost=lambda item: item, ordered=True)
    assert values(outcomes) == [i * i for i in range(20)]


def test_no_items_no_outcomes(jobs):
    assert list(LocalEngine(2).map(jobs.square, [])) == []


def test_a_single_item_or_a_single_worker_stays_in_this_process(jobs):
    assert values(LocalEngine(4).map(jobs.where, [1])) == [os.getpid()]
    assert set(values(LocalEngine(1).map(jobs.where, range(3)))) == {os.getpid()}
    assert os.getpid() not in values(LocalEngine(2).map(jobs.where, range(3)))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_most_expensive_item_starts_first(jobs, tmp_path, workers):
    items = [(str(tmp_path), name) for name in "bca"]
    list(LocalEngine(workers).map(jobs.order_of_start, items, cost=lambda item: ord(item[1])))
    started = (tmp_path / "log").read_text().split()
    assert sorted(started) == ["a", "b", "c"]
    if workers == 1:
        assert started == ["c", "b", "a"]
    else:
        assert started[0] != "a"  # it waits for a free worker; which of two workers writes first is up to the machine


def test_workers_share_the_machine_and_do_not_import_the_main_module(jobs):
    for threads, main_file in values(LocalEngine(2).map(jobs.environment, range(2))):
        share = max(1, available_cpus() // 2)
        assert threads == (str(share), share)
        assert main_file is None


def test_results_larger_than_a_pipe_arrive_and_a_slow_consumer_does_not_lose_any(jobs):
    outcomes = LocalEngine(2).map(partial(bytes.__mul__, b"x" * 1000), [2000, 3000, 1000, 10])
    sizes = []
    for outcome in outcomes:
        time.sleep(0.02)
        sizes.append(len(outcome.unwrap()))
    assert sorted(sizes) == [10_000, 1_000_000, 2_000_000, 3_000_000]


def test_a_worker_begins_the_next_item_while_one_is_being_finished(jobs, tmp_path):
    items = [(str(tmp_path), name, other) for name, other in ("ac", "bd", "ca", "db")]
    outcomes = LocalEngine(2).map(jobs.finish_when_the_next_began, items, ordered=True)
    assert values(outcomes) == [(name, True) for name in "abcd"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_goes_wrong_at_the_end_is_the_error_of_its_item_alone(jobs, workers):
    outcomes = list(LocalEngine(workers).map(jobs.later, ["a", "raise", "b", "c", "raise"], ordered=True))
    assert [outcome.value for outcome in outcomes] == ["a", None, "b", "c", None]
    assert [str(outcome.error) for outcome in outcomes if outcome.error] == ["at the end"] * 2


def test_a_worker_that_dies_finishing_costs_only_that_item(jobs):
    outcomes = list(LocalEngine(2).map(jobs.later, ["a", "die", "b", "no memory", "c", "d"], ordered=True))
    assert [outcome.value for outcome in outcomes] == ["a", None, "b", None, "c", "d"]
    assert [type(outcome.error) for outcome in outcomes if outcome.error] == [WorkerDied, MemoryError]
    assert [outcomes[1].attempts, outcomes[3].attempts] == [2, 2]


def test_workers_hired_early_do_the_work_and_those_not_needed_end(jobs):
    engine = LocalEngine(3)
    with engine.hired(jobs.where, 3):
        before = children()
        assert len(before) >= 3
        assert set(map(str, values(engine.map(jobs.where, range(2))))) <= before
        assert sorted(values(engine.map(jobs.square, range(3)))) == [0, 1, 4]  # another function, other workers


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_is_the_error_of_its_item_alone(jobs, workers):
    outcomes = list(LocalEngine(workers).map(jobs.fail_on_odd, range(6), ordered=True))
    assert [o.value for o in outcomes] == [0, None, 2, None, 4, None]
    assert [str(o.error) for o in outcomes[1::2]] == ["1 is odd", "3 is odd", "5 is odd"]
    assert "raise ValueError" in outcomes[1].traceback
    with pytest.raises(ValueError, match="3 is odd"):
        outcomes[3].unwrap()


@pytest.mark.parametrize(("kind", "cause"), [("kill", "SIGKILL"), ("segfault", "SIGSEGV"), ("exit", "exit status 7")])
def test_a_dead_worker_costs_only_its_item(jobs, kind, cause):
    items = [("fine", 0), (kind, 1), ("fine", 2), (kind, 3), ("fine", 4), ("fine", 5)]
    outcomes = list(LocalEngine(2).map(jobs.die_on, items, ordered=True))
    assert [o.value for o in outcomes] == [0, None, 2, None, 4, 5]
    for outcome in (outcomes[1], outcomes[3]):
        assert isinstance(outcome.error, WorkerDied)
        assert cause in str(outcome.error)
        assert outcome.attempts == 2


def test_an_item_whose_worker_died_once_is_tried_again_and_its_progress_taken_back(jobs, tmp_path):
    seen = {}
    items = [(str(tmp_path / "a"), True), (str(tmp_path / "b"), False), (str(tmp_path / "c"), False)]

    def count(item, increment):
        seen[item] = seen.get(item, 0) + increment

    outcomes = list(LocalEngine(2).map(jobs.die_once, items, ordered=True, on_progress=count))
    assert [o.value for o in outcomes] == ["survived"] * 3
    assert [o.attempts for o in outcomes] == [2, 1, 1]
    assert seen == dict.fromkeys(items, 3)


def test_the_second_attempt_has_the_machine_to_itself(jobs, tmp_path):
    items = [(str(tmp_path), f"i{n}", n == 0) for n in range(8)]
    outcomes = list(LocalEngine(3).map(jobs.running_beside, items, ordered=True))
    assert outcomes[0].attempts == 2
    assert outcomes[0].value == 0


def test_max_attempts_is_kept(jobs):
    (one, _) = LocalEngine(2, max_attempts=1).map(jobs.die_on, [("kill", 0), ("fine", 1)], ordered=True)
    assert one.attempts == 1
    (one, _) = LocalEngine(2, max_attempts=3).map(jobs.die_on, [("kill", 0), ("fine", 1)], ordered=True)
    assert one.attempts == 3


def test_running_out_of_memory_is_tried_again_alone(jobs):
    fine, greedy = LocalEngine(2).map(jobs.no_memory, ["fine", "greedy"], ordered=True)
    assert fine.value == "fine"
    assert isinstance(greedy.error, MemoryError)
    assert greedy.attempts == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_sys_exit_in_the_function_ends_only_its_item(jobs, workers):
    outcomes = list(LocalEngine(workers).map(jobs.raise_system_exit, range(3)))
    assert [str(o.error) for o in outcomes] == ["enough"] * 3


def test_an_error_that_cannot_be_pickled_arrives_as_text(jobs):
    for outcome in LocalEngine(2).map(jobs.raise_unpicklable, range(2)):
        assert isinstance(outcome.error, RemoteError)
        assert str(outcome.error) == "Unpicklable: this and that"


def test_a_value_that_cannot_be_pickled_is_an_error_of_its_item(jobs):
    for outcome in LocalEngine(2).map(jobs.return_unpicklable, range(2)):
        assert "pickle" in str(outcome.error)


def test_an_item_that_cannot_be_pickled_is_an_error_of_that_item(jobs):
    bad, good = LocalEngine(2).map(jobs.where, [lambda: 1, 2], ordered=True)
    assert "pickle" in str(bad.error)
    assert good.error is None


def test_a_function_that_cannot_be_sent_is_a_usage_error(monkeypatch):
    with pytest.raises(UsageError, match="top level of a module"):
        list(LocalEngine(2).map(lambda x: x, range(3)))

    def orphan(x):
        return x

    import __main__

    orphan.__module__, orphan.__qualname__ = "__main__", "orphan"
    monkeypatch.setattr(__main__, "orphan", orphan, raising=False)
    with pytest.raises(UsageError, match="defined in __main__"):
        list(LocalEngine(2).map(orphan, range(3)))


def test_a_function_that_the_workers_cannot_import_is_a_usage_error(tmp_path, monkeypatch):
    (tmp_path / "vanishing_module.py").write_text("def f(x):\n    return x\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        import vanishing_module
    with pytest.raises(UsageError, match=r"cannot load .*vanishing_module.*can be imported"):
        list(LocalEngine(2).map(vanishing_module.f, range(3)))


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"workers": -1}, {"max_attempts": 0}])
def test_nonsense_is_refused(arguments):
    with pytest.raises(UsageError, match="at least 1"):
        LocalEngine(**arguments)


# ------------------------------------------------------------------ progress, memory


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_adds_up(jobs, workers):
    seen = {}

    def count(item, increment):
        seen[item] = seen.get(item, 0) + increment

    list(LocalEngine(workers).map(jobs.report, [10, 20_000, 300], on_progress=count))
    assert seen == {10: 10, 20_000: 20_000, 300: 300}


def test_progress_outside_an_engine_goes_nowhere():
    report_progress(5)


def test_an_item_above_the_memory_limit_fails_alone(jobs):
    engine = LocalEngine(2, max_memory_bytes=150 << 20)
    outcomes = list(engine.map(jobs.grow, [0, 250 << 20, 0, 0], ordered=True))
    assert [o.value for o in outcomes] == [0, None, 0, 0]
    assert "more memory than allowed" in str(outcomes[1].error)
    assert outcomes[1].attempts == 2


# ------------------------------------------------------------------ the end


def wait_until(condition):
    for _ in range(1500):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never happened")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("pid-*") if path.read_text()]


def test_closing_the_iterator_ends_the_workers_and_lets_them_clean_up(jobs, tmp_path):
    items = [(str(tmp_path), name) for name in "ab"]
    items.append((str(tmp_path / "missing"), "c"))
    outcomes = LocalEngine(2).map(jobs.wait_for_the_end, items, cost=lambda item: item[1] == "c")
    first = next(outcomes)
    assert isinstance(first.error, FileNotFoundError)
    wait_until(lambda: pids(tmp_path))
    outcomes.close()
    assert all(is_gone(pid) for pid in pids(tmp_path))
    assert len(list(tmp_path.glob("cleaned-*"))) == len(pids(tmp_path))


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import engine_jobs
from perfkit.engine.local import LocalEngine
for outcome in LocalEngine(2).map(engine_jobs.{function}, {items!r}):
    print(outcome.item, outcome.value)
"""


def script(tmp_path: Path, function: str, items: list[object]) -> Path:
    path = tmp_path / "script_without_main_guard.py"
    path.write_text(SCRIPT.format(here=str(Path(__file__).parent), function=function, items=items))
    return path


def run(arguments: list[str], **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *arguments], env=environment, text=True, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_workers_do_not_outlive_their_parent(tmp_path, number):
    path = script(tmp_path, "wait_for_the_end", [(str(tmp_path), "a"), (str(tmp_path), "b")])
    parent = run([str(path)], stderr=subprocess.PIPE)
    wait_until(lambda: len(pids(tmp_path)) == 2)
    parent.send_signal(number)
    _, errors = parent.communicate()
    assert parent.returncode != 0
    wait_until(lambda: all(is_gone(pid) for pid in pids(tmp_path)))
    assert len(list(tmp_path.glob("cleaned-*"))) == 2
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0)  # the parent's, none of a worker


def test_a_script_without_a_main_guard_works_and_standard_output_stays_clean(tmp_path):
    process = run([str(script(tmp_path, "print_something", [1, 2, 3]))], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate()
    assert sorted(output.splitlines()) == ["1 1", "2 2", "3 3"]
    assert errors.splitlines() == ["noise on standard output"] * 3


@pytest.mark.parametrize("how", ["-c", "-", "-m"])
def test_it_works_whatever_main_is(tmp_path, how):
    text = script(tmp_path, "square", [1, 2, 3]).read_text()
    arguments = {"-c": ["-c", text], "-": ["-"], "-m": ["-m", "script_without_main_guard"]}[how]
    process = run(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path)
    output, _ = process.communicate(text if how == "-" else None)
    assert sorted(output.splitlines()) == ["1 1", "2 4", "3 9"]


def test_it_works_beside_threads(jobs):
    import threading

    import pyarrow as pa
    import pyarrow.compute as pc

    pc.sum(pa.chunked_array([range(1000)] * 8))  # Arrow's threads are running
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert sorted(values(LocalEngine(2).map(jobs.square, range(4)))) == [0, 1, 4, 9]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
