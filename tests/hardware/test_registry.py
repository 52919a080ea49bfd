from __future__ import annotations

import csv
from importlib import resources

import pytest

from perfkit.errors import UsageError
from perfkit.hardware.registry import DTYPES, canonical_dtype, load_registry, normalise


def test_every_value_has_a_source_a_unit_and_a_sane_size():
    for device in load_registry().devices.values():
        for value in device.values.values():
            assert value.source, (device.id, value.metric)
            assert "UNVERIFIED" not in value.source
            if value.value is None:
                assert "conflict" in value.note, (device.id, value.metric)
            else:
                assert value.value > 0
                assert value.unit


def test_values_that_were_only_recalled_are_left_out():
    devices = load_registry().devices
    assert devices["H800-SXM-80GB"].get("fp8") is None
    assert devices["H20-96GB"].get("fp8") is None
    assert devices["RTX PRO 6000 Blackwell"].get("bf16") is None


def test_conflicting_sources_are_noted():
    devices = load_registry().devices
    assert "2500" in devices["GB200"].values["bf16"].note
    assert devices["GB200"].get("bf16") == 2450
    assert "15000" in devices["B300-SXM"].values["fp4"].note
    assert devices["A10G"].get("bf16") is None


def test_every_name_has_a_source_and_a_device():
    text = resources.files("perfkit.hardware").joinpath("data", "names.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        assert row["source"]
        assert row["device"] in load_registry().devices


def test_no_two_devices_share_a_name():
    registry = load_registry()
    names = [normalise(name) for device in registry.devices.values() for name in {device.id, *device.names}]
    assert len(names) == len(set(names))


def test_halving_the_precision_never_lowers_the_peak():
    order = ("fp32", "tf32", "bf16", "fp8", "fp4")
    for device in load_registry().devices.values():
        peaks = [peak for dtype in order if (peak := device.get(dtype)) is not None]
        assert peaks == sorted(peaks), device.id


def test_the_published_peak_follows_from_its_clock():
    # peak = clock x tensor cores x FLOP per core and cycle; the last is a whole number for a true clock
    per_cycle = {"A100-SXM4-80GB": (432, 512), "H100-SXM5-80GB": (528, 1024), "H100-PCIe-80GB": (456, 1024)}
    for name, (cores, flop) in per_cycle.items():
        device = load_registry().devices[name]
        clock = device.get("peak_clock_mhz")
        assert clock is not None
        assert device.peak_flops("bf16") == pytest.approx(clock * 1e6 * cores * flop, rel=2e-3)


def test_pcie_rate_follows_from_the_generation():
    assert load_registry().devices["H100-SXM5-80GB"].pcie_gbps == pytest.approx(63.0, abs=0.1)
    assert load_registry().devices["T4"].pcie_gbps is None  # its generation has no source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bfloat16", "bf16"),
        ("amp_bf16", "bf16"),
        ("torch.float16", "fp16"),
        ("MXFP8", "fp8"),
        ("NVFP4", "fp4"),
        ("TF32", "tf32"),
    ],
)
def test_dtypes_have_many_spellings(text, expected):
    assert canonical_dtype(text) == expected
    assert canonical_dtype(expected) == expected


def test_an_unknown_dtype_names_the_known_ones():
    with pytest.raises(UsageError, match="bf16"):
        canonical_dtype("bf61")
    assert len(set(DTYPES)) == len(DTYPES)
