"""What this machine has, what the peak registry knows, and what the machine really reaches.

examples:
  perfkit hardware                                  this machine, and every device of the registry
  perfkit hardware "NVIDIA H200"                    one device, with the source of every value
  perfkit hardware --calibrate                      measure matmul and copy, store the result
  torchrun --nproc-per-node 2 -m perfkit hardware --calibrate      and all-reduce
  perfkit mfu … --hardware "<name of the CPU>" --peak measured     use the measurement

A device that the registry does not know can be given in peaks.toml; the page docs/hardware.md shows how.
"""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("name", nargs="?", help="device name as the driver reports it, or a registry id")
    parser.add_argument("--calibrate", action="store_true", help="measure this machine")
    parser.add_argument("--device", default="auto", help="what to measure: auto (default), cpu, gpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each number format (default 2)")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """List, show one, or measure."""
    import json
    import os

    from perfkit.cli import hardware_text
    from perfkit.errors import UsageError

    if args.calibrate:
        if args.name:
            raise UsageError("--calibrate measures this machine; it takes no device name")
        document: dict[str, Any] = _calibrate(args.seconds, args.device)
        if int(os.environ.get("RANK", "0")) != 0:
            return 0
        render = hardware_text.print_measured
    elif args.name:
        document, render = _show(args.name), hardware_text.print_device
    else:
        document, render = _list(), hardware_text.print_all
    if args.format == "json":
        print(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        render(document)
    return 0


def _calibrate(seconds: float, device: str) -> dict[str, Any]:
    import os

    from perfkit.errors import UsageError
    from perfkit.hardware.calibration import calibrate
    from perfkit.hardware.overrides import measured_path, save_measured

    if not seconds > 0:
        raise UsageError(f"--seconds {seconds} makes no sense", next_step="use a positive number")
    entries = calibrate(seconds=seconds, device=device)
    if int(os.environ.get("RANK", "0")) == 0:
        for entry in entries:
            save_measured(entry)
    return {"measured": entries, "path": str(measured_path())}


def _show(name: str) -> dict[str, Any]:
    from perfkit.errors import UnknownHardware
    from perfkit.hardware.lookup import ambiguity, find_device
    from perfkit.hardware.overrides import load_measured
    from perfkit.hardware.registry import normalise

    measured = load_measured().get(normalise(name))
    if measured is not None and measured["kind"] == "cpu":
        return {"device": name, "how": "measured", "notes": [], "values": [], "measured": measured}
    found = find_device(name)
    if found.candidates:
        raise UnknownHardware(ambiguity(name, found.candidates))
    return {**_device_document(found.device), "how": found.how, "notes": list(found.notes), "measured": measured}


def _device_document(device: Any) -> dict[str, Any]:
    return {
        "device": device.id,
        "vendor": device.vendor,
        "names": list(device.names),
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "pcie_gbps": device.pcie_gbps,
        "values": [
            {"metric": v.metric, "value": v.value, "unit": v.unit, "source": v.source, "note": v.note}
            for v in device.values.values()
        ],
    }


def _list() -> dict[str, Any]:
    import dataclasses

    from perfkit.hardware.detection import detect_devices
    from perfkit.hardware.overrides import load_measured, load_user_devices
    from perfkit.hardware.registry import load_registry

    local = [{**dataclasses.asdict(d), **_recognise(d)} for d in detect_devices()]
    return {
        "local": local,
        "registry": [_device_document(d) for d in load_registry().devices.values()],
        "user": [_device_document(d) for d in load_user_devices().values()],
        "measured": list(load_measured().values()),
    }


def _recognise(device: Any) -> dict[str, Any]:
    from perfkit.errors import UnknownHardware
    from perfkit.hardware.lookup import find_device

    if device.kind == "cpu":
        return {"registry_id": None, "notes": []}
    try:
        found = find_device(
            device.name,
            compute_capability=device.compute_capability,
            sm_count=device.sm_count,
            memory_bytes=device.memory_bytes,
            power_limit_watts=device.power_limit_watts,
        )
    except UnknownHardware as error:
        return {"registry_id": None, "notes": [str(error)]}
    return {"registry_id": found.device.id, "notes": list(found.notes)}
