from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from perfkit.reference.checkpoint import COMMIT, CheckpointConfig, Checkpointer, committed, place, verify  # noqa: E402
from perfkit.reference.faults import Fault, Faults  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture
def alone():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Job:
    """A model and optimizer after a few steps, and a checkpointer that keeps its reports."""

    def __init__(self, folder, *, seed=0, **config):
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.reports: list[tuple[str, dict]] = []
        self.faults = Faults((), rank=0, attempt=0, checkpoints=None)
        self.keeper = Checkpointer(
            folder, CheckpointConfig(**config), report=lambda kind, values: self.reports.append((kind, values)),
            before_write=lambda path: self.faults.before_write(path),
        )  # fmt: skip

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 4)).square().sum().backward()
        self.optimizer.step()

    def save(self, step):
        self.keeper.save(step, self.model, self.optimizer, {"loader": {"position": 10 * step}})

    def weights(self):
        return self.model.weight.detach().clone()


@pytest.mark.parametrize("blocking", [False, True])
def test_a_restored_job_goes_on_bit_for_bit(tmp_path, alone, blocking):
    first = Job(tmp_path, blocking=blocking)
    first.step()
    first.save(1)
    for _ in range(3):
        first.step()  # while the checkpoint is being written
    first.keeper.close()
    second = Job(tmp_path, seed=9)
    assert second.keeper.restore(second.model, second.optimizer) == (1, {"loader": {"position": 10}})
    for _ in range(3):
        second.step()
    assert torch.equal(first.weights(), second.weights())


def test_nothing_to_restore_is_no_error(tmp_path, alone):
    job = Job(tmp_path)
    assert job.keeper.restore(job.model, job.optimizer) is None


def test_only_the_newest_are_kept(tmp_path, alone):
    job = Job(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        job.step()
        job.save(step)
    job.keeper.close()
    assert committed(tmp_path) == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def damage_missing(path):
    next(path.glob("*.distcp")).unlink()


def damage_bit(path):
    file = next(path.glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def damage_short(path):
    file = path / ".metadata"
    file.write_bytes(file.read_bytes()[:-1])


def damage_commit(path):
    (path / COMMIT).write_text("{")


@pytest.mark.parametrize("damage", [damage_missing, damage_bit, damage_short, damage_commit])
def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(tmp_path, alone, damage):
    job = Job(tmp_path)
    job.save(1)
    wanted = job.weights()
    job.step()
    job.save(2)
    job.keeper.close()
    assert verify(place(tmp_path, 2)) is None
    damage(place(tmp_path, 2))
    assert verify(place(tmp_path, 2)) is not None
    again = Job(tmp_path, seed=9)
    restored = again.keeper.restore(again.model, again.optimizer)
    assert restored is not None
    assert restored[0] == 1
    assert torch.equal(again.weights(), wanted)
    assert [kind for kind, _ in again.reports] == ["checkpoint_rejected"]


def test_a_checkpoint_that_was_not_committed_does_not_count_and_is_removed(tmp_path, alone):
    job = Job(tmp_path)
    job.save(1)
    job.keeper.close()
    half = tmp_path / "step-00000002.tmp"
    shutil.copytree(place(tmp_path, 1), half)  # as a killed process leaves it
    again = Job(tmp_path)
    assert not half.exists()
    assert again.keeper.restore(again.model, again.optimizer)[0] == 1


@pytest.mark.parametrize("blocking", [False, True])
def test_a_full_disk_costs_the_checkpoint_and_not_the_job(tmp_path, alone, blocking):
    job = Job(tmp_path, blocking=blocking)
    job.faults = Faults((Fault("disk-full", None, 1.0),), rank=0, attempt=0, checkpoints=None)
    job.save(1)
    job.keeper.wait()
    assert committed(tmp_path) == []
    job.save(2)
    job.keeper.close()
    assert committed(tmp_path) == [2]
    assert [kind for kind, _ in job.reports] == ["checkpoint_failed", "checkpoint_committed"]
    assert "No space left" in json.dumps(job.reports[0][1])
    assert not list(tmp_path.glob("*.tmp"))
