"""The user's own peaks: `peaks.toml`, and `measured.json` written by `perfkit hardware --calibrate`.

Both lie in $PERFKIT_CONFIG_DIR, else $XDG_CONFIG_HOME/perfkit, else ~/.config/perfkit. `peaks.toml` has
a table per device name as the driver reports it, in the units of the registry:

    ["NVIDIA Foo 9000"]
    bf16 = 512                     # dense TFLOP/s
    memory_gbps = 3000
    source = "vendor's data sheet of 2026-05"

An entry there wins over the registry. Measured peaks are used only when asked for (`--peak measured`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from perfkit.errors import CorruptInput
from perfkit.hardware.registry import DTYPES, Device, Value, canonical_dtype, normalise

_METRICS = {"memory_gb": "GB", "memory_gbps": "GB/s", "link_gbps": "GB/s per direction", "pcie_gen": "generation",
            "nic_gbps": "GB/s per direction", "tdp_watts": "W", "peak_clock_mhz": "MHz"}  # fmt: skip


def config_dir() -> Path:
    """Folder of the user's files."""
    if folder := os.environ.get("PERFKIT_CONFIG_DIR"):
        return Path(folder)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "perfkit"


def peaks_path() -> Path:
    """Where the user's peaks are."""
    return config_dir() / "peaks.toml"


def measured_path() -> Path:
    """Where measured peaks are."""
    return config_dir() / "measured.json"


def load_user_devices(path: Path | None = None) -> dict[str, Device]:
    """Read peaks.toml into devices by normalised name; no file is no devices."""
    path = path or peaks_path()
    if not path.exists():
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:  # pragma: no cover
        import tomli as tomllib
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CorruptInput(f"not valid TOML: {error}", path=str(path), next_step="correct or remove it") from None
    return {normalise(name): _device(name, table, path) for name, table in tables.items()}


def _device(name: str, table: Any, path: Path) -> Device:
    if not isinstance(table, dict):
        raise CorruptInput(
            f"{name!r} is not a table", path=str(path), next_step=f'write ["{name}"] and below it bf16 = 512'
        )
    source = f"{path}: {table.get('source', 'given by the user')}"
    values = {}
    for key, number in table.items():
        if key == "source":
            continue
        metric = key if key in _METRICS else _dtype_or_none(key)
        if metric is None or isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise CorruptInput(
                f"[{name}] {key} = {number!r} is not a peak",
                path=str(path),
                next_step=f"use a positive number and one of {', '.join((*DTYPES, *_METRICS))}",
            )
        values[metric] = Value(metric, float(number), _METRICS.get(metric, "TFLOP/s"), source)
    return Device(id=name, vendor="user", names=(name,), values=values)


def _dtype_or_none(key: str) -> str | None:
    from perfkit.errors import UsageError

    try:
        return canonical_dtype(key)
    except UsageError:
        return None


def load_measured(path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Read measured peaks by normalised device name; see `perfkit.hardware.calibration` for the layout."""
    path = path or measured_path()
    try:
        document = json.loads(path.read_text("utf-8"))
        return {normalise(entry["device"]): entry for entry in document["devices"]}
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        raise CorruptInput(
            "not a file of measured peaks", path=str(path), next_step="run `perfkit hardware --calibrate` again"
        ) from None


def save_measured(entry: dict[str, Any], path: Path | None = None) -> Path:
    """Add or replace one device's measurement; the file is replaced whole, so a reader never sees half of it."""
    path = path or measured_path()
    entries = load_measured(path)
    entries[normalise(entry["device"])] = entry
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"schema_version": 1, "devices": list(entries.values())}, indent=1) + "\n")
    temporary.replace(path)
    return path
