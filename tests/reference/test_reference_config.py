from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from perfkit.errors import UsageError
from perfkit.reference.config import describe, parse
from perfkit.reference.faults import KINDS, Fault, parse_fault
from perfkit.reference.parallel import ParallelConfig


def test_options_reach_their_section_with_their_type():
    config = parse(
        ["--train.steps", "8", "--checkpoint.every=3", "--optim.betas", "0.8,0.9", "--train.pin", "no",
         "--fault", "slow-data", "--fault", "gc-storm:5ms", "--transform", "fused-qkv", "--train.folder", "x"]
    )  # fmt: skip
    assert (config.train.steps, config.checkpoint.every, config.train.pin) == (8, 3, False)
    assert config.optim.betas == (0.8, 0.9)
    assert config.faults == ("slow-data", "gc-storm:5ms")
    assert config.transforms == ("fused-qkv",)
    assert json.loads(config.to_json())["train"]["folder"] == "x"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.step", "8"], "did you mean --train.steps"),
        (["--train.steps", "many"], "is not int"),
        (["--train.pin", "maybe"], "is not bool"),
        (["--train.steps"], "is not --section.field VALUE"),
        (["steps", "8"], "is not --section.field VALUE"),
        (["--train.steps", "0"], "makes no sense"),
        (["--train.dtype", "fp7"], "use one of auto"),
        (["--checkpoint.keep", "0"], "keep at least one"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_next_step(words, message):
    with pytest.raises(UsageError, match=message):
        parse(words)


def test_help_lists_every_option():
    text = describe()
    for option in ("--model.dim", "--data.path", "--parallel.tensor", "--train.compile", "--capture.store"):
        assert option in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow-rank:1:1.5x", Fault("slow-rank", 1, 1.5, 0)),
        ("slow-rank:1:1.5x@40", Fault("slow-rank", 1, 1.5, 40)),
        ("slow-data:50ms", Fault("slow-data", None, 50.0, 0)),
        ("slow-data:70ms:1", Fault("slow-data", 1, 70.0, 0)),
        ("slow-link:20MBps", Fault("slow-link", None, 20.0, 0)),
        ("crash:1:20", Fault("crash", 1, 0.0, 20)),
        ("hang:0:5:30s", Fault("hang", 0, 30.0, 5)),
        ("disk-full:2", Fault("disk-full", None, 2.0, 0)),
        ("gc-storm", Fault("gc-storm", None, 100.0, 0)),
    ],
)
def test_faults_are_read(text, fault):
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text", ["slow-rank", "slow-rank:1", "slow-rank:1:0.5x", "crash:1", "slow-data:fast", "x", "hang:1:2@a"]
)
def test_faults_that_cannot_be_read_show_one_that_can(text):
    with pytest.raises(UsageError):
        parse_fault(text)


def test_every_fault_is_documented():
    from perfkit.reference import faults

    assert all(f"\n    {kind}:" in (faults.__doc__ or "") for kind in KINDS)


@pytest.mark.parametrize(
    ("degrees", "world", "wanted"),
    [((0, 1, 1), 4, (4, 1, 1)), ((0, 2, 1), 4, (2, 2, 1)), ((2, 1, 2), 4, (2, 1, 2)), ((0, 4, 1), 4, (1, 4, 1))],
)
def test_the_mesh_takes_what_is_left_as_replicas(degrees, world, wanted):
    replicate, shard, tensor = degrees
    assert ParallelConfig(replicate=replicate, shard=shard, tensor=tensor).resolve(world) == wanted


def test_degrees_that_do_not_make_the_world_are_refused():
    with pytest.raises(UsageError, match="does not make 4 ranks"):
        ParallelConfig(shard=3).resolve(4)
