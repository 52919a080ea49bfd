from __future__ import annotations

import json

import pytest

from perfkit.errors import CorruptInput, InputError, UsageError
from perfkit.flops.inputs import arguments_from


def test_options_may_have_dashes_and_empty_ones_are_not_given():
    arguments = arguments_from(
        {"tokens-per-second": "1,000", "devices": "8", "dtype": "", "hardware": None, "n-params": "7e9"}
    )
    assert arguments["tokens_per_second"] == 1000
    assert arguments["devices"] == 8
    assert "dtype" not in arguments
    assert arguments["model"].n_params == 7_000_000_000


def test_spec_keys_change_a_preset_and_its_published_total_is_counted_anew():
    plain = arguments_from({"model": "llama3.1-405b"})["model"]
    changed = arguments_from({"model": "llama3.1-405b", "kv_heads": 16})["model"]
    assert (plain.kv_heads, changed.kv_heads) == (8, 16)
    assert arguments_from({"model": "deepseek-v3", "layers": 30})["model"].n_params is None
    assert arguments_from({"model": "deepseek-v3", "mtp_layers": 0})["model"].n_params is not None
    assert arguments_from({"model": "deepseek-v3", "seq_len": 128})["model"].n_params is not None


def test_a_spec_file_is_read(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"layers": 2, "hidden": 64, "mla": {"kv_lora_rank": 8}}))
    spec = arguments_from({"spec": str(path), "seq_len": 16})["model"]
    assert (spec.name, spec.layers, spec.kv_lora_rank, spec.seq_len) == ("mine", 2, 8, 16)


def test_a_folder_is_no_spec_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        arguments_from({"spec": str(tmp_path)})


@pytest.mark.parametrize(("text", "error"), [("{", CorruptInput), ("[1]", CorruptInput), (None, InputError)])
def test_a_broken_spec_file_is_named(tmp_path, text, error):
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=r"mine\.json"):
        arguments_from({"spec": str(path)})


def test_a_misspelt_option_and_a_second_model_are_refused():
    with pytest.raises(UsageError, match=r"token_per_second.*did you mean tokens_per_second"):
        arguments_from({"token_per_second": 3})
    with pytest.raises(UsageError, match="twice"):
        arguments_from({"model": "gpt2", "spec": "x.json"})
    with pytest.raises(UsageError, match="devices"):
        arguments_from({"devices": "many"})
