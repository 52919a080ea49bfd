"""`perfkit run` on scripts that have never heard of perfkit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.store import Store
from tests.capture.settled import settled

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).with_name("scripts")
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(("PERFKIT", "RANK", "SLURM"))}
ENVIRON |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(*command, **more):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280, env=ENVIRON, **more)


def perfkit_run(folder, *command, options=()):
    """Run a command under perfkit and return its result and the store."""
    fixed = ("--store", folder / "store", "--run", "zero", "--peak-flops", "1e12", *options)
    done = run(sys.executable, "-m", "perfkit", "run", *fixed, "--", *command)
    return done, settled(folder / "store") if (folder / "store").exists() else Store(folder / "store")


def own(text):
    """Return what the command itself said; a disk that is too slow for finish() is the one thing that perfkit adds."""
    return "".join(line for line in text.splitlines(True) if "finish() ran out of time" not in line)


def steps_of(store):
    return sorted(store.read("steps").to_pylist(), key=lambda row: (row["rank"], row["step"]))


def test_a_plain_loop_keeps_its_output_exit_code_and_weights(tmp_path):
    command = (sys.executable, SCRIPTS / "plain_loop.py", tmp_path / "weights.pt")
    plain = run(*command)
    watched, store = perfkit_run(tmp_path, *command)
    assert (watched.stdout, own(watched.stderr), watched.returncode) == (plain.stdout, plain.stderr, 7)
    steps = steps_of(store)
    assert [row["step"] for row in steps] == list(range(1, 16))  # the first of 16 is warm-up
    assert {row["tokens"] for row in steps} == {4 * 8}
    assert all(row["data_wait_ns"] is not None for row in steps)
    assert len({row["model_flops"] for row in steps[1:]}) == 1
    forward, backward = 2 * 4 * 128 * 32, 2 * 2 * 4 * 128 * 32
    assert steps[-1]["model_flops"] == pytest.approx(forward + backward)
    kinds = [row["kind"] for row in store.read("lifecycle").to_pylist()]
    assert {"init", "compile", "checkpoint_save", "end"} <= set(kinds)
    assert {"forward", "backward", "optimizer"} <= {row["name"] for row in store.read("spans").to_pylist()}


def test_accumulation_and_two_optimizers_make_one_step_under_torchrun(tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    plain = run(*torchrun, SCRIPTS / "accumulating.py")
    watched, store = perfkit_run(tmp_path, *torchrun, SCRIPTS / "accumulating.py")
    assert plain.returncode == watched.returncode == 0, watched.stderr
    assert sorted(watched.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    steps = steps_of(store)
    assert {row["rank"] for row in steps} == {0, 1}
    kinds = [row["kind"] for row in store.read("lifecycle").to_pylist()]
    assert kinds.count("init") == 2  # the two trainers; the launcher recorded nothing
    mine = [row for row in steps if row["rank"] == 1 and row["step"] > 1]
    assert {row["tokens"] for row in mine} == {3 * 2 * 16}  # three batches a step
    assert [row["step"] for row in mine] == list(range(2, mine[-1]["step"] + 1))
    assert mine[-1]["step"] >= 8
    assert mine[-1]["model_flops"] > 0
    assert "comm.all_reduce" in {row["name"] for row in store.read("spans").to_pylist()}


def test_a_compiled_model_with_a_scaler_and_loader_workers_runs_as_ever(tmp_path):
    plain = run(sys.executable, SCRIPTS / "compiled_amp.py")
    watched, store = perfkit_run(tmp_path, sys.executable, SCRIPTS / "compiled_amp.py", options=("--trigger", "2"))
    assert (watched.stdout, own(watched.stderr), watched.returncode) == (plain.stdout, plain.stderr, 0)
    steps = steps_of(store)
    assert [row["step"] for row in steps] == list(range(1, 8))
    assert {row["tokens"] for row in steps} == {4 * 8}
    assert {row["model_flops"] for row in steps} == {None}  # a compiled model hides its operations
    assert [row["kind"] for row in store.read("lifecycle").to_pylist()].count("init") == 1  # no worker recorded


def test_the_hf_trainer_is_recorded_without_a_callback(tmp_path):
    pytest.importorskip("transformers")
    plain = run(sys.executable, SCRIPTS / "hf_trainer.py", tmp_path / "a")
    watched, store = perfkit_run(tmp_path, sys.executable, SCRIPTS / "hf_trainer.py", tmp_path / "b")
    assert watched.returncode == plain.returncode == 0, watched.stderr
    assert watched.stdout.split("\n")[-2] == plain.stdout.split("\n")[-2]
    steps = steps_of(store)
    assert [row["step"] for row in steps] == list(range(1, 6))
    assert {row["tokens"] for row in steps} == {2 * 2 * 16}
    assert steps[-1]["model_flops"] > 0


def test_traces_are_taken_when_asked_for(tmp_path):
    command = (sys.executable, SCRIPTS / "plain_loop.py", tmp_path / "weights.pt")
    watched, store = perfkit_run(tmp_path, *command, options=("--every", "6", "--active", "2"))
    assert watched.returncode == 7
    assert store.read("events").num_rows > 100


def test_a_python_without_perfkit_runs_as_ever(tmp_path):
    code = "import sys; sys.modules['perfkit'] = None; sys.path_importer_cache.clear()"
    (tmp_path / "usercustomize.py").write_text(code)
    script = tmp_path / "hello.py"
    script.write_text("print('hello')")
    watched, _ = perfkit_run(tmp_path, sys.executable, "-S", script)
    assert (watched.stdout, watched.stderr, watched.returncode) == ("hello\n", "", 0)


def test_the_machines_own_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('the own one')")
    script = tmp_path / "hello.py"
    script.write_text("import sitecustomize; print('hello', sitecustomize.__file__ is not None)")
    environ = ENVIRON | {"PYTHONPATH": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "perfkit",
        "run",
        "--store",
        str(tmp_path / "s"),
        "--",
        sys.executable,
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert done.stdout == "the own one\nthe own one\nhello True\n"  # once in perfkit's own process, once in the command


@pytest.mark.parametrize(
    ("command", "says"), [([], "put it after `--`"), (["--", "no-such-program"], "no such command")]
)
def test_mistakes_say_what_to_do(command, says):
    done = run(sys.executable, "-m", "perfkit", "run", *command)
    assert done.returncode == 2
    assert says in done.stderr
