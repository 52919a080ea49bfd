"""Every process of a job computes the same division, and knows its own share of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.engine.shards import Shard, parse_shard
from perfkit.errors import UsageError


@given(st.lists(st.integers(0, 10**9), max_size=60), st.integers(1, 9))
def test_the_shards_together_have_every_item_once_and_in_order(costs, count):
    items = list(enumerate(costs))
    shares = [Shard(i, count).take(items, cost=lambda item: item[1]) for i in range(count)]
    assert sorted(item for share in shares for item in share) == items
    assert all(share == sorted(share) for share in shares)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 9))
def test_no_shard_has_more_than_its_part_and_one_item(costs, count):
    loads = [sum(Shard(i, count).take(costs, cost=float)) for i in range(count)]
    assert max(loads) <= sum(costs) / count + max(costs)


@pytest.mark.parametrize(
    ("environment", "shard"),
    [
        ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "8",
          "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_ARRAY_TASK_STEP": "1"}, Shard(4, 8)),
        ({"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "6",
          "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_STEP": "2"}, Shard(3, 4)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "64"}, Shard(3, 16)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MIN": "0",
          "SLURM_ARRAY_TASK_MAX": "2", "SLURM_ARRAY_TASK_COUNT": "3"}, Shard(5, 6)),
        ({"JOB_COMPLETION_INDEX": "7", "PERFKIT_SHARD_COUNT": "8"}, Shard(7, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, Shard(2, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, Shard(0, 4)),
    ],
)  # fmt: skip
def test_a_scheduler_says_which_share_a_process_has(environment, shard):
    assert parse_shard("auto", environment) == shard


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        ("8/8", {}, "counted from 0 to 7"),
        ("3", {}, "0/8 … 7/8"),
        ("a/b", {}, "0/8 … 7/8"),
        ("0/0", {}, "no share 0 of 0"),
        ("auto", {}, "write --shard i/n"),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}, "completions"),
        ("auto", {"PMI_RANK": "x", "PMI_SIZE": "2"}, "no number"),
        (
            "auto",
            {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "9",
             "SLURM_ARRAY_TASK_COUNT": "3"},
            "with gaps",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_share_is_refused_with_a_next_step(text, environment, says):
    with pytest.raises(UsageError, match=says):
        parse_shard(text, environment)
