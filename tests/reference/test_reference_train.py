"""The loop as torchrun runs it: parallelism, resuming, crashes. Each test starts real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

pytest.importorskip("torch")

from perfkit.goodput.question import ask
from perfkit.reference.checkpoint import committed, place, verify
from perfkit.reference.incidents import incidents
from perfkit.reference.joblog import read_log
from perfkit.reference.train import apart, main
from perfkit.sources.spool import compact_folder, find_spools
from perfkit.store import Store
from tests.reference.reference_jobs import TIMEOUT_S, TINY, command, environment, kinds, losses, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Losses of the job on one rank: what every kind of parallelism has to reproduce."""
    return losses(train(tmp_path_factory.mktemp("alone"), ranks=1))


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        (2, {"parallel.shard": 2}),
        (2, {"parallel.tensor": 2}),
        (4, {"parallel.shard": 2}),
        (4, {"parallel.tensor": 2}),
        (4, {"parallel.shard": 2, "parallel.tensor": 2}),
        (2, {"parallel.shard": 2, "model.recompute": "full"}),
        (2, {"model.recompute": "selective", "train.compile": "aot_eager"}),
    ],
    ids=["ddp", "fsdp", "tp", "hsdp", "ddp-tp", "fsdp-tp", "fsdp-recompute", "ddp-selective-compile"],
)
def test_every_kind_of_parallelism_learns_the_same(tmp_path, alone, ranks, options):
    found = losses(train(tmp_path, options, ranks=ranks))
    assert found.keys() == alone.keys()
    assert found == pytest.approx(alone, abs=2e-4)
    assert found[5] < found[0]


def test_experts_learn_the_same_on_two_ranks(tmp_path):
    options = {"model.experts": 4}
    one = losses(train(tmp_path / "one", options, ranks=1))
    assert losses(train(tmp_path / "two", {**options, "parallel.shard": 2})) == pytest.approx(one, abs=2e-4)


@pytest.mark.parametrize("options", [{}, {"parallel.shard": 2}], ids=["ddp", "fsdp"])
def test_a_resumed_job_continues_bit_for_bit(tmp_path, options):
    # in the warm-up the learning rate does not depend on the number of steps
    options = {**options, "checkpoint.every": 3, "train.eval_every": 4, "optim.warmup": 100}
    train(tmp_path / "parts", {**options, "train.steps": 6})  # the last step's checkpoint is waited for
    resumed = train(tmp_path / "parts", {**options, "train.steps": 9})
    whole = train(tmp_path / "whole", {**options, "train.steps": 9})
    assert [row["step"] for row in resumed if row["kind"] == "restored" and row["rank"] == 0] == [6]
    steps = [row for row in resumed if row["kind"] == "step" and row["rank"] == 0]
    assert [row["step"] for row in steps] == list(range(9))  # none was run twice
    after = {step: loss for step, loss in losses(resumed).items() if step >= 6}
    assert after == {step: loss for step, loss in losses(whole).items() if step >= 6}


def test_a_checkpoint_of_two_shards_goes_on_on_one_rank_and_on_four(tmp_path, alone):
    train(tmp_path / "two", {"checkpoint.every": 3, "train.steps": 3, "parallel.shard": 2})
    for ranks, more in ((1, {}), (4, {"parallel.shard": 2}), (2, {"parallel.tensor": 2})):
        folder = tmp_path / f"on-{ranks}"
        shutil.copytree(tmp_path / "two", folder)
        log = train(folder, more, ranks=ranks)
        assert "restored" in kinds(log)
        assert losses(log) == pytest.approx(alone, abs=2e-4)  # the same data, the same updates


def test_a_crash_is_followed_by_a_restart_that_ends_like_a_run_without_one(tmp_path):
    options = {"train.steps": 8, "checkpoint.every": 2}
    calm = losses(train(tmp_path / "calm", options))
    log = train(tmp_path / "crashed", options, restarts=1, extra=("--fault", "crash:1:5"))
    restored = [row for row in log if row["kind"] == "restored" and row["rank"] == 0]
    assert [row["attempt"] for row in restored] == [1]
    first = [row["step"] for row in log if row["kind"] == "step" and row["rank"] == 0 and row["attempt"] == 1]
    assert first == list(range(restored[0]["step"], 8))  # from wherever the newest commit was
    assert losses(log) == calm


