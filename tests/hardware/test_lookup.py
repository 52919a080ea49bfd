from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import CorruptInput, UnknownHardware, UsageError
from perfkit.hardware.lookup import find_device, resolve_peak
from perfkit.hardware.overrides import load_measured, save_measured
from perfkit.hardware.registry import load_registry, normalise, short_name


def peak_tflops(name: str, dtype: str = "bf16", **facts: object) -> float:
    return resolve_peak(name, dtype, **facts).flops / 1e12


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NVIDIA H20", "NVIDIA H200"),
        ("NVIDIA B200", "NVIDIA GB200"),
        ("NVIDIA L4", "NVIDIA L40"),
        ("NVIDIA L40", "NVIDIA L40S"),
        ("NVIDIA A10", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 NVL"),
        ("NVIDIA H200", "NVIDIA H200 NVL"),
    ],
)
def test_names_that_contain_each_other_are_different_devices(one, other):
    assert find_device(one).device.id != find_device(other).device.id
    assert peak_tflops(one) != peak_tflops(other)


def test_case_and_spaces_do_not_matter():
    assert find_device("  nvidia   h100 80gb hbm3 ").device.id == "H100-SXM5-80GB"


@pytest.mark.parametrize("name", ["H100", "NVIDIA H100", "100", "DGX H100", "NVIDIA RTX A4000", "NVIDIA H1000", ""])
def test_a_part_of_a_name_is_unknown_and_the_message_names_the_overrides(name):
    with pytest.raises(UnknownHardware) as caught:
        resolve_peak(name, "bf16")
    message = str(caught.value)
    assert "--peak-flops" in message
    assert "peaks.toml" in message
    assert "--calibrate" in message


def test_a_part_of_a_name_gets_suggestions():
    with pytest.raises(UnknownHardware, match=r"it has 'NVIDIA H100 80GB HBM3', 'NVIDIA H100 PCIe', 'NVIDIA H100 NVL'"):
        find_device("DGX H100")


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("B200", "B200-SXM"),
        ("b300", "B300-SXM"),
        ("H100 SXM", "H100-SXM5-80GB"),
        ("H100-SXM5", "H100-SXM5-80GB"),
        ("NVIDIA H100 SXM5 80GB", "H100-SXM5-80GB"),
        ("H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("H100 PCIe", "H100-PCIe-80GB"),
        ("H20", "H20-96GB"),
        ("Instinct MI300X", "MI300X"),
        ("tpu-v5p", "TPU v5p"),
        ("v6e", "TPU v6e"),
        ("TPU v5 lite", "TPU v5e"),
    ],
)
def test_a_short_name_that_can_only_mean_one_device_is_that_device(name, device):
    assert find_device(name).device.id == device


@pytest.mark.parametrize("name", ["A100", "NVIDIA A100", "a100_80gb", "A100-80GB", "A100 40GB", "A100 PCIe"])
def test_a_short_name_of_several_devices_has_the_peak_that_all_of_them_have(name):
    peak = resolve_peak(name, "bf16")
    assert peak.flops == 312e12
    assert " or " in peak.device
    assert "may be" in peak.note


@pytest.mark.parametrize("name", ["H100", "NVIDIA H100", "h100_80gb", "V100", "H200"])
def test_a_short_name_of_devices_with_other_peaks_names_them_and_guesses_none(name):
    with pytest.raises(UnknownHardware, match="ambiguous: give the name that the driver reports, one of") as caught:
        resolve_peak(name, "fp16")
    named = [
        device
        for device in load_registry().devices.values()
        if any(f"'{n}'" in str(caught.value) for n in device.names)
    ]
    assert len(named) >= 2


def test_the_facts_of_the_board_decide_what_an_ambiguous_name_is():
    facts = {"compute_capability": "9.0", "sm_count": 114, "memory_bytes": 85 * 10**9}
    assert find_device("NVIDIA H100", **facts).device.id == "H100-PCIe-80GB"


def test_a_value_that_only_some_candidates_have_is_not_taken_for_all():
    assert find_device("NVIDIA H200").device.get("fp8") == 1979
    assert find_device("NVIDIA H200 NVL").device.get("fp8") is None
    assert find_device("H200").device.get("fp8") is None
    assert find_device("H100").device.sm_count is None


@given(
    st.text(max_size=30)
    | st.sampled_from(sorted(load_registry().by_name)).flatmap(lambda n: st.sampled_from([n[1:], n + "X", n[:-1]]))
)
def test_no_text_but_a_whole_known_name_ever_matches(text):
    registry = load_registry()
    known = normalise(text) in registry.by_name or short_name(text) in registry.by_short_name
    try:
        find_device(text)
    except UnknownHardware:
        assert not known
    else:
        assert known


