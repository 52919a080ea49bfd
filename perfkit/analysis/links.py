"""Which link a process group spans, and how fast that can be.

    group_links(view)             -> LINKS, one row per group
    link_peaks(links, gid, op)    -> peak of the link for each instance, NaN if that is not known

A group inside one host runs over the device's own links (NVLink, Infinity Fabric), or over PCIe where the registry
knows that and no link. A group over several hosts is bound by their network adapters, one per device: a collective
that passes round the hosts may use the adapters of all its ranks there, a message has one, and of an all-to-all only
the part that leaves the host goes through them. Peaks are those of nccl-tests' bus bandwidth, in one direction.

Hosts that are not recorded stay unknown, with one exception that is said: if all ranks of the job are traced and no
two have the same device number, they share a host. Racks of one NVLink domain (GB200, GB300) hold many hosts, so
across hosts their link is not known. Efficiencies above 1 are kept: in-switch reduction (NVLS) exceeds the wire rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.layout import View
from perfkit.analysis.schedules import Floats
from perfkit.errors import PerfkitError
from perfkit.hardware.lookup import Found, find_device

LINKS = pa.schema(
    [
        ("gid", pa.int64()), ("link", pa.utf8()), ("hosts", pa.int64()), ("ranks_per_host", pa.int64()),
        ("peak_gbps", pa.float64()), ("all_to_all_gbps", pa.float64()), ("message_gbps", pa.float64()),
        ("inside_gbps", pa.float64()),
        ("device", pa.utf8()), ("source", pa.utf8()), ("note", pa.utf8()),
    ]
)  # fmt: skip
"""`link` is nvlink, infinity fabric, pcie, network, self (one rank), or null; a peak is null if it is not known.
`inside_gbps` is for messages between two ranks of one host."""
RACK_SCALE = ("GB200", "GB300")
_MESSAGES = ("send", "recv", "send_recv")


def group_links(view: View) -> pa.Table:
    """Return the link of every group."""
    hosts, assumed = _hosts(view)
    devices: dict[str, Found | None] = {}
    rows: list[dict[str, object]] = []
    for gid, ranks in enumerate(view.groups["ranks"].to_pylist()):
        row: dict[str, object] = {"gid": gid}
        rows.append(row)
        if ranks is None:
            row["note"] = "the ranks of the group are not recorded"
            continue
        per_host = Counter(hosts.get(rank) for rank in ranks)
        unknown = per_host.pop(None, 0)
        names = {name for rank in ranks if (name := view.devices.get(rank)) is not None}
        if len(ranks) > 1 and (unknown or not per_host):
            row["note"] = f"hosts of {unknown} of its {len(ranks)} ranks are not known"
            continue
        row |= {"hosts": len(per_host), "ranks_per_host": min(per_host.values(), default=len(ranks))}
        row["device"] = next(iter(names)) if len(names) == 1 else None
        if len(ranks) == 1:
            row["link"] = "self"
        elif row["device"] is None:
            row["note"] = "devices differ: " + ", ".join(sorted(names)) if names else "the device is not recorded"
        else:
            row |= _peaks(_device(str(row["device"]), devices), len(ranks), list(per_host.values()))
        if assumed and len(ranks) > 1:
            row["note"] = "; ".join(filter(None, (str(row.get("note") or ""), "one host, by the device numbers")))
    return pa.Table.from_pylist(rows, schema=LINKS)


def link_peaks(
    links: pa.Table, gid: npt.ArrayLike, op: pa.ChunkedArray, same_host: npt.ArrayLike | None = None
) -> Floats:
    """Return the peak bus bandwidth of each instance's link; NaN where it is not known.

    `same_host` says which messages stay inside one host; without it a message counts as what its group spans.
    """
    text = op.cast(pa.utf8())
    columns = [
        np.append(pc.fill_null(links[name], np.nan).to_numpy(), np.nan)
        for name in ("peak_gbps", "all_to_all_gbps", "message_gbps", "inside_gbps")
    ]
    rows = np.asarray(gid, np.int64)
    message = np.asarray(pc.fill_null(pc.is_in(text, pa.array(_MESSAGES)), False))
    all_to_all = np.asarray(pc.fill_null(pc.equal(text, "all_to_all"), False))
    pair = (
        np.where(np.asarray(same_host, bool), columns[3][rows], columns[2][rows])
        if same_host is not None
        else columns[2][rows]
    )
    result: Floats = np.where(message, pair, np.where(all_to_all, columns[1][rows], columns[0][rows]))
    return result


def _hosts(view: View) -> tuple[Mapping[int, str | None], bool]:
    """Return the host by rank, and whether one host was concluded from the device numbers."""
    if any(view.hosts.get(rank) is not None for rank in view.ranks) or len(view.ranks) != view.world_size:
        return view.hosts, False
    used = view.calls.group_by(["rank", "device"]).aggregate([])["device"].to_pylist()
    alone = len(used) == len(view.ranks) > 1 and None not in used and len(set(used)) == len(used)
    return (dict.fromkeys(view.ranks, "the host"), True) if alone else (view.hosts, False)


def _device(name: str, known: dict[str, Found | None]) -> Found | None:
    if name not in known:
        try:
            known[name] = find_device(name)
        except PerfkitError:
            known[name] = None
    return known[name]


def _peaks(found: Found | None, size: int, per_host: list[int]) -> dict[str, object]:
    """Return link and peaks of a group of `size` ranks, so many on each host."""
    if found is None:
        return {"note": "the device is not in the registry: add link_gbps and nic_gbps to peaks.toml"}
    device, inside = found.device, min(per_host)
    link, network = device.get("link_gbps"), device.get("nic_gbps")
    if len(per_host) == 1:
        if link is None:
            peak = device.pcie_gbps
            note = None if peak is not None else f"no link of {device.id} is known: add link_gbps to peaks.toml"
            return {
                "link": "pcie" if peak is not None else None,
                **_all(peak),
                "source": _source(found, "pcie_gen"),
                "note": note,
            }
        kind = "infinity fabric" if device.vendor.lower() == "amd" else "nvlink"
        return {"link": kind, **_all(link), "source": _source(found, "link_gbps"), "note": _note(found, "link_gbps")}
    if device.id in RACK_SCALE:
        return {"note": f"hosts of {device.id} may share an NVLink domain: the link between them is not known"}
    if network is None:
        return {"link": "network", "note": f"no network of {device.id} is known: add nic_gbps to peaks.toml"}
    ceiling = link if link is not None else float("inf")
    leaving = (size - inside) / (size - 1)  # share of an all-to-all that goes to other hosts
    return {
        "link": "network", "peak_gbps": min(ceiling, network * inside),
        "all_to_all_gbps": min(ceiling, network / leaving), "message_gbps": network, "inside_gbps": link,
        "source": _source(found, "nic_gbps"), "note": _note(found, "nic_gbps"),
    }  # fmt: skip


def _all(peak: float | None) -> dict[str, object]:
    return dict.fromkeys(("peak_gbps", "all_to_all_gbps", "message_gbps", "inside_gbps"), peak)


def _source(found: Found, metric: str) -> str | None:
    value = found.device.values.get(metric)
    return None if value is None else value.source


def _note(found: Found, metric: str) -> str | None:
    value = found.device.values.get(metric)
    return value.note or None if value is not None else None
