"""Ask for the identity in the workers of a Ray Train job, in a task, in an actor and in their driver.

python ray_identity.py FOLDER      writes FOLDER/answer.json
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(
    RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_TRAIN_V2_ENABLED="1", RAY_raylet_start_wait_time_s="600"
)

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(sys.argv[1])
RAY_ONLY = {"RAY_JOB_ID": "01000000"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}
SLURM = {"SLURM_PROCID": "7", "SLURM_NTASKS": "32", "SLURM_LOCALID": "3", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "9"}


def ask(environ, **arguments):
    from perfkit.capture.identity import find_identity

    found = find_identity(environ, **arguments)
    return [found.rank, found.world_size, found.local_rank, found.source, found.run]


def ask_all():
    """Answers without a process group."""
    import ray.train  # noqa: F401

    return {
        "alone": ask(RAY_ONLY),
        "slurm": ask({**RAY_ONLY, **SLURM}),
        "torchrun": ask({**RAY_ONLY, **SLURM, **TORCHRUN}),
        "arguments": ask({**RAY_ONLY, **SLURM}, rank=9, world_size=20),
    }


def train(config):
    import torch.distributed as dist

    answers = ask_all()
    rank = answers["alone"][0]
    dist.init_process_group("gloo", init_method=f"file://{config['folder']}/group-{rank}", rank=0, world_size=1)
    answers["process group"] = ask({**RAY_ONLY, **TORCHRUN})
    dist.destroy_process_group()
    (Path(config["folder"]) / f"rank-{rank}.json").write_text(json.dumps(answers))


class Actor:
    def ask(self):
        return ask_all()


if __name__ == "__main__":
    ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    sys.path.insert(0, str(ROOT))
    DataParallelTrainer(
        train,
        train_loop_config={"folder": str(FOLDER)},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(name="my-experiment", storage_path=str(FOLDER / "ray-results")),
    ).fit()
    answer = {
        "driver": ask_all(),
        "task": ray.get(ray.remote(ask_all).remote()),
        "actor": ray.get(ray.remote(Actor).remote().ask.remote()),
        "workers": {str(rank): json.loads((FOLDER / f"rank-{rank}.json").read_text()) for rank in (0, 1)},
    }
    (FOLDER / "answer.json").write_text(json.dumps(answer))
    ray.shutdown()
