"""The JSON document of `perfkit analyze --format json`, as a JSON Schema and as the keys it always has.

    SCHEMA                       the schema (draft 2020-12); published as docs/analyze.schema.json
    complete(summary) -> dict    the summary with every promised key; what nobody measured is null
    numeric_paths() -> {path: kind}   what `--fail-on` may name

Keys may be added, so no object forbids others. A list that nobody measured is null, and an empty one says that
there are none: `"findings": []` is good news, `"findings": null` is no news.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

NS, COUNT, RATIO, NUMBER = "ns", "count", "ratio", "number"
"""Kinds of numbers: nanoseconds, a count, a fraction 0–1, anything else."""


def _number(doc: str, kind: str = NUMBER, **limits: float) -> Schema:
    numeric = "integer" if kind in (NS, COUNT) else "number"
    return {"type": [numeric, "null"], "description": doc, "$comment": kind, **limits}


def _ns(doc: str) -> Schema:
    return _number(doc, NS)


def _count(doc: str) -> Schema:
    return _number(doc, COUNT, minimum=0)


def _ratio(doc: str) -> Schema:
    return _number(doc, RATIO, minimum=0, maximum=1)


def _text(doc: str) -> Schema:
    return {"type": ["string", "null"], "description": doc}


def _flag(doc: str) -> Schema:
    return {"type": ["boolean", "null"], "description": doc}


def _list(doc: str) -> Schema:
    return {"type": ["array", "null"], "items": {"type": "string"}, "description": doc}


def _object(doc: str, properties: dict[str, Schema], **more: Any) -> Schema:
    return {
        "type": ["object", "null"], "description": doc, "properties": properties, "required": list(properties), **more
    }  # fmt: skip


def _rows(doc: str, properties: dict[str, Schema], **more: Any) -> Schema:
    row = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": ["array", "null"], "description": doc, "items": row, **more}


_PARTITION = {
    "window_ns": _ns("Length of the windows."),
    "compute_ns": _ns("Some compute kernel runs."),
    "exposed_comm_ns": _ns("Communication and no compute."),
    "exposed_memcpy_ns": _ns("A copy and neither compute nor communication."),
    "idle_ns": _ns("Nothing runs."),
}
_IO = {"^[a-z0-9]+_gbps$": _number("GB/s (SI)."), "^[a-z0-9_]+_ns$": _ns("Time.")}

SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "perfkit analyze --format json",
    "description": "Fractions are 0–1, points 0–100, names carry units; unknown is null, never 0. Keys may be added.",
    "type": "object",
    "required": [
        "schema_version", "synthetic", "scope", "quality", "hardware", "throughput", "mfu", "totals", "idle", "io",
        "steps", "ranks", "collectives", "kernels", "waterfall", "findings",
    ],
    "properties": {
        "schema_version": {"const": 1, "description": "Bumped when a reader of the old document would misread it."},
        "synthetic": {"type": "boolean", "description": "Made from simulated traces: describes no real machine."},
        "scope": _object(
            "What the numbers cover.",
            {
                "ranks_traced": _count("Ranks with a trace."),
                "world_size": _count("Ranks of the job."),
                "steps": {
                    "type": ["array", "null"], "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
                    "description": "First and last step; null: one window per rank.",
                },
            },
        ),
        "quality": _object(
            "What the traces lack.",
            {
                "ranks": {"type": "array", "items": {"type": "integer"}, "description": "Ranks with a trace."},
                "steps_kept": _count("Pairs of rank and step."),
                "steps_source": _text("How steps were found."),
                "sources": _list("What recorded the traces: kineto, nsys, …"),
                "events": _count("Events read."),
                "rejected": _rows(
                    "Inputs that could not be used.", {"path": _text("File."), "reason": _text("Why.")}
                ),
                "clock": _object(
                    "Alignment of the ranks' clocks.",
                    {"aligned": _flag("Aligned."), "uncertainty_ns": _number("Uncertainty u.", NS)},
                ),
                "unknown_kernel_ns": _ns("Time of kernels that no pattern knows; inside compute."),
                "carry_in_ns": _ns("Work before the first window; outside all sums."),
                "spill_ns": _ns("Work that ran in a later step's window."),
                "graph_coverage": _ratio("Share of device work launched by CUDA graphs."),
                "launches_missing": _count("Of device_events, those whose launch is not in the trace."),
                "device_events": _count("Events on devices that start inside the windows."),
                "undated_events": _count("Events without a time."),
                "steps_without_work": _count("Steps in which nothing ran on the device."),
                "after_last_ns": _ns("Work after the last window; outside all sums."),
                "notes": _list("What else a careful reader must know."),
            },
        ),
        "hardware": _object(
            "What MFU is measured against.",
            {
                "device": _text("Device name."),
                "peak_flops": _number("Dense peak of one device, FLOP/s.", exclusiveMinimum=0),
                "dtype": _text("Dtype of the peak."),
                "source": _text("Where the peak comes from."),
                "memory_bytes_per_second": _number("Peak memory bandwidth.", exclusiveMinimum=0),
                "notes": _list("What else is known about the device."),
            },
        ),
        "throughput": _object(
            "Speed.",
            {
                "step_time_p50_ns": _ns("Median step."),
                "step_time_p95_ns": _ns("95th percentile."),
                "slow_steps": _count("Pairs of rank and step over the threshold."),
                "slow_step_excess_ns": _ns("What they took beyond the median."),
                "tokens_per_second": _number("Of the whole job.", minimum=0),
                "tokens_per_second_per_device": _number("Per device of the job.", minimum=0),
            },
        ),
        "mfu": _object(
            "Model FLOPs utilisation.",
            {
                "value": _number("MFU; null if a part of it is unknown.", RATIO, exclusiveMinimum=0, maximum=1),
                "hfu": _number("What was executed, recompute included.", RATIO, minimum=0),
                "convention": _text("How the model's FLOPs are counted."),
                "model_flops_per_step": _number("Model FLOPs of the whole job and one step.", minimum=0),
                "source": _text("Where the numerator comes from."),
                "flops_coverage": _ratio("Share of matmul time whose ops have known FLOPs."),
                "ladder_start": {
                    "enum": ["mfu", "hfu", "time", None],
                    "description": "What the waterfall starts with; `time`: shares of time, not points of peak.",
                },
                "messages": _list("Why a value is null, and what to pass."),
                "other_conventions": {
                    "type": ["object", "null"], "description": "MFU of the same run by other conventions.",
                    "additionalProperties": {"type": ["number", "null"]},
                },
            },
        ),
        "totals": _object(
            "All ranks and steps; the four parts sum to window_ns exactly.",
            {
                **_PARTITION,
                "comm_ns": _ns("Communication, hidden or not."),
                "overlap": _ratio("Share of communication that compute hides."),
            },
        ),
        "idle": _object(
            "Idle time by cause; sums to totals.idle_ns.",
            {
                "host_late_ns": _ns("The host launched too late."),
                "launch_ns": _ns("Launch latency."),
                "dependency_ns": _ns("A stream waited for another."),
                "unattributed_ns": _ns("No launch to look at."),
                "culprits": _rows(
                    "Who held the host up, largest first.",
                    {"kind": _text("Kind."), "where": _text("file:line, or a name."), "ns": _ns("Idle time.")},
                ),
            },
        ),
        "io": _object(
            "Input and output; more keys per direction of copies.",
            {
                "data_wait_ns": _ns("Idle for want of data."),
                "h2d_exposed_ns": _ns("Copies to the device that nothing hides."),
                "h2d_gbps": _number("Their speed, GB/s (SI)."),
                "checkpoint_ns": _ns("Checkpoints, on the host."),
            },
            patternProperties=_IO,
        ),
        "steps": _rows(
            "One row per rank and step, capped; all of them in `--table steps`.",
            {
                "rank": {"type": "integer"}, "step": _number("Step.", COUNT), "start_ns": _ns("Start."), **_PARTITION,
                "spill_ns": _ns("Work that ran in a later window."),
            },
        ),
        "ranks": _rows(
            "One row per rank.",
            {
                "rank": {"type": "integer"}, "host": _text("Host."), "device": _text("Device."), "role": _text("Role."),
                **_PARTITION, "hfu": _number("HFU.", RATIO), "straggler_score": _number("Peers' own work over its."),
                "wait_caused_ns": _ns("Waiting of others that is charged to it."),
            },
        ),
        "job": _object(
            "The ranks together; all null for one rank without communication.",
            {
                "mesh": _text("Parallel degrees, such as tp=2,dp=4."), "mesh_source": _text("inferred or given."),
                "calls": _count("Collective calls of all ranks."), "instances": _count("Matched collectives."),
                "calls_unmatched": _count("Calls that found no partner although one has a trace."),
                "calls_alone": _count("Calls whose group has one traced member."),
                "exposed_transfer_ns": _ns("Moving data, hidden by nothing."),
                "exposed_wait_ns": _ns("Waiting for a late rank, hidden by nothing; without bubbles."),
                "unsplit_ns": _ns("Exposed, and clocks or matching do not tell which."),
                "bubble_ns": _ns("Exposed with a pipeline receive on the device."),
                "wait_caused_ns": _ns("Of exposed_wait_ns, charged to ranks."),
                "wait_unattributed_ns": _ns("The rest of it."),
            },
        ),
        "collectives": _rows(
            "By group and operation.",
            {
                "group": _text("Group."), "op": _text("Operation."), "ranks": _count("Members."),
                "count": _count("Instances."), "bytes": _number("Bytes."), "algbw_gbps": _number("GB/s."),
                "busbw_gbps": _number("GB/s."), "efficiency": _number("Of the link's peak."), "wait_ns": _ns("Wait."),
                "transfer_ns": _ns("Transfer."), "exposed_wait_ns": _ns("Wait that nothing hides."),
                "exposed_transfer_ns": _ns("Transfer that nothing hides."),
                "matched": _ratio("Share of the calls that found their partners; null for one rank."),
                "class": _text("transfer, skew, mixed, inconclusive; null for one rank."),
            },
        ),
        "kernels": _rows(
            "Kernels, largest waste first, capped; all of them in `--table kernels`.",
            {
                "name": {"type": "string"}, "family": _text("Family."), "count": _count("Launches."),
                "ns": _ns("Summed duration."), "flops": _number("FLOPs; null if unknown."),
                "bytes": _number("Bytes; null if unknown."), "waste_ns": _ns("Time beyond the roofline."),
            },
        ),
        "waterfall": _rows(
            "Ladder A; the points of rows with parent null sum to 100.",
            {
                "term": {"type": "string"}, "points": _number("Points of peak; signed."), "ns": _ns("GPU-ns."),
                "gpu_hours": _number("GPU-hours."), "parent": _text("Term that it is part of."),
                "measured": {"type": "boolean", "description": "False: it stays inside its parent."},
            },
        ),
        "findings": _rows(
            "What to do next, best first.",
            {
                "id": {"type": "string"}, "title": {"type": "string"}, "points": _number("Points it could recover."),
                "evidence": {"description": "What supports it: text, or JSON."}, "next": _text("What to do."),
            },
        ),
    },
}  # fmt: skip


def complete(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return `summary` with every promised key of the document and of its objects, in the published order."""
    return _fill(summary, SCHEMA)


def _fill(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for name, part in schema["properties"].items():
        found = value.get(name)
        if "properties" in part:
            found = _fill(found or {}, part)
        filled[name] = found
    return {**filled, **{name: found for name, found in value.items() if name not in filled}}


def numeric_paths() -> dict[str, str]:
    """Return the dotted path of every number outside lists, with its kind."""
    return dict(_walk(SCHEMA, ""))


def _walk(schema: Schema, prefix: str) -> list[tuple[str, str]]:
    found = []
    for name, part in schema["properties"].items():
        if "properties" in part:
            found += _walk(part, f"{prefix}{name}.")
        elif "$comment" in part:
            found.append((prefix + name, str(part["$comment"])))
    return found


def render() -> str:
    """Return the text of docs/analyze.schema.json."""
    import json

    return json.dumps(SCHEMA, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from pathlib import Path

    Path("docs/analyze.schema.json").write_text(render())
