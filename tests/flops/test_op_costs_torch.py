"""Argument positions against torch's own schemas, and costs of a profiled step against torch's flop counter."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from perfkit.flops.counting import count_flops  # noqa: E402
from perfkit.flops.op_attention import _SIGNATURES  # noqa: E402
from perfkit.flops.op_costs import op_cost  # noqa: E402


@pytest.mark.parametrize("name", [name for name in _SIGNATURES if name.startswith("aten::")])
def test_positions_of_attention_arguments_are_those_of_the_schema(name):
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        pytest.skip("not in this torch")
    arguments = [argument.name for argument in packet.default._schema.arguments]
    signature = _SIGNATURES[name]
    assert arguments[signature.first] == "query"
    assert arguments[signature.causal] == ("custom_mask_type" if signature.mask_type else "is_causal")
    if signature.packed is not None:
        assert arguments[signature.packed] in ("cum_seq_q", "cu_seqlens_q", "cum_seq_k")


@pytest.mark.parametrize(
    ("name", "index", "argument"),
    [
        ("convolution", 3, "stride"), ("convolution", 4, "padding"), ("convolution", 5, "dilation"),
        ("convolution", 6, "transposed"), ("convolution", 7, "output_padding"), ("convolution", 8, "groups"),
        ("convolution_backward", 7, "transposed"), ("convolution_backward", 10, "output_mask"),
        ("cudnn_convolution", 2, "padding"), ("cudnn_convolution", 3, "stride"), ("cudnn_convolution", 4, "dilation"),
        ("miopen_convolution", 3, "padding"), ("miopen_convolution", 4, "stride"), ("mkldnn_convolution", 4, "stride"),
        ("addmm", 1, "mat1"), ("baddbmm", 1, "batch1"), ("_scaled_mm", 0, "self"), ("_grouped_mm", 2, "offs"),
        ("_scaled_grouped_mm", 4, "offs"), ("embedding", 1, "indices"), ("embedding_dense_backward", 2, "num_weights"),
    ],
)  # fmt: skip
def test_positions_of_other_arguments_are_those_of_the_schema(name, index, argument):
    schema = getattr(torch.ops.aten, name).default._schema
    assert schema.arguments[index].name == argument


LEAVES = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mkldnn_convolution", "aten::convolution_backward",
          "aten::_scaled_dot_product_flash_attention_for_cpu",
          "aten::_scaled_dot_product_flash_attention_for_cpu_backward")  # fmt: skip


def test_costs_of_a_profiled_step_add_up_to_what_the_flop_counter_sees(tmp_path):
    conv = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
    linear = torch.nn.Linear(8, 16)
    q, k, v = (torch.randn(1, 2, 16, 8, requires_grad=True) for _ in range(3))

    def step() -> None:
        image = conv(torch.ones(2, 3, 8, 8, requires_grad=True)).mean((2, 3))
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        (linear(image).sum() + torch.bmm(attended[0], attended[0].mT).sum()).backward()

    expected = count_flops(step).total
    with torch.profiler.profile(record_shapes=True) as profile:
        step()
    path = tmp_path / "trace.json"
    profile.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") in LEAVES]
    costs = [
        op_cost(e["name"], *(json.dumps(e["args"].get(key)) for key in ("Input Dims", "Input type", "Concrete Inputs")))
        for e in events
    ]
    assert all(cost.flops is not None for cost in costs), events
    assert sum(cost.flops for cost in costs) == expected
