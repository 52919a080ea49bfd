"""The peak registry: data/*.csv as values.

    load_registry() -> Registry        devices by id, by the name that drivers report and by short names

Every value carries its sources and, where sources differ, a note that says so. Peaks are dense, per
device as the driver counts devices (a MI250X is two of them, `MI250X-GCD`), in TFLOP/s (10^12); link rates
are GB/s (10^9) in one direction. A short name (`H100`, `A100 80GB`) lists every device that it may mean.
A row without a value is a dispute that was left open on purpose: the note is shown, the peak is null.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from perfkit.errors import UsageError

DTYPES: tuple[str, ...] = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Number formats that a peak may be given for."""

_DTYPE_ALIASES = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "single": "fp32",
    "tensorfloat32": "tf32", "float16": "fp16", "half": "fp16", "f16": "fp16", "amp_fp16": "fp16",
    "bfloat16": "bf16", "amp_bf16": "bf16", "float8": "fp8", "mxfp8": "fp8", "amp_fp8": "fp8", "fp8-cs": "fp8",
    "fp8-mx": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "e4m3": "fp8", "float4": "fp4", "nvfp4": "fp4",
    "mxfp4": "fp4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """One fact about a device, with where it comes from."""

    metric: str
    value: float | None
    """Null if the sources conflict and none could be preferred."""
    unit: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Device:
    """One kind of device. H100 SXM, PCIe and NVL are three."""

    id: str
    vendor: str
    names: tuple[str, ...]
    """Names as drivers report them."""
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_gb: tuple[float, ...] = ()
    """Nominal memory sizes that are sold under this id."""
    values: Mapping[str, Value] = field(default_factory=dict)

    def get(self, metric: str) -> float | None:
        """Return a value by metric, or None if it is not known."""
        value = self.values.get(metric)
        return None if value is None else value.value

    def peak_flops(self, dtype: str) -> float | None:
        """Return the dense peak in FLOP/s, or None if no source gives one."""
        tflops = self.get(canonical_dtype(dtype))
        return None if tflops is None else tflops * 1e12

    @property
    def pcie_gbps(self) -> float | None:
        """PCIe x16 payload rate in one direction, from the generation: lanes, line code and nothing else."""
        gigatransfers = {3: 8.0, 4: 16.0, 5: 32.0}.get(int(self.get("pcie_gen") or 0))
        return None if gigatransfers is None else gigatransfers * 16 * (128 / 130) / 8


@dataclass(frozen=True)
class Registry:
    """All devices, by id and by normalised name."""

    devices: Mapping[str, Device]
    by_name: Mapping[str, str]
    """Normalised driver name or id -> device id."""
    by_short_name: Mapping[str, tuple[str, ...]]
    """Name without vendor, dashes folded -> ids of all devices that it may mean."""


def canonical_dtype(text: str) -> str:
    """Return the registry's word for a number format (`amp_bf16`, `bfloat16` -> `bf16`)."""
    key = text.strip().lower().removeprefix("torch.")
    key = _DTYPE_ALIASES.get(key, key)
    if key not in DTYPES:
        raise UsageError(f"unknown dtype {text!r}", next_step=f"use one of {', '.join(DTYPES)}")
    return key


def normalise(name: str) -> str:
    """Fold case and runs of white space; nothing else, because substrings of names lie."""
    return re.sub(r"\s+", " ", name.strip()).casefold()


_VENDORS = frozenset(("nvidia", "amd", "instinct", "tesla", "geforce", "google", "intel", "generation"))


def short_name(name: str) -> str:
    """Fold a whole name: no vendor, one dash for blanks, dashes and underscores (`h100_80gb` -> `h100-80gb`)."""
    return "-".join(word for word in re.split(r"[\s_-]+", normalise(name)) if word and word not in _VENDORS)


def _read(name: str) -> list[dict[str, str]]:
    text = resources.files("perfkit.hardware").joinpath("data", name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def load_registry() -> Registry:
    """Read the data files once."""
    sources = {row["code"]: row["source"] for row in _read("sources.csv")}
    values: dict[str, dict[str, Value]] = {}
    for row in _read("peaks.csv"):
        values.setdefault(row["device"], {})[row["metric"]] = Value(
            metric=row["metric"],
            value=float(row["value"]) if row["value"] else None,
            unit=row["unit"],
            source="; ".join(sources[code] for code in row["sources"].split("+")),
            note=row["note"],
        )
    names: dict[str, list[str]] = {}
    for row in _read("names.csv"):
        names.setdefault(row["device"], []).append(row["name"])
    devices: dict[str, Device] = {}
    by_name: dict[str, str] = {}
    for row in _read("devices.csv"):
        device = Device(
            id=row["device"],
            vendor=row["vendor"],
            names=tuple(names.get(row["device"], ())),
            compute_capability=row["compute_capability"] or None,
            sm_count=int(row["sm_count"]) if row["sm_count"] else None,
            memory_gb=tuple(float(size) for size in row["memory_gb"].split()),
            values=values.get(row["device"], {}),
        )
        devices[device.id] = device
        for name in (device.id, *device.names):
            by_name[normalise(name)] = device.id
    short: dict[str, dict[str, None]] = {}
    for name, device_id in by_name.items():
        short.setdefault(short_name(name), {})[device_id] = None
    for row in _read("short_names.csv"):
        short.setdefault(short_name(row["name"]), {}).update(dict.fromkeys(row["devices"].split(";")))
    return Registry(devices, by_name, {name: tuple(ids) for name, ids in short.items()})
