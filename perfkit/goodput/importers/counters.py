"""Counters of GPUs: Prometheus text (dcgm-exporter, nvidia_gpu_exporter, any other) and `nvidia-smi` CSV.

Names stay as they are. Values that mean `no value` are dropped and counted: DCGM's blanks (9223372036854775794 and its
neighbours, 2147483632 and its neighbours, 2^47), NaN, and nvidia-smi's [N/A], [Not Supported], ERR!. A scrape without
time stamps is of the moment that `--as-of` gives, else of the file's time; the import says which.
"""

from __future__ import annotations

import csv
import io
import math
import re
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from perfkit.errors import CorruptInput
from perfkit.goodput.importers.base import Assume, Imported, decode, parse_times, whole
from perfkit.schema import COUNTERS, table_from_rows

_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s#]+)(?:\s+(?P<time>-?[\d.]+))?\s*(?:#.*)?$"
)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
HOSTS = ("Hostname", "hostname", "node", "exported_instance", "instance", "host")
DEVICES = ("gpu", "index", "minor_number", "device_index")
UUIDS = ("UUID", "uuid", "gpu_uuid")
_IDENTITY = {*HOSTS, *DEVICES, *UUIDS, "device", "modelName", "pci_bus_id", "DCGM_FI_DRIVER_VERSION"}
_NO_VALUE = re.compile(
    r"^\[?(N/A|Not Supported|Not Found|Unknown Error|GPU requires reset|Insufficient Permissions)\]?$|^ERR!$"
)


def is_blank(value: float, name: str) -> bool:
    """Whether a value is one of DCGM's that mean `none`; the 32-bit ones only where DCGM wrote them."""
    if value >= 0x7FFFFFFFFFFFFFF0:
        return True
    return name.startswith("DCGM_") and (0x7FFFFFF0 <= value <= 0x7FFFFFF3 or 2.0**47 <= value <= 2.0**47 + 3)


