"""Which link a group spans, and what nccl-tests could show on it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from sim_tables import group_table

from perfkit.analysis.calls import CALLS
from perfkit.analysis.job import INSTANCES, _with_links
from perfkit.analysis.links import group_links

H100, A100_PCIE, MI300X = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe", "AMD Instinct MI300X"


def view(groups, hosts, device=H100, calls=None, world_size=16):
    ranks = sorted(hosts)
    devices = device if isinstance(device, dict) else dict.fromkeys(ranks, device)
    return SimpleNamespace(
        groups=group_table([(None, None, ranks_) for ranks_ in groups]), hosts=hosts, devices=devices, ranks=ranks,
        calls=CALLS.empty_table() if calls is None else calls, world_size=world_size,
    )  # fmt: skip


TWO_HOSTS = {rank: f"node{rank // 8}" for rank in range(16)}


def test_a_group_in_one_host_has_the_devices_own_links():
    row = group_links(view([range(8)], TWO_HOSTS)).to_pylist()[0]
    assert (row["link"], row["hosts"], row["peak_gbps"]) == ("nvlink", 1, 450)
    assert row["source"]


def test_a_collective_over_hosts_uses_the_adapters_of_all_its_ranks_there():
    whole, one_each, two_each = group_links(view([range(16), [0, 8], [0, 1, 8, 9]], TWO_HOSTS)).to_pylist()
    assert whole["link"] == one_each["link"] == "network"
    assert (whole["peak_gbps"], one_each["peak_gbps"], two_each["peak_gbps"]) == (400, 50, 100)
    assert whole["message_gbps"] == 50
    assert whole["all_to_all_gbps"] == pytest.approx(50 * 15 / 8)
    assert one_each["all_to_all_gbps"] == 50
    assert "clouds differ" in whole["note"]


def test_a_card_without_links_has_pcie_and_amd_has_its_own_word():
    assert group_links(view([range(8)], TWO_HOSTS, A100_PCIE)).to_pylist()[0]["link"] == "pcie"
    row = group_links(view([range(8)], TWO_HOSTS, MI300X)).to_pylist()[0]
    assert (row["link"], row["peak_gbps"]) == ("infinity fabric", 448)


@pytest.mark.parametrize(
    ("hosts", "device", "note"),
    [
        ({**TWO_HOSTS, 3: None}, H100, "hosts of 1 of its 8 ranks"), (TWO_HOSTS, "Foo 9000", "not in the registry"),
        (TWO_HOSTS, {**dict.fromkeys(range(16), H100), 3: MI300X}, "devices differ"),
        (TWO_HOSTS, None, "the device is not recorded"),
    ],
)  # fmt: skip
def test_what_is_not_known_has_no_peak_and_says_why(hosts, device, note):
    row = group_links(view([range(8)], hosts, device)).to_pylist()[0]
    assert row["peak_gbps"] is None
    assert note in row["note"]


def test_hosts_of_a_rack_may_share_its_links():
    row = group_links(view([range(16)], TWO_HOSTS, "NVIDIA GB200")).to_pylist()[0]
    assert row["peak_gbps"] is None
    assert "NVLink domain" in row["note"]


def calls(devices):
    rows = [{"rank": rank, "device": device, "start_ns": 0, "end_ns": 1} for rank, device in enumerate(devices)]
    return pa.Table.from_pylist(rows, schema=CALLS)


def test_ranks_with_different_device_numbers_share_a_host_if_all_are_there():
    nobody = dict.fromkeys(range(4))
    row = group_links(view([range(4)], nobody, calls=calls([0, 1, 2, 3]), world_size=4)).to_pylist()[0]
    assert row["link"] == "nvlink"
    assert "by the device numbers" in row["note"]
    for devices, world in (([0, 0, 1, 1], 4), ([0, 1, 2, 3], 8)):
        row = group_links(view([range(4)], nobody, calls=calls(devices), world_size=world)).to_pylist()[0]
        assert row["link"] is None


def test_a_group_of_one_and_one_without_ranks():
    alone, unknown = group_links(view([[3], None], TWO_HOSTS)).to_pylist()
    assert alone["link"] == "self"
    assert "not recorded" in unknown["note"]


def test_efficiency_is_against_the_peak_of_the_operation_and_is_not_clipped():
    links = group_links(view([range(16), range(8), [3]], TWO_HOSTS))
    op = ["all_reduce", "all_to_all", "send", "all_reduce", "recv", "all_reduce", None]
    busbw = [200.0, 46.875, 25.0, 500.0, 225.0, 1.0, 1.0]
    rows = [{"gid": g, "op": o, "busbw_gbps": b} for g, o, b in zip([0, 0, 0, 1, 0, 2, -1], op, busbw, strict=True)]
    instances = pa.Table.from_pylist(rows, schema=INSTANCES)
    found = _with_links(instances, links, np.array([False, False, False, True, True, False, False]))
    assert found["peak_gbps"].to_pylist()[:5] == pytest.approx([400.0, 93.75, 50.0, 450.0, 450.0])
    assert found["efficiency"].to_pylist()[:5] == pytest.approx([0.5, 0.5, 0.5, 500 / 450, 0.5])
    assert found["efficiency"].to_pylist()[5:] == [None, None]
