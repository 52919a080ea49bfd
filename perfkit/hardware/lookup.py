"""From what a driver says to a device, and from a device and a dtype to a peak.

    find_device(name, sm_count=…, …) -> Found           raises UnknownHardware
    resolve_peak(name, dtype, peak="registry") -> Peak  raises UnknownHardware

Three steps, in this order: the user's peaks.toml, the exact name (case and spaces folded), and the
facts of the board (compute capability, SM count and memory size together) for boards that a vendor
renamed, such as `NVIDIA A100-PG509-200`. Several devices may share those facts: then only values on
which all of them agree are known. Parts of names are used to suggest, never to match.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from perfkit.errors import UnknownHardware, UsageError
from perfkit.hardware.overrides import load_measured, load_user_devices, measured_path, peaks_path
from perfkit.hardware.registry import DTYPES, Device, Value, canonical_dtype, load_registry, normalise

_MIG = re.compile(r"^(?P<board>.+?)\s+MIG\s+(?:(?P<ci>\d+)c\.)?(?P<slices>\d+)g\.(?P<gb>\d+)gb(?:\+\S+)?$", re.I)


@dataclass(frozen=True)
class Found:
    """A device, how it was recognised, and what to tell the user about it."""

    device: Device
    how: str
    """`user`, `name`, `board`, `mig`."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """A dense peak with its source."""

    flops: float
    dtype: str
    device: str
    source: str
    note: str = ""


def find_device(
    name: str,
    *,
    compute_capability: str | None = None,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    power_limit_watts: float | None = None,
) -> Found:
    """Recognise a device; raise `UnknownHardware` with suggestions and the override if that fails."""
    key = normalise(name)
    registry = load_registry()
    if (device := load_user_devices().get(key)) is not None:
        found = Found(device, "user")
    elif key in registry.by_name:
        found = _named(registry.devices[registry.by_name[key]], name, sm_count)
    elif mig := _MIG.match(name.strip()):
        found = _mig_slice(name, mig, sm_count=sm_count)
    elif board := _by_board(name, compute_capability, sm_count, memory_bytes):
        found = board
    else:
        raise UnknownHardware(f"{name!r} is not in the peak registry{_suggestions(key)}", next_step=_override(name))
    return _with_power_cap(found, power_limit_watts)


def resolve_peak(
    name: str,
    dtype: str,
    *,
    peak: str = "registry",
    compute_capability: str | None = None,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    power_limit_watts: float | None = None,
) -> Peak:
    """Return the peak of a device for a dtype, from the registry or (`peak="measured"`) from a calibration."""
    dtype = canonical_dtype(dtype)
    if peak == "measured":
        return _measured_peak(name, dtype)
    if peak != "registry":
        raise UsageError(f"--peak {peak!r} is neither 'registry' nor 'measured'")
    found = find_device(
        name,
        compute_capability=compute_capability,
        sm_count=sm_count,
        memory_bytes=memory_bytes,
        power_limit_watts=power_limit_watts,
    )
    value = found.device.values.get(dtype)
    if value is None or value.value is None:
        known = [d for d in DTYPES if found.device.get(d) is not None]
        why = f": {value.note}" if value is not None and value.note else ""
        have = f"; known are {', '.join(known)}" if known else ""
        raise UnknownHardware(
            f"no {dtype} peak is known for {found.device.id!r}{why}{have}", next_step=_override(name, dtype)
        )
    notes = "; ".join(dict.fromkeys(text for text in (value.note, *found.notes) if text))
    return Peak(value.value * 1e12, dtype, found.device.id, value.source, notes)


def _measured_peak(name: str, dtype: str) -> Peak:
    entry = load_measured().get(normalise(name))
    tflops = None if entry is None else entry["matmul_tflops"].get(dtype)
    if entry is None or tflops is None:
        what = "has no measurement" if entry is None else f"was not measured in {dtype}"
        raise UnknownHardware(
            f"{name!r} {what} in {measured_path()}", next_step="run `perfkit hardware --calibrate` on it"
        )
    source = f"measured on {entry['date']} with {entry['backend']}, {measured_path()}"
    return Peak(tflops * 1e12, dtype, entry["device"], source, "a measured peak: MFU against it is higher")


def _named(device: Device, name: str, sm_count: int | None) -> Found:
    """Take a name at its word, unless the driver reports fewer SMs than the device has: then it is a slice."""
    if sm_count and device.sm_count and sm_count < device.sm_count:
        return _slice(device, "slice", name, sm_count, {})
    return Found(device, "name")


def _mig_slice(name: str, mig: re.Match[str], *, sm_count: int | None) -> Found:
    """Return the slice as a device of its own."""
    registry = load_registry()
    board_id = registry.by_name.get(normalise(mig["board"]))
    if board_id is None:
        raise UnknownHardware(
            f"{name!r} is a MIG slice of a board that is not in the registry{_suggestions(normalise(mig['board']))}",
            next_step=_override(name),
        )
    profile = f"MIG {mig['slices']}g.{mig['gb']}gb"
    memory = Value("memory_gb", float(mig["gb"]), "GB", profile, "of the profile's name")
    return _slice(registry.devices[board_id], profile, name, sm_count, {"memory_gb": memory})


def _slice(board: Device, what: str, name: str, sm_count: int | None, values: dict[str, Value]) -> Found:
    """Scale the board's peaks by the share of its SMs; without an SM count no peak is known."""
    if sm_count and board.sm_count and sm_count <= board.sm_count:
        note = f"{what}: {sm_count} of the {board.sm_count} SMs of {board.id}, peak scaled by that"
        for dtype in DTYPES:
            if (value := board.values.get(dtype)) is not None and value.value is not None:
                values[dtype] = replace(value, value=value.value * sm_count / board.sm_count, note=note)
    else:
        note = f"{what} of {board.id}: its SM count is needed to scale the peak"
        values |= {dtype: Value(dtype, None, "TFLOP/s", "", note) for dtype in DTYPES}
    device = replace(board, id=f"{board.id} {what}", names=(name,), sm_count=sm_count, values=values)
    return Found(device, "mig", (note,))


