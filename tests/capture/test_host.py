"""The host sampler: real files of /proc, rates between samples, nothing for what is not there."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from perfkit.capture.host import NAMES, HostSampler


def test_this_machine_has_cpu_memory_and_a_process():
    sampler = HostSampler(os.getpid())
    sampler.sample()
    sum(range(2_000_000))
    values = {name: value for _, name, series, value, _ in sampler.sample() if series is None}
    assert 0 <= values["host_cpu_ratio"] <= 1
    assert 0 < values["host_memory_used_bytes"] <= values["host_memory_total_bytes"]
    assert values["process_rss_bytes"] > 1_000_000
    assert values["process_cpu_cores"] > 0


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def fake_machine(top, scale):
    """Files of a machine whose counters stand at `scale` times a unit."""
    proc, sys = top / "proc", top / "sys"
    write(proc / "stat", f"cpu {60 * scale} 0 0 {30 * scale} {10 * scale} 0 0 0 0 0\ncpu0 0\n")
    write(proc / "loadavg", "1.5 1 1 1/2 3\n")
    write(proc / "meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    write(
        proc / "diskstats",
        f" 8 0 sda 5 0 {1000 * scale} 0 5 0 {2000 * scale} 0 0 {100 * scale} 0\n 7 0 loop0 1 0 1 0 1\n",
    )
    lines = f"Inter-|\n face |\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: {7000 * scale} 0 0 0 0 0 0 0 {9000 * scale} 0\n"
    write(proc / "net/dev", lines)
    write(proc / "7/stat", f"7 (a (b) c) S {'0 ' * 10}{50 * scale} {50 * scale} 0 0 0 0 12 0 0 0 3 0\n")
    write(proc / "7/io", f"rchar: 1\nread_bytes: {4096 * scale}\nwrite_bytes: {8192 * scale}\n")
    nfs = "device srv:/x mounted on /data with fstype nfs4 statvers=1.1\n"
    write(
        proc / "7/mountstats",
        f"device proc mounted on /proc with fstype proc\n{nfs}  bytes: 1 2 3 4 {500 * scale} {600 * scale} 7 8\n",
    )
    write(
        proc / "fs/lustre/llite/work-ff/stats", f"snapshot_time 1\nread_bytes 5 samples [bytes] 0 9 {11000 * scale}\n"
    )
    for name, words in (("port_rcv_data", 100), ("port_xmit_data", 200)):
        write(sys / f"class/infiniband/mlx5_0/ports/1/counters/{name}", f"{words * scale}\n")
    return proc, sys


def test_rates_are_differences_over_time(tmp_path, monkeypatch):
    clock = iter([100.0, 102.0])
    fake = SimpleNamespace(time_ns=time.time_ns, monotonic=lambda: next(clock))  # other threads have the real one
    monkeypatch.setattr("perfkit.capture.host.time", fake)
    proc, sys = fake_machine(tmp_path, 1)
    sampler = HostSampler(7, proc=proc, sys=sys)
    first = {(name, series) for _, name, series, _, _ in sampler.sample()}
    assert ("host_memory_used_bytes", None) in first
    assert not any("per_second" in name or "ratio" in name for name, _ in first)
    fake_machine(tmp_path, 3)
    values = {(name, series): value for _, name, series, value, _ in sampler.sample()}
    assert values["host_cpu_ratio", None] == pytest.approx(0.6)
    assert values["host_iowait_ratio", None] == pytest.approx(0.1)
    assert values["host_memory_used_bytes", None] == 600 * 1024
    assert values["disk_read_bytes_per_second", "sda"] == 1000 * 512
    assert values["disk_busy_ratio", "sda"] == pytest.approx(0.1)
    assert values["network_received_bytes_per_second", "eth0"] == 7000
    assert values["process_written_bytes_per_second", None] == 8192
    assert values["nfs_read_bytes_per_second", "/data"] == 500
    assert values["lustre_read_bytes_per_second", "work-ff"] == 11000
    assert values["infiniband_sent_bytes_per_second", "mlx5_0/1"] == 800
    assert values["process_cpu_cores", None] == pytest.approx(100 / os.sysconf("SC_CLK_TCK"))
    assert {name for name, _ in values} <= set(NAMES)
    assert not any(series in ("lo", "loop0") for _, series in values)


def test_a_counter_that_jumps_back_gives_no_rate_and_a_missing_machine_gives_nothing(tmp_path):
    proc, sys = fake_machine(tmp_path, 5)
    sampler = HostSampler(7, proc=proc, sys=sys)
    sampler.sample()
    fake_machine(tmp_path, 1)
    assert not any("per_second" in name for _, name, _, _, _ in sampler.sample())
    assert HostSampler(7, proc=tmp_path / "no", sys=tmp_path / "no").sample() == []


def test_a_rank_that_is_not_the_first_of_its_host_samples_its_process_only():
    names = {name for _, name, _, _, _ in HostSampler(os.getpid(), whole_host=False).sample()}
    assert names
    assert all(name.startswith("process_") for name in names)
