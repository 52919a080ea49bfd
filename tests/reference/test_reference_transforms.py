from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from perfkit.errors import UsageError  # noqa: E402
from perfkit.reference.model import Decoder, ModelConfig, cross_entropy  # noqa: E402
from perfkit.reference.optim import OptimConfig, make_optimizer  # noqa: E402
from perfkit.reference.transforms import chunked_cross_entropy, merge_linears, transform  # noqa: E402

SMALL = {"vocab": 64, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "seq_len": 12}


def build(**changes) -> Decoder:
    torch.manual_seed(0)
    return Decoder(ModelConfig(**{**SMALL, **changes}))


def batch() -> torch.Tensor:
    return torch.randint(0, 64, (3, 13), generator=torch.Generator().manual_seed(1))


def gradients(model: Decoder, loss=cross_entropy) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    x = batch()
    value = model(x[:, :-1], x[:, 1:], loss)
    value.backward()
    return value, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_fused_products_give_the_same_loss_and_gradients(experts, recompute):
    plain, plain_grads = gradients(build(experts=experts))
    model = transform(build(experts=experts, recompute=recompute), ("fused-qkv", "fused-gate-up")).model
    fused, fused_grads = gradients(model)
    assert torch.allclose(plain, fused, atol=1e-6)
    assert not any(name.endswith(("wq.weight", "gate.weight")) for name in fused_grads)
    for number in range(2):
        attention, mlp = f"blocks.{number}.attention", f"blocks.{number}.mlp" + (".experts.0" if experts else "")
        for merged, parts in ((f"{attention}.wqkv", [f"{attention}.{n}" for n in ("wq", "wk", "wv")]),
                              (f"{mlp}.gate_up", [f"{mlp}.gate", f"{mlp}.up"])):  # fmt: skip
            wanted = torch.cat([plain_grads[f"{part}.weight"] for part in parts])
            assert torch.allclose(fused_grads[f"{merged}.weight"], wanted, atol=1e-6)
    assert sum(g.numel() for g in fused_grads.values()) == sum(g.numel() for g in plain_grads.values())


def test_a_merged_module_makes_fewer_products():
    attention = build().blocks[0].attention
    merged = merge_linears(attention, ("wq", "wk", "wv"), "wqkv")
    linears = [m for m in merged.modules() if isinstance(m, torch.nn.Linear)]
    assert sorted(m.out_features for m in linears) == [32, 64]


def test_layers_that_read_different_values_are_not_merged():
    with pytest.raises(UsageError, match="not siblings"):
        merge_linears(build().blocks[0].mlp, ("gate", "down"), "both")


@pytest.mark.parametrize("chunk", [1, 7, 36, 1000])
def test_chunked_loss_equals_the_loss_of_all_tokens(chunk):
    plain, plain_grads = gradients(build())
    chunked, chunked_grads = gradients(
        build(), lambda output, x, targets: chunked_cross_entropy(output, x, targets, chunk=chunk)
    )
    assert torch.allclose(plain, chunked, atol=1e-6)
    for name, grad in plain_grads.items():
        assert torch.allclose(grad, chunked_grads[name], atol=1e-6), name


def test_the_fused_optimizer_takes_the_same_steps():
    results = []
    for names in ((), ("fused-optimizer",)):
        done = transform(build(), names)
        optimizer = make_optimizer(done.model, OptimConfig(), fused=done.fused_optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            gradients(done.model)
            optimizer.step()
        results.append([p.detach().clone() for p in done.model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*results, strict=True))


def test_an_unknown_transform_names_the_known_ones():
    with pytest.raises(UsageError, match="fused-qkv"):
        transform(build(), ("fuse-all",))