def _by_board(name: str, capability: str | None, sm_count: int | None, memory_bytes: int | None) -> Found | None:
    if not (capability and sm_count and memory_bytes):
        return None
    same = [
        device
        for device in load_registry().devices.values()
        if device.compute_capability == capability
        and device.sm_count == sm_count
        and any(0.96 <= memory_bytes / (gb * 2**30) <= 1.01 for gb in device.memory_gb)
    ]
    if not same:
        return None
    ids = " or ".join(device.id for device in same)
    note = f"{name!r} recognised as {ids} by compute capability {capability}, {sm_count} SMs and memory size"
    if len(same) == 1:
        return Found(same[0], "board", (note,))
    return Found(_agreement(name, same), "board", (note,))


def _agreement(name: str, devices: list[Device]) -> Device:
    """Merge devices that cannot be told apart: a value is known where nobody contradicts it."""
    values: dict[str, Value] = {}
    for metric in sorted({metric for device in devices for metric in device.values}):
        given = [(d.id, v) for d in devices if (v := d.values.get(metric)) is not None and v.value is not None]
        if not given:
            continue
        first = given[0][1]
        if all(value.value == first.value for _, value in given):
            values[metric] = first
        else:
            differ = ", ".join(f"{who} {value.value:g}" for who, value in given)
            values[metric] = replace(first, value=None, note=f"the candidates differ: {differ}")
    return replace(devices[0], id=" or ".join(d.id for d in devices), names=(name,), values=values)


def _with_power_cap(found: Found, limit_watts: float | None) -> Found:
    tdp = found.device.get("tdp_watts")
    if limit_watts is None or tdp is None or limit_watts >= 0.99 * tdp:
        return found
    note = (
        f"power limit {limit_watts:g} W of {tdp:g} W: the published peak is not scaled, "
        "so part of the loss is the cap, not the code"
    )
    return replace(found, notes=(*found.notes, note))


def _suggestions(key: str) -> str:
    registry = load_registry()
    close = [name for name in registry.by_name if key and key in re.split(r"[\s-]", name)]
    close += [name for name in difflib.get_close_matches(key, registry.by_name, n=8, cutoff=0.6) if not close]
    devices = list(dict.fromkeys(registry.by_name[name] for name in close))[:5]
    names = [(*registry.devices[d].names, d)[0] for d in devices]
    return f" (it has {', '.join(repr(n) for n in names)})" if names else ""


def _override(name: str, dtype: str = "bf16") -> str:
    return (
        f"pass --peak-flops (dense FLOP/s of one device, e.g. 989e12), or write the peak into {peaks_path()}: "
        f'["{name}"] {dtype} = TFLOP/s, or measure it with `perfkit hardware --calibrate` and use --peak measured'
    )
