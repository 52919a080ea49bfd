from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from perfkit.cli.main import main

H100 = "NVIDIA H100 80GB HBM3"
EXAMPLE = ["mfu", "--model", "llama3-8b", "--seq-len", "8192", "--hardware", H100, "--dtype", "bf16",
           "--tokens-per-second-per-device", "5762"]  # fmt: skip


@pytest.fixture(autouse=True)
def no_user_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFKIT_CONFIG_DIR", str(tmp_path / "config"))


def run_json(capsys, *argv: str) -> tuple[int, dict]:
    code = main(["mfu", *argv, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_text_names_number_convention_peak_and_source(capsys):
    assert main(EXAMPLE) == 0
    text = capsys.readouterr().out
    for part in (
        "MFU 35.56 %",
        "HFU 35.56 %",
        "convention palm",
        "989.5 TFLOP/s",
        "Lightning-AI",
        "megatron",
        "29.97 %",
    ):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_json_is_one_document_with_the_promised_keys(capsys):
    code, document = run_json(capsys, *EXAMPLE[1:])
    assert code == 0
    for key in ("mfu", "hfu", "tflops_per_device", "flops_per_token", "convention", "peak_flops", "peak_source"):
        assert document[key] is not None
    assert document["mfu"] == pytest.approx(0.3556, abs=1e-4)
    assert set(document["conventions"]["palm"]) >= {"mfu", "flops_per_token"}


def test_step_time_batch_and_devices(capsys):
    code, document = run_json(
        capsys, "--model", "gpt3-175b", "--seq-len", "2048", "--step-time", "32s", "--global-batch", "1536",
        "--devices", "1024",
        "--hardware", "NVIDIA A100-SXM4-80GB", "--dtype", "fp16", "--convention", "narayanan",
    )  # fmt: skip
    assert code == 0
    assert document["tflops_per_device"] == pytest.approx(138, rel=0.005)  # the README of Megatron-LM


def test_a_model_by_flags_alone(capsys):
    code, document = run_json(
        capsys, "--n-params", "64862437376", "--layers", "80", "--hidden", "8192", "--seq-len", "2048",
        "--convention", "llm-foundry",
        "--tokens-per-second", "515636", "--devices", "512", "--hardware", H100, "--recompute", "full",
    )  # fmt: skip
    assert code == 0
    assert 100 * document["mfu"] == pytest.approx(41.25, abs=0.01)
    assert 100 * document["hfu"] == pytest.approx(55.0, abs=0.01)
    assert document["conventions"]["megatron"]["mfu"] is None
    assert "vocab" in document["conventions"]["megatron"]["reason"]


def test_a_spec_file_and_a_config_of_hugging_face(capsys, tmp_path):
    spec = {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "gated": True,
        "vocab": 128256,
        "tied": False,
    }
    (tmp_path / "mine.json").write_text(json.dumps(spec))
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    speed = ["--seq-len", "8192", "--tokens-per-second-per-device", "5762", "--hardware", H100]
    _, by_preset = run_json(capsys, "--model", "llama3-8b", *speed)
    _, by_spec = run_json(capsys, "--spec", str(tmp_path / "mine.json"), *speed)
    _, by_config = run_json(capsys, "--hf-config", str(tmp_path / "config.json"), *speed)
    assert by_spec["conventions"] == by_config["conventions"] == by_preset["conventions"]


def test_bare_flags_are_true_and_others_take_words(capsys):
    base = ["--layers", "2", "--hidden", "64", "--heads", "4", "--ffn", "256", "--vocab", "100", "--seq-len", "16",
            "--convention", "megatron", "--tokens-per-second-per-device", "1", "--peak-flops", "1T"]  # fmt: skip
    _, gated = run_json(capsys, *base, "--gated")
    _, plain = run_json(capsys, *base, "--gated", "false")
    assert gated["flops_per_token"] - plain["flops_per_token"] == 6 * 2 * 64 * 256


def test_an_unknown_device_prints_complete_json_and_exits_with_2(capsys):
    code, document = run_json(
        capsys, "--model", "llama3-8b", "--hardware", "NVIDIA H100", "--tokens-per-second-per-device", "5000"
    )
    assert code == 2
    assert document["mfu"] is None
    assert document["peak_flops"] is None
    assert document["flops_per_token"] > 0
    assert "--peak-flops" in document["messages"][0]


def test_an_override_makes_it_known(capsys):
    code, document = run_json(
        capsys,
        "--model",
        "llama3-8b",
        "--hardware",
        "NVIDIA H100",
        "--tokens-per-second-per-device",
        "5000",
        "--peak-flops",
        "989e12",
    )
    assert code == 0
    assert document["peak_source"] == "given with --peak-flops"


def test_a_result_above_one_prints_no_number(capsys):
    assert main([*EXAMPLE[:-1], "57620"]) == 2
    text = capsys.readouterr().out
    assert text.startswith("MFU unknown")
    assert "above 1" in text
    assert "(3)" in text


def test_bad_usage_is_one_line_on_stderr(capsys):
    assert main(["mfu", "--model", "llama3-8b", "--hardware", H100]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("perfkit: no speed is given")


def test_a_batch_of_rows(capsys, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "label,model,seq_len,hardware,dtype,step_time,global_batch,devices,convention\n"
        "grok,grok-1,8192,NVIDIA GB200,bf16,7.325,256,128,megatron-bridge\n"
        "llama,llama4-maverick,8192,NVIDIA GB200,fp8,6.093,1024,128,megatron\n"
    )
    assert main(["mfu", "--batch", str(path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [round(100 * float(row["mfu"]), 1) for row in rows] == [47.6, 23.9]
    assert [row["label"] for row in rows] == ["grok", "llama"]
    code, document = run_json(capsys, "--batch", str(path))
    assert code == 0
    assert len(document["rows"]) == 2
    assert main(["mfu", "--batch", str(path)]) == 0
    assert "llama4-maverick" in capsys.readouterr().out


def test_a_batch_with_a_bad_row_computes_the_others_and_exits_with_2(capsys, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("model,tokens_per_second_per_device\nllama3-8b,5000\nllama9,5000\n")
    code, document = run_json(capsys, "--batch", str(path), "--hardware", H100)
    assert code == 2
    assert document["rows"][0]["mfu"] > 0
    assert "llama9" in document["rows"][1]["error"]


def test_csv_is_for_batches(capsys):
    assert main([*EXAMPLE, "--format", "csv"]) == 2
    assert "--batch" in capsys.readouterr().err


def test_lists(capsys):
    assert main(["mfu", "--list"]) == 0
    text = capsys.readouterr().out
    for name in ("deepseek-v3", "megatron-full", "korthikanti", "llama4-maverick"):
        assert name in text


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom perfkit.cli.main import main\nmain(['mfu', '--help'])\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--tokens-per-second-per-device" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ("--tokens-per-second-per-device", "nan"),
        ("--tokens-per-second-per-device", "inf"),
        ("--tokens-per-second-per-device", "-5"),
        ("--tokens-per-second-per-device", "1e400"),
        ("--tokens-per-second-per-device", "5,7"),
        ("--layers", "inf"),
        ("--attention-len", "nan"),
        ("--heads", "33"),
        ("--peak-flops", "1e400"),
        ("--peak-flops", "989"),
        ("--seq-len", "8k"),
    ],
)
def test_a_number_that_cannot_be_is_one_line_on_stderr(capsys, wrong):
    assert main([*EXAMPLE, *wrong, "--format", "json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("perfkit: ")
    assert captured.err.count("\n") == 1


def test_names_may_be_spelt_as_published_tables_spell_them(capsys):
    speed = ["--tokens-per-second-per-device", "5.762k"]
    _, spelt = run_json(capsys, "--model", "meta-llama/Llama-3.1-8B", "--hardware", "H100 SXM", *speed)
    _, plain = run_json(capsys, *EXAMPLE[1:])
    assert spelt["mfu"] == plain["mfu"]


def test_an_ambiguous_device_gives_null_and_names_the_candidates(capsys):
    code, document = run_json(
        capsys, "--model", "llama3-8b", "--hardware", "H100", "--tokens-per-second-per-device", "5000"
    )
    assert code == 2
    assert document["mfu"] is None
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"):
        assert name in document["messages"][0]


def test_a_number_format_that_the_device_does_not_have_gives_null(capsys):
    code, document = run_json(
        capsys, "--model", "llama3-8b", "--hardware", "A100", "--dtype", "fp8", "--tokens-per-second-per-device", "900"
    )
    assert (code, document["mfu"]) == (2, None)
    assert "fp8" in document["messages"][0]