def test_every_device_of_the_published_look_up_table_resolves_to_its_reference(reference_data):
    with (reference_data / "peak_lookup_by_framework.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 28
    for row in rows:
        reference = row["reference_dense_bf16_or_fp16_tflops"]
        if not reference:
            continue
        name = row["device_name"]
        dtype = "bf16" if find_device(name).device.get("bf16") is not None else "fp16"
        assert peak_tflops(name, dtype) == float(reference), name


def test_every_reported_name_of_the_published_list_is_known(reference_data):
    with (reference_data / "device_names.csv").open(newline="") as handle:
        for row in csv.DictReader(handle):
            assert find_device(row["reported_name"]).device.id == row["device"], row


def test_a_renamed_board_is_recognised_by_its_facts():
    facts = {"compute_capability": "8.0", "sm_count": 108, "memory_bytes": 42505273344}
    found = find_device("NVIDIA A100-PG509-200", **facts)
    assert found.how == "board"
    assert "A100-SXM4-40GB" in found.device.id
    assert peak_tflops("NVIDIA A100-PG509-200", **facts) == 312
    assert "recognised" in found.notes[0]


def test_boards_that_cannot_be_told_apart_have_only_the_values_they_share():
    # a V100 in a DGX Station: SXM2 and PCIe have the same SMs and memory, and different peaks
    facts = {"compute_capability": "7.0", "sm_count": 80, "memory_bytes": 34084028416}
    found = find_device("Tesla V100-DGXS-32GB", **facts)
    assert found.device.get("memory_gbps") == 900
    with pytest.raises(UnknownHardware, match="V100-SXM2 125, V100-PCIe 112"):
        resolve_peak("Tesla V100-DGXS-32GB", "fp16", **facts)


def test_a_die_of_a_mi250_has_the_peaks_of_the_mi210_that_it_cannot_be_told_from():
    facts = {"compute_capability": "9.0", "sm_count": 104, "memory_bytes": 68702699520}
    found = find_device("AMD Radeon Graphics", **facts)  # what ROCm 6 reports for either
    assert found.device.id == "MI210 or MI250-GCD"
    assert peak_tflops("AMD Radeon Graphics", **facts) == peak_tflops("AMD Instinct MI250") == 181


def test_two_facts_are_not_enough():
    with pytest.raises(UnknownHardware):
        find_device("NVIDIA A100-PG509-200", compute_capability="8.0", sm_count=108)


def test_a_mig_slice_is_not_the_board():
    name = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    with pytest.raises(UnknownHardware, match="SM count"):
        resolve_peak(name, "bf16")
    assert peak_tflops(name, sm_count=60) == pytest.approx(989.5 * 60 / 132)
    assert find_device(name, sm_count=60).device.get("memory_gb") == 40
    assert find_device(name, sm_count=60).device.get("memory_gbps") is None


def test_a_full_name_with_fewer_sms_is_a_slice():
    assert peak_tflops("NVIDIA A100-SXM4-80GB", sm_count=42) == pytest.approx(312 * 42 / 108)
    assert peak_tflops("NVIDIA A100-SXM4-80GB", sm_count=108) == 312


def test_a_mig_slice_of_an_unknown_board_is_unknown():
    with pytest.raises(UnknownHardware, match="MIG slice"):
        find_device("NVIDIA Foo MIG 1g.10gb", sm_count=14)


def test_a_power_cap_is_said_and_does_not_scale_the_peak():
    capped = resolve_peak("NVIDIA H100 80GB HBM3", "bf16", power_limit_watts=500)
    assert "500 W of 700 W" in capped.note
    assert capped.flops == 989.5e12
    assert "500 W" not in resolve_peak("NVIDIA H100 80GB HBM3", "bf16", power_limit_watts=700).note


def test_a_dtype_without_a_source_is_unknown_and_the_known_ones_are_named():
    with pytest.raises(UnknownHardware, match=r"known are .*bf16"):
        resolve_peak("NVIDIA H20", "fp4")


def test_the_users_file_wins_over_the_registry(config_dir):
    config_dir.mkdir()
    (config_dir / "peaks.toml").write_text(
        '["NVIDIA Foo"]\nbf16 = 512\nsource = "mail"\n["NVIDIA B200"]\nbf16 = 2237\n'
    )
    assert peak_tflops("nvidia foo") == 512
    assert peak_tflops("NVIDIA B200") == 2237
    assert "mail" in resolve_peak("NVIDIA Foo", "bf16").source


@pytest.mark.parametrize(
    "text", ["[", '["X"]\nbf16 = "many"', '["X"]\nbf17 = 3', '["X"]\nbf16 = -1', "X = 3", '["X"]\nbf16 = true']
)
def test_a_broken_users_file_is_an_error_that_names_it(config_dir, text):
    config_dir.mkdir()
    (config_dir / "peaks.toml").write_text(text)
    with pytest.raises(CorruptInput, match=r"peaks\.toml"):
        find_device("NVIDIA B200")


def measurement(device: str = "Some CPU", fp32: float = 0.25) -> dict[str, object]:
    return {"device": device, "kind": "cpu", "date": "2026-01-02T03:04:05+00:00", "backend": "numpy",
            "matmul_tflops": {"fp32": fp32}}  # fmt: skip


def test_a_measured_peak_is_used_only_when_asked_for(config_dir):
    save_measured(measurement())
    peak = resolve_peak("some  cpu", "fp32", peak="measured")
    assert peak.flops == 0.25e12
    assert "2026-01-02" in peak.source
    with pytest.raises(UnknownHardware):
        resolve_peak("Some CPU", "fp32")
    with pytest.raises(UnknownHardware, match="not measured in bf16"):
        resolve_peak("Some CPU", "bf16", peak="measured")
    with pytest.raises(UsageError):
        resolve_peak("Some CPU", "fp32", peak="guessed")


def test_saving_a_measurement_keeps_the_others(config_dir):
    save_measured(measurement("A"))
    save_measured(measurement("B"))
    save_measured(measurement("a", fp32=2.0))
    assert {e["device"]: e["matmul_tflops"]["fp32"] for e in load_measured().values()} == {"a": 2.0, "B": 0.25}


def test_a_broken_file_of_measurements_says_how_to_make_a_new_one(config_dir):
    config_dir.mkdir()
    (config_dir / "measured.json").write_text("{")
    with pytest.raises(CorruptInput, match="--calibrate"):
        load_measured()
