from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from perfkit.errors import UsageError  # noqa: E402
from perfkit.flops.params import total_params  # noqa: E402
from perfkit.reference.model import Decoder, ModelConfig, rope_table, rotate  # noqa: E402

SMALL = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "seq_len": 12}


def tokens(batch: int = 3, seq: int = 12) -> torch.Tensor:
    return torch.randint(0, 64, (batch, seq), generator=torch.Generator().manual_seed(1))


def build(**changes) -> Decoder:
    torch.manual_seed(0)
    return Decoder(ModelConfig(**{**SMALL, **changes}))


def test_a_token_sees_those_before_it_and_none_after():
    model, x = build(), tokens()
    changed = x.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 64
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    config = ModelConfig(**SMALL)
    rope = rope_table(config)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    turned_q, turned_k = (rotate(x.expand(1, 12, 1, 8), rope) for x in (q, k))
    assert torch.allclose(turned_q.norm(dim=-1), q.norm(dim=-1).expand(1, 12, 1), atol=1e-5)
    scores = (turned_q[0, :, 0] @ turned_k[0, :, 0].T).detach()
    for distance in (0, 3):
        assert torch.allclose(scores.diagonal(distance), scores.diagonal(distance)[0].expand(12 - distance), atol=1e-5)


def test_attention_with_shared_keys_equals_attention_with_the_keys_repeated():
    shared, full = build(kv_heads=2), build(kv_heads=4)
    state = shared.state_dict()
    for name in list(state):
        if name.endswith(("wk.weight", "wv.weight")):
            state[name] = state[name].unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    assert torch.allclose(shared(tokens()), full(tokens()), atol=1e-6)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("experts", [0, 4])
def test_recomputing_activations_changes_no_gradient(recompute, experts):
    kept, again = build(experts=experts), build(experts=experts, recompute=recompute)
    x = tokens()
    for model in (kept, again):
        model(x[:, :-1], x[:, 1:]).backward()
    for (name, one), (_, other) in zip(kept.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name


def test_every_expert_gets_a_gradient_even_without_tokens():
    model = build(experts=8, active_experts=1)
    x = tokens(batch=1, seq=3)
    model(x[:, :-1], x[:, 1:]).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_experts_are_weighed_and_summed_as_the_router_says():
    block = build(experts=4, active_experts=2).blocks[0].mlp
    x = torch.randn(1, 3, 32)
    weight, chosen = block.router(x[0]).softmax(-1).topk(2, dim=-1)
    weight = weight / weight.sum(-1, keepdim=True)
    for i in range(3):
        wanted = sum(weight[i, s] * block.experts[int(chosen[i, s])](x[0, i]) for s in range(2))
        assert torch.allclose(block(x)[0, i], wanted, atol=1e-6)


@pytest.mark.parametrize("experts", [0, 4])
def test_the_spec_counts_the_parameters_that_the_model_has(experts):
    model = build(experts=experts)
    assert total_params(model.config.spec()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "bad", [{"dim": 30}, {"kv_heads": 3}, {"recompute": "some"}, {"experts": 2, "active_experts": 3}]
)
def test_shapes_that_no_model_has_are_refused(bad):
    with pytest.raises(UsageError):
        ModelConfig(**{**SMALL, **bad})
