"""Text of `perfkit hardware`: the machine, the registry, one device, a measurement."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfkit.cli.mfu_text import output

_COLUMNS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "memory_gb", "memory_gbps", "link_gbps", "tdp_watts")
_HEADERS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "GB", "GB/s", "link", "W")


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def print_all(document: dict[str, Any]) -> None:
    """Print what this machine has and what the registry knows."""
    with output() as console:
        _print_local(console, document)
        table = Table(box=box.SIMPLE, title="peak registry: dense TFLOP/s (int8: TOP/s), GB/s in one direction")
        table.title_justify = "left"
        table.add_column("device", no_wrap=True)
        for header in _HEADERS:
            table.add_column(header, justify="right", no_wrap=True)
        for device in [*document["user"], *document["registry"]]:
            values = {v["metric"]: v["value"] for v in device["values"]}
            table.add_row(device["device"], *(_cell(values.get(column)) for column in _COLUMNS))
        console.print(table)
        console.print('sources of one: perfkit hardware "NVIDIA H100 80GB HBM3"', style="dim")


def _print_local(console: Console, document: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE, title="this machine", title_justify="left")
    for header in ("", "name", "registry", "memory", "clock", "power limit", "measured peak"):
        table.add_column(header, overflow="fold")
    measured = {entry["device"]: entry for entry in document["measured"]}
    notes = []
    for device in document["local"]:
        memory = "–" if device["memory_bytes"] is None else f"{device['memory_bytes'] / 2**30:.0f} GiB"
        clock = "–" if device["max_clock_mhz"] is None else f"{device['max_clock_mhz']:.0f} MHz"
        power = "–" if device["power_limit_watts"] is None else f"{device['power_limit_watts']:g} W"
        entry = measured.get(device["name"])
        rates = ", ".join(f"{k} {v:.3g}" for k, v in entry["matmul_tflops"].items()) if entry else ""
        best = f"{rates} TFLOP/s on {entry['date'][:10]}" if entry else "– (perfkit hardware --calibrate)"
        name = f"{device['name']} ({device['cores']} cores)" if device["cores"] else device["name"]
        table.add_row(device["kind"], name, device["registry_id"] or "–", memory, clock, power, best)
        notes += device["notes"]
    console.print(table)
    for note in notes:
        console.print(Text(f"! {note}", style="yellow"))


def print_device(document: dict[str, Any]) -> None:
    """Print one device with the source of every value."""
    with output() as console:
        console.print(Text(document["device"], style="bold"))
        for name in document.get("names", ()):
            console.print(f"  reported as {name}", style="dim")
        if document["values"]:
            table = Table(box=box.SIMPLE)
            for header, justify in (("value", "left"), ("", "right"), ("unit", "left")):
                table.add_column(header, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # rich's Literal
            table.add_column("source", overflow="fold")
            table.add_column("note", overflow="fold")
            for v in document["values"]:
                table.add_row(v["metric"], _cell(v["value"]), v["unit"], v["source"].replace("; ", "\n"), v["note"])
            console.print(table)
        for note in document["notes"]:
            console.print(Text(f"! {note}", style="yellow"))
        if document["measured"] is not None:
            _print_entry(console, document["measured"])


def print_measured(document: dict[str, Any]) -> None:
    """Print fresh measurements and where they were stored."""
    with output() as console:
        for entry in document["measured"]:
            _print_entry(console, entry)
        console.print(f"stored in {document['path']}; use it with `perfkit mfu … --peak measured`", style="dim")


def _print_entry(console: Console, entry: dict[str, Any]) -> None:
    console.print(Text(f"{entry['device']}, measured {entry['date']} with {entry['backend']}", style="bold"))
    for dtype, rate in entry["matmul_tflops"].items():
        size = entry["matmul_size"][dtype]
        console.print(f"  matmul {dtype:<5} {rate:10.3f} TFLOP/s   best at {size} x {size}")
    console.print(f"  copy         {entry['copy_gbps']:10.1f} GB/s      read and written")
    if entry["allreduce"] is not None:
        for row in entry["allreduce"]["sweep"]:
            console.print(
                f"  all-reduce   {row['busbw_gbps']:10.2f} GB/s busbw at {row['bytes'] / 2**20:.3g} MiB, "
                f"{entry['allreduce']['world_size']} ranks, {entry['allreduce']['backend']}"
            )
    clock = "unknown" if entry["clock_mhz"] is None else f"{entry['clock_mhz']:.0f} MHz"
    console.print(f"  clock        {clock}", style="dim")
