"""Sample the host: CPU, memory, the trainer's own I/O, disks, networks, NFS and Lustre.

    HostSampler(pid, whole_host=True).sample() -> rows of `counters`: (time_ns, name, series, value, device)

Reads /proc and nothing else; no package, no privilege. Rates are differences between two samples, so the first
sample has none. What a machine does not have, or does not let us read, has no rows; nothing is ever 0 for that.
Counters that jump back (a device that was replaced) give no rate either.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Row = tuple[int, str, str | None, float, int | None]
Totals = dict[tuple[str, str | None], float]
SECTOR_BYTES = 512
_WHOLE_DISK = re.compile(r"(sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|nvme\d+n\d+|mmcblk\d+|md\d+|dm-\d+)")
_NO_NETWORK = re.compile(r"lo|veth.*|docker.*|br-.*|cni.*|flannel.*|virbr.*")

NAMES = {
    "host_cpu_ratio": "CPU time of all cores that is not idle, 0–1",
    "host_iowait_ratio": "CPU time that waits for disks, 0–1",
    "host_memory_used_bytes": "memory that is not available to new programs",
    "host_memory_total_bytes": "memory of the machine",
    "host_load_1m": "load average over one minute",
    "process_cpu_cores": "CPU seconds per second of the training process, without its loader processes",
    "process_rss_bytes": "resident memory of the training process",
    "process_threads": "threads of the training process",
    "process_read_bytes_per_second": "bytes that the training process fetched from storage",
    "process_written_bytes_per_second": "bytes that the training process sent to storage",
    "disk_read_bytes_per_second": "by disk",
    "disk_written_bytes_per_second": "by disk",
    "disk_busy_ratio": "share of time with requests in flight, by disk, 0–1",
    "network_received_bytes_per_second": "by interface",
    "network_sent_bytes_per_second": "by interface",
    "infiniband_received_bytes_per_second": "by device and port",
    "infiniband_sent_bytes_per_second": "by device and port",
    "nfs_read_bytes_per_second": "fetched from the server, by mount point",
    "nfs_written_bytes_per_second": "sent to the server, by mount point",
    "lustre_read_bytes_per_second": "by file system",
    "lustre_written_bytes_per_second": "by file system",
}
"""Every counter that the sampler may write, and what it means."""


class HostSampler:
    """Remembers the last totals, so that the next sample has rates."""

    def __init__(
        self, pid: int, *, whole_host: bool = True, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        self._pid, self._whole_host, self._proc, self._sys = pid, whole_host, proc, sys
        self._before: Totals = {}
        self._before_at: float | None = None
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def sample(self) -> list[Row]:
        """Read everything once."""
        at, now = time.time_ns(), time.monotonic()
        values: Totals = {}
        totals: Totals = {}
        for read in self._readers():
            try:
                read(values, totals)
            except (OSError, ValueError, IndexError, KeyError):
                continue  # not here, or not for us
        if self._before_at is not None and now > self._before_at:
            values |= self._rates(totals, now - self._before_at)
        self._before, self._before_at = totals, now
        return [(at, name, series, value, None) for (name, series), value in values.items()]

    def _readers(self) -> Iterator[Callable[[Totals, Totals], None]]:
        yield self._process
        yield self._process_io
        if self._whole_host:
            yield from (self._cpu, self._memory, self._disks, self._networks, self._infiniband, self._nfs, self._lustre)

    def _rates(self, totals: Totals, seconds: float) -> Totals:
        rates: Totals = {}
        for key, total in totals.items():
            before = self._before.get(key)
            if before is not None and total >= before and not key[0].startswith("_"):
                rates[key] = (total - before) / seconds
        spent = {name: totals[name, None] - self._before[name, None] for name in ("_cpu", "_idle", "_iowait")
                 if (name, None) in totals and (name, None) in self._before}  # fmt: skip
        if spent.get("_cpu", 0) > 0:
            rates["host_cpu_ratio", None] = min(1.0, max(0.0, 1 - (spent["_idle"] + spent["_iowait"]) / spent["_cpu"]))
            rates["host_iowait_ratio", None] = min(1.0, max(0.0, spent["_iowait"] / spent["_cpu"]))
        return rates

    # ---------------------------------------------------------------- the trainer

    def _process(self, values: Totals, totals: Totals) -> None:
        fields = (self._proc / str(self._pid) / "stat").read_text().rpartition(")")[2].split()
        totals["process_cpu_cores", None] = (int(fields[11]) + int(fields[12])) / self._tick
        values["process_threads", None] = int(fields[17])
        values["process_rss_bytes", None] = int(fields[21]) * self._page

    def _process_io(self, values: Totals, totals: Totals) -> None:
        lines = (self._proc / str(self._pid) / "io").read_text().splitlines()
        fields = {key: int(value) for key, _, value in (line.partition(":") for line in lines)}
        totals["process_read_bytes_per_second", None] = fields["read_bytes"]
        totals["process_written_bytes_per_second", None] = fields["write_bytes"]

    # ---------------------------------------------------------------- the machine

    def _cpu(self, values: Totals, totals: Totals) -> None:
        fields = [int(one) for one in (self._proc / "stat").read_text().partition("\n")[0].split()[1:]]
        totals["_cpu", None], totals["_idle", None], totals["_iowait", None] = sum(fields[:8]), fields[3], fields[4]
        values["host_load_1m", None] = float((self._proc / "loadavg").read_text().split()[0])

    def _memory(self, values: Totals, totals: Totals) -> None:
        lines = (self._proc / "meminfo").read_text().splitlines()
        fields = {key: int(value.split()[0]) * 1024 for key, _, value in (line.partition(":") for line in lines)}
        values["host_memory_total_bytes", None] = fields["MemTotal"]
        values["host_memory_used_bytes", None] = fields["MemTotal"] - fields["MemAvailable"]

    def _disks(self, values: Totals, totals: Totals) -> None:
        for line in (self._proc / "diskstats").read_text().splitlines():
            fields = line.split()
            if _WHOLE_DISK.fullmatch(fields[2]) and (int(fields[3]) or int(fields[7])):
                totals["disk_read_bytes_per_second", fields[2]] = int(fields[5]) * SECTOR_BYTES
                totals["disk_written_bytes_per_second", fields[2]] = int(fields[9]) * SECTOR_BYTES
                totals["disk_busy_ratio", fields[2]] = int(fields[12]) / 1000

    def _networks(self, values: Totals, totals: Totals) -> None:
        for line in (self._proc / "net/dev").read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            fields = rest.split()
            if not _NO_NETWORK.fullmatch(name.strip()):
                totals["network_received_bytes_per_second", name.strip()] = int(fields[0])
                totals["network_sent_bytes_per_second", name.strip()] = int(fields[8])

    def _infiniband(self, values: Totals, totals: Totals) -> None:
        """Counters of the port count words of four bytes."""
        for port in sorted((self._sys / "class/infiniband").glob("*/ports/*")):
            series = f"{port.parent.parent.name}/{port.name}"
            for name, file in (("received", "port_rcv_data"), ("sent", "port_xmit_data")):
                words = int((port / "counters" / file).read_text())
                totals[f"infiniband_{name}_bytes_per_second", series] = words * 4

    def _nfs(self, values: Totals, totals: Totals) -> None:
        """`bytes:` of mountstats: normal read and write, direct read and write, then server read and write."""
        mount = None
        for line in (self._proc / str(self._pid) / "mountstats").read_text().splitlines():
            if line.startswith("device "):
                found = re.search(r" mounted on (\S+) with fstype nfs", line)
                mount = found[1] if found else None
            elif mount and line.lstrip().startswith("bytes:"):
                fields = line.split()
                totals["nfs_read_bytes_per_second", mount] = int(fields[5])
                totals["nfs_written_bytes_per_second", mount] = int(fields[6])

    def _lustre(self, values: Totals, totals: Totals) -> None:
        for top in (self._proc / "fs/lustre/llite", self._sys / "kernel/debug/lustre/llite"):
            for file in sorted(top.glob("*/stats")):
                for line in file.read_text().splitlines():
                    fields = line.split()
                    if fields[:1] in (["read_bytes"], ["write_bytes"]):
                        name = "read" if fields[0] == "read_bytes" else "written"
                        totals[f"lustre_{name}_bytes_per_second", file.parent.name] = int(fields[6])
