"""What is known about a run beside its numbers: findings with their evidence, data quality, manifest.

findings(source, view) -> rows {id, title, points, evidence (parsed), next}
quality(source, view)  -> lines a careful reader must know before trusting a number
manifest(source, view) -> (name, value) pairs: model, mesh, hardware, versions, commit
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pyarrow.compute as pc

from perfkit.report.format import percent, plural, ranges

from . import format as fmt
from .data import Rows, Source, remembered
from .data_run import analysed, mesh_of, totals
from .view import View


@remembered
def findings(source: Source, view: View) -> Rows:
    """Return the findings of the newest analysis, what to fix first on top."""
    key = source.run_key(view)
    rows = analysed(source, key, "findings") if key else None
    if rows is None:
        return []
    found = rows.sort_by("position").to_pylist()
    for row in found:
        with suppress(ValueError):  # then it is text, and shown as it is
            row["evidence"] = json.loads(row["evidence"]) if row["evidence"] else None
    return found


@remembered
def quality(source: Source, view: View) -> list[str]:
    """List what the records lack, most serious first; empty if nothing does."""
    key = source.run_key(view)
    if key is None:
        return []
    commits, problems = source.engine.commits(key)
    lines = [f"cannot read {problem.path}: {problem.reason}" for problem in problems[:3]]
    metadata = source.engine.metadata(key)
    present = sorted({commit.rank for commit in commits})
    world = metadata.get("world_size") or max((c.world_size for c in commits if c.world_size), default=None)
    attribution = analysed(source, key, "attribution", columns=["rank", "step", "window_ns", "unknown_ns", "carry_in"])
    if attribution is not None:
        traced = pc.unique(attribution["rank"]).to_pylist()
        steps = len(pc.unique(attribution["step"]).drop_null())
        of = f" of {world:,}" if world else ""
        lines.append(f"analysis covers {len(traced):,}{of} ranks and {plural(steps, 'step')}")
        window, unknown = (pc.sum(attribution[name]).as_py() or 0 for name in ("window_ns", "unknown_ns"))
        if window and unknown:
            lines.append(
                f"{percent(unknown / window)} of the time is in kernels that no pattern knows (inside compute)"
            )
    elif commits:
        lines.append("no analysis is stored: the waterfall and the findings need one")
    if present and world and len(present) < world:
        lines.append(f"records of {len(present):,} of {world:,} ranks: {ranges(present)[:80]}")
    odd: Counter[str] = Counter()
    for commit in commits:
        for oddity in commit.oddities:
            odd[str(oddity.get("kind"))] += int(oddity.get("count") or 1)
    lines += [f"{count:,} × {fmt.clean(kind, 60)}" for kind, count in odd.most_common(4)]
    return lines


@remembered
def manifest(source: Source, view: View) -> list[tuple[str, str]]:
    """Return what the run says about itself."""
    key = source.run_key(view)
    metadata: dict[str, Any] = source.engine.metadata(key) if key else {}
    commits = source.engine.commits(key)[0] if key else []
    row = totals(source, view) or {}
    versions: dict[str, Any] = {}
    for commit in commits:
        versions.update(commit.versions)
    said = metadata.get("versions")
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            said = {"": said}
    versions.update(said if isinstance(said, dict) else {})
    mesh = mesh_of(metadata)
    hosts = sorted({c.host for c in commits if c.host})
    pairs = [
        ("Run", view.run), ("Cluster", view.cluster), ("Attempt", str(key.attempt) if key else None),
        ("Owner", metadata.get("user") or row.get("user")), ("Model", metadata.get("model") or row.get("model")),
        ("Mesh", " × ".join(f"{name} {size}" for name, size in mesh.items()) or None),
        ("World size", metadata.get("world_size") or row.get("world_size")),
        ("Device", metadata.get("device") or row.get("device")),
        ("Peak", fmt.si(row["peak_flops"], "FLOP/s") if row.get("peak_flops") else None),
        ("Hosts", ", ".join(hosts[:6]) + (f", … ({len(hosts):,})" if len(hosts) > 6 else "") or None),
        ("Start (UTC)", fmt.utc(row.get("start_ns") or metadata.get("start_ns"))),
        ("Last seen (UTC)", fmt.utc(row.get("end_ns") or metadata.get("end_ns"))),
        ("Versions", ", ".join(f"{name} {value}".strip() for name, value in versions.items()) or None),
        ("Git commit", metadata.get("git_commit")), ("Convention", metadata.get("convention")),
        ("Source", metadata.get("source") or ", ".join(sorted({c.source for c in commits if c.source})) or None),
    ]  # fmt: skip
    return [(name, fmt.clean(value, 300)) for name, value in pairs if value not in (None, "", fmt.UNKNOWN)]
