from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

from perfkit.reference.optim import OptimConfig, clip_gradients, learning_rate, make_optimizer  # noqa: E402


def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_floor():
    config = OptimConfig(lr=1.0, min_lr=0.1, warmup=4)
    rates = [learning_rate(step, 20, config) for step in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[20] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))


def test_vectors_are_not_decayed():
    model = torch.nn.Linear(3, 2)
    groups = make_optimizer(model, OptimConfig()).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (1, 0.0)]


@pytest.mark.parametrize("limit", [0.0, 0.5, 1e9])
def test_clipping_agrees_with_torch(limit):
    ours, theirs = ([torch.nn.Parameter(torch.full((n,), 2.0)) for n in (3, 5)] for _ in range(2))
    for p in (*ours, *theirs):
        p.grad = torch.arange(len(p)).float()
    norm = clip_gradients(ours, limit)
    wanted = torch.nn.utils.clip_grad_norm_(theirs, limit or 1e9)
    assert torch.allclose(norm, wanted)
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))
