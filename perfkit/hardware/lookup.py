"""From what a driver says to a device, and from a device and a dtype to a peak.

    find_device(name, sm_count=…, …) -> Found           raises UnknownHardware
    resolve_peak(name, dtype, peak="registry") -> Peak  raises UnknownHardware

Four steps, in this order: the user's peaks.toml; the exact name (case and spaces folded); the whole name
without vendor and dashes, or a listed short name (`B200`, `A100 80GB`); and the facts of the board (compute
capability, SM count and memory size together) for boards that a vendor renamed, such as
`NVIDIA A100-PG509-200`. Where several devices are left, only values on which all of them agree are known:
`A100` has a bf16 peak, `H100` has none and says which three it may be. Parts of names never match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from perfkit.errors import UnknownHardware, UsageError
from perfkit.hardware.overrides import load_measured, load_user_devices, measured_path, peaks_path
from perfkit.hardware.registry import DTYPES, Device, Value, canonical_dtype, load_registry, normalise, short_name

T = TypeVar("T")

_MIG = re.compile(r"^(?P<board>.+?)\s+MIG\s+(?:(?P<ci>\d+)c\.)?(?P<slices>\d+)g\.(?P<gb>\d+)gb(?:\+\S+)?$", re.I)


@dataclass(frozen=True)
class Found:
    """A device, how it was recognised, and what to tell the user about it."""

    device: Device
    how: str
    """`user`, `name`, `short name`, `board`, `mig`."""
    notes: tuple[str, ...] = ()
    candidates: tuple[Device, ...] = ()
    """The devices that a short name may mean, if there are several."""


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
    elif ids := registry.by_short_name.get(short_name(name)):
        board = _by_board(name, compute_capability, sm_count, memory_bytes) if len(ids) > 1 else None
        found = board or _by_short_name(name, [registry.devices[i] for i in ids], sm_count)
    elif mig := _MIG.match(name.strip()):
        found = _mig_slice(name, mig, sm_count=sm_count)
    elif board := _by_board(name, compute_capability, sm_count, memory_bytes):
        found = board
    else:
        raise UnknownHardware(f"{name!r} is not in the peak registry{_suggestions(name)}", next_step=_override(name))
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
        if found.candidates:
            raise UnknownHardware(ambiguity(name, found.candidates, dtype), next_step=_override(name, dtype))
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


def _by_short_name(name: str, devices: list[Device], sm_count: int | None) -> Found:
    if len(devices) == 1:
        return replace(_named(devices[0], name, sm_count), how="short name")
    note = f"{name!r} may be {_either(devices)}: only what all of them share is known"
    return Found(_agreement(name, devices, everyone=True), "short name", (note,), tuple(devices))


def _either(devices: Sequence[Device]) -> str:
    return " or ".join(device.id for device in devices)


def ambiguity(name: str, devices: Sequence[Device], dtype: str = "bf16") -> str:
    """Say which devices a short name may mean, by the names that drivers report."""
    listed = []
    for device in devices:
        peak = device.get(dtype)
        figure = "unknown" if peak is None else f"{peak:g} TFLOP/s"
        listed.append(f"{(*device.names, device.id)[0]!r} ({dtype} {figure})")
    return f"{name!r} is ambiguous: give the name that the driver reports, one of {', '.join(listed)}"


def _mig_slice(name: str, mig: re.Match[str], *, sm_count: int | None) -> Found:
    """Return the slice as a device of its own."""
    registry = load_registry()
    board_id = registry.by_name.get(normalise(mig["board"]))
    if board_id is None:
        raise UnknownHardware(
            f"{name!r} is a MIG slice of a board that is not in the registry{_suggestions(mig['board'])}",
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
    note = f"{name!r} recognised as {_either(same)} by compute capability {capability}, {sm_count} SMs and memory size"
    if len(same) == 1:
        return Found(same[0], "board", (note,))
    return Found(_agreement(name, same), "board", (note,))


def _agreement(name: str, devices: list[Device], *, everyone: bool = False) -> Device:
    """Merge devices that cannot be told apart: a value is known where nobody contradicts it, or `everyone` has it."""
    values: dict[str, Value] = {}
    for metric in sorted({metric for device in devices for metric in device.values}):
        given = [(d.id, v) for d in devices if (v := d.values.get(metric)) is not None and v.value is not None]
        if not given or (everyone and len(given) < len(devices)):
            continue
        first = given[0][1]
        if all(value.value == first.value for _, value in given):
            values[metric] = first
        else:
            differ = ", ".join(f"{who} {value.value:g}" for who, value in given)
            values[metric] = replace(first, value=None, note=f"the candidates differ: {differ}")
    return Device(
        id=_either(devices),
        vendor=devices[0].vendor,
        names=(name,),
        compute_capability=_common([device.compute_capability for device in devices]),
        sm_count=_common([device.sm_count for device in devices]),
        memory_gb=_common([device.memory_gb for device in devices]) or (),
        values=values,
    )


def _common(facts: list[T | None]) -> T | None:
    return facts[0] if all(fact == facts[0] for fact in facts) else None


def _with_power_cap(found: Found, limit_watts: float | None) -> Found:
    tdp = found.device.get("tdp_watts")
    if limit_watts is None or tdp is None or limit_watts >= 0.99 * tdp:
        return found
    note = (
        f"power limit {limit_watts:g} W of {tdp:g} W: the published peak is not scaled, "
        "so part of the loss is the cap, not the code"
    )
    return replace(found, notes=(*found.notes, note))


def _suggestions(name: str) -> str:
    """Devices that share a word such as `h100` with the name, else those that are spelt nearly like it."""
    registry = load_registry()
    words = {word for word in short_name(name).split("-") if re.search(r"[a-z]\d", word)}
    close = [known for known in registry.by_short_name if words & set(known.split("-"))]
    if not close:
        import difflib

        close = difflib.get_close_matches(short_name(name), registry.by_short_name, n=8, cutoff=0.6)
    devices = list(dict.fromkeys(device for known in close for device in registry.by_short_name[known]))[:5]
    names = [(*registry.devices[d].names, d)[0] for d in devices]
    return f" (it has {', '.join(repr(n) for n in names)})" if names else ""


def _override(name: str, dtype: str = "bf16") -> str:
    return (
        f"pass --peak-flops (dense FLOP/s of one device, e.g. 989e12), or write the peak into {peaks_path()}: "
        f'["{name}"] {dtype} = TFLOP/s, or measure it with `perfkit hardware --calibrate` and use --peak measured'
    )
