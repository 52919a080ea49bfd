from __future__ import annotations

import pytest

from perfkit.errors import UsageError
from perfkit.flops.spec import FIELDS, MissingFields, TransformerSpec, spec_from_dict


def test_a_spec_reads_the_keys_of_json():
    spec = spec_from_dict({"layers": 2, "hidden": "64", "heads": 4, "gated": "true", "n_params": "1e6", "tied": False})
    assert (spec.layers, spec.hidden, spec.gated, spec.n_params, spec.tied) == (2, 64, True, 1_000_000, False)
    assert spec.head_width == 16
    assert spec.kv_width == 64


def test_mla_may_be_a_table():
    table = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    assert spec_from_dict({"mla": table}) == spec_from_dict(table) == spec_from_dict({"mla": True, **table})
    assert spec_from_dict({"mla": table}).mla
    assert not spec_from_dict({"mla": False}).mla
    with pytest.raises(UsageError, match="kv_lora_rank"):
        spec_from_dict({"mla": True})


def test_an_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match="kv_heads"):
        spec_from_dict({"kv_head": 8})


@pytest.mark.parametrize(
    "document",
    [{"layers": 0}, {"layers": 2.5}, {"layers": "many"}, {"layers": True},
     {"gated": "perhaps"}, {"attention": "sparse"},
     {"experts": 4, "active_experts": 5}, {"layers": 2, "dense_layers": 3},
     {"layers": 2, "window": 8, "window_layers": 3},
     {"lora_rank": 8, "lora_targets": "q,z"}, {"layer_pattern": "MX"}, {"norm": "batch"}, {"hidden": -1}],
)  # fmt: skip
def test_nonsense_is_refused(document):
    with pytest.raises(UsageError):
        spec_from_dict(document)


def test_a_missing_field_is_named():
    with pytest.raises(MissingFields, match="heads") as caught:
        TransformerSpec(hidden=8).need("hidden", "heads")
    assert caught.value.fields == ("heads",)


def test_overrides_go_on_top_of_a_base():
    base = TransformerSpec(layers=2, hidden=8)
    assert spec_from_dict({"layers": 3}, base=base) == TransformerSpec(layers=3, hidden=8)


def test_parameters_may_be_given_in_billions():
    assert spec_from_dict({"n_params": "8.03B"}).n_params == 8_030_000_000


@pytest.mark.parametrize(
    "keys",
    [
        {"heads": 32, "kv_heads": 7},
        {"heads": 32, "kv_heads": 64},
        {"hidden": 4097, "heads": 32},
        {"attention_len": float("nan")},
        {"layers": 10**30},
    ],
)
def test_shapes_that_no_model_has_are_refused(keys):
    with pytest.raises(UsageError):
        TransformerSpec(**keys)


def test_the_promised_keys_exist():
    promised = "layers hidden heads kv_heads head_dim ffn gated vocab tied n_params window experts active_experts "
    promised += "shared_experts expert_ffn dense_layers"
    assert set(promised.split()) <= set(FIELDS)