def looks_like_prometheus(head: bytes) -> bool:
    """Whether the first lines are comments of the exposition format, or samples."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:6] if line.strip()]
    if not lines or not all(re.match(r"# (HELP|TYPE|EOF|UNIT)\b", line) or _SAMPLE.match(line) for line in lines[:5]):
        return False
    return any(line.startswith("#") or "{" in line for line in lines[:5])


def read_prometheus(data: bytes, path: str, assume: Assume) -> Imported:
    """Return the samples of a scrape as rows of `counters`."""
    found = Imported(path, "prometheus")
    rows = []
    undated = 0
    for number, line in enumerate(decode(data, found).decode().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = _sample(line, number, found)
        if row is None:
            continue
        if row["time_ns"] is None:
            undated += 1
            row["time_ns"] = assume.as_of_ns
        rows.append(row)
    if undated:
        when = datetime.fromtimestamp((assume.as_of_ns or 0) // 10**9, timezone.utc)
        found.assumed.append(f"{undated} samples without a time are of {when:%Y-%m-%d %H:%M:%S} UTC")
    found.tables["counters"] = table_from_rows(COUNTERS, rows)
    return found


def _sample(line: str, number: int, found: Imported) -> dict[str, Any] | None:
    match = _SAMPLE.match(line.strip())
    if not match:
        found.reject(number, f"no sample: {line.strip()[:80]}")
        return None
    labels = _labels(match["labels"] or "")
    try:
        value = float(match["value"])
        time = None if match["time"] is None else round(float(match["time"]) * 1e6)
    except (ValueError, OverflowError):
        found.reject(number, f"no number: {match['value'][:40]}")
        return None
    if time is not None and abs(time) >= 2**63:
        found.reject(number, f"no time: {match['time'][:40]}")
        return None
    if labels is None:
        found.reject(number, f"labels cannot be read: {line.strip()[:80]}")
        return None
    if math.isnan(value) or is_blank(value, match["name"]):
        found.reject(number, f"value means none: {match['name']} {match['value']}")
        return None
    device = next((n for k in DEVICES if (n := whole(labels.get(k, ""))) is not None), None)
    rest = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in _IDENTITY)
    return {
        "host": next((labels[k] for k in HOSTS if labels.get(k)), None),
        "device": device,
        "uuid": next((labels[k] for k in UUIDS if labels.get(k)), None),
        "time_ns": time,
        "name": match["name"],
        "series": rest or None,
        "value": value,
    }


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if not match:
            return None if text[at:].strip() else labels
        labels[match[1]] = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), match[2])
        at = match.end()
    return labels


# ------------------------------------------------------------------ nvidia-smi


def looks_like_nvidia_smi(head: bytes) -> bool:
    """Whether the first line names columns of `nvidia-smi --query-gpu`."""
    names = [n.strip() for n in head.split(b"\n", 1)[0].decode("utf-8", "replace").split(",")]
    return any(
        re.match(r"(utilization\.|power\.|temperature\.|clocks\.|memory\.|ecc\.|pstate|clocks_event)", n) for n in names
    )


def read_nvidia_smi(data: bytes, path: str, assume: Assume) -> Imported:
    """Return the columns of `nvidia-smi --query-gpu=… --format=csv` as rows of `counters`."""
    found = Imported(path, "nvidia-smi")
    try:
        lines = list(csv.reader(io.StringIO(decode(data, found).decode(), newline=""), skipinitialspace=True))
    except csv.Error as error:
        raise CorruptInput(f"no CSV: {error}", path=path, next_step="run nvidia-smi again") from error
    if not lines:
        raise CorruptInput("empty", path=path, next_step="run nvidia-smi again")
    names = [name.strip() for name in lines[0]]
    plain = [re.sub(r"\s*\[.*\]$", "", name) for name in names]
    identity = {
        "timestamp",
        "index",
        "uuid",
        "name",
        "gpu_uuid",
        "gpu_name",
        "host",
        "hostname",
        "driver_version",
        "pci.bus_id",
    }
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        if not cells:
            continue
        if len(cells) != len(names):
            found.reject(number, f"wrong number of fields: {len(cells)} instead of {len(names)}")
            continue
        row = dict(zip(plain, (c.strip() for c in cells), strict=True))
        rows += _smi_row(row, dict(zip(plain, names, strict=True)), identity, number, assume, found)
    found.tables["counters"] = table_from_rows(COUNTERS, rows)
    if "timestamp" in plain:
        found.assumed.append(f"times are {assume.timezone}")
    return found


def _smi_row(
    row: dict[str, str], names: dict[str, str], identity: set[str], number: int, assume: Assume, found: Imported
) -> list[dict[str, Any]]:
    time = assume.as_of_ns
    if stamp := row.get("timestamp"):
        seconds, _, fraction = stamp.partition(".")
        parsed = parse_times(pa.array([seconds]), assume.timezone, ("%Y/%m/%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S"))[
            0
        ].as_py()
        if parsed is None:
            found.reject(number, f"no time: {stamp[:40]}")
            return []
        time = parsed + (whole(fraction.ljust(9, "0")[:9]) or 0)
    same = {
        "time_ns": time, "device": whole(row.get("index", "")),
        "uuid": row.get("uuid") or row.get("gpu_uuid"), "host": row.get("host") or row.get("hostname"),
    }  # fmt: skip
    rows = []
    for name, text in row.items():
        if name in identity:
            continue
        if _NO_VALUE.match(text) or not text:
            found.reject(number, f"value means none: {name} {text}")
            continue
        value = _smi_value(text)
        if value is None:
            found.reject(number, f"no number: {name} {text[:40]}")
            continue
        rows.append({**same, "name": names[name], "value": value})
    return rows


def _smi_value(text: str) -> float | None:
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        return float(int(text, 16))
    if text in ("Active", "Enabled", "Yes"):
        return 1.0
    if text in ("Not Active", "Disabled", "No"):
        return 0.0
    match = re.match(r"^P?(-?\d+(?:\.\d+)?)\s*(%|W|MiB|MHz|C|MB/s|us)?$", text)
    return float(match[1]) if match else None