def test_a_hang_ends_by_the_timeout_and_the_job_is_restarted(tmp_path):
    options = {"train.steps": 6, "checkpoint.every": 2, "parallel.timeout_s": 60}
    log = train(tmp_path, options, restarts=1, extra=("--fault", "hang:1:4"))
    assert {row["attempt"] for row in log} == {0, 1}
    assert kinds(log)[-1] == "end"
    assert max(losses(log)) == 5


def test_recording_changes_no_loss(tmp_path):
    bare = losses(train(tmp_path / "bare"))
    options = {"capture.enabled": "true", "capture.profile_first": 2, "capture.profile_active": 2}
    assert losses(train(tmp_path / "recorded", options)) == bare
    assert list((tmp_path / "recorded" / "store").glob("manifests/*/*/*/run.json"))


def test_a_full_disk_does_not_stop_training_and_is_no_interruption(tmp_path):
    options = {"checkpoint.every": 2, "capture.enabled": "true", "capture.profile_active": 0}
    log = train(tmp_path, options, extra=("--fault", "disk-full"))
    failed = [row for row in log if row["kind"] == "checkpoint_failed" and row["rank"] == 0]
    assert [row["step"] for row in failed] == [2, 4, 6]
    assert all("No space left" in row["reason"] for row in failed)
    assert kinds(log)[-1] == "end"
    assert committed(tmp_path / "checkpoints") == []
    store = tmp_path / "store"
    for spool in find_spools(store / "spool"):
        compact_folder(spool, str(store), include_open=True)
    read = partial(Store(store).read, cluster="local", run="reference", attempt=0)
    said = incidents({0: (read("lifecycle"), read("steps"))})
    lost = [line for line in said if line.startswith("3 of 3 checkpoints were not written: ")]
    assert len(lost) == 1, said
    assert "No space left" in lost[0]
    assert ask(["reference"], store=str(store))["totals"]["interruptions"] == 0


def test_sigterm_leaves_a_last_checkpoint_from_which_the_job_goes_on(tmp_path):
    options = {"train.steps": 100_000}
    with subprocess.Popen(
        command(tmp_path, options, ranks=2), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as job:
        end = time.monotonic() + TIMEOUT_S
        while not losses(read_log(tmp_path)) and time.monotonic() < end and job.poll() is None:
            time.sleep(0.2)
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=TIMEOUT_S)
    log = read_log(tmp_path)
    drained = next(row["step"] for row in log if row["kind"] == "drained" and row["rank"] == 0)
    assert committed(tmp_path / "checkpoints") == [drained]
    assert verify(place(tmp_path / "checkpoints", drained)) is None
    assert max(losses(log)) == drained - 1
    again = train(tmp_path, {"train.steps": drained + 2})
    assert sorted(losses(again)) == list(range(drained + 2))


def test_bad_options_are_one_line_and_exit_code_2(tmp_path, capsys):
    assert main(["--train.folder", str(tmp_path), "--model.dmi", "3"]) == 2
    assert "did you mean --model.dim" in capsys.readouterr().err
    assert main(["--fault", "slow-rank:1"]) == 2
    assert "slow-rank:1:1.5x" in capsys.readouterr().err


def test_a_single_process_needs_no_torchrun(tmp_path):
    words = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    words = ["-m", "perfkit.reference.train", "--train.folder", str(tmp_path), *words]
    subprocess.run([sys.executable, *words], env=environment(), check=True, timeout=TIMEOUT_S)
    assert sorted(losses(read_log(tmp_path))) == list(range(6))


def test_ranks_get_physical_cores_before_hyperthreads(tmp_path):
    for core, siblings in {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}.items():
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert apart([0, 1, 2, 3], tmp_path) == [0, 2, 1, 3]
    assert apart([4, 5], tmp_path) == [4, 5]  # nothing is known of these
