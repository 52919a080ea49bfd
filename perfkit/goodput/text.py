"""The goodput document as text: the verdict first, then where the GPU-hours went, then who and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.goodput.causes import CAUSES
from perfkit.goodput.importers import SUPPORTED, without_supported
from perfkit.report.format import UNKNOWN, clean, count, percent, plural

LABELS = {
    "productive": "productive", "init": "start-up", "compile": "compilation, first steps", "slow_step": "slow steps",
    "data_stall": "waiting for data", "checkpoint": "saving checkpoints", "restore": "loading checkpoints",
    "eval": "evaluation", "lost": "lost: steps run again", "recovery": "recovery after interruptions", "hang": "hangs",
    "unknown": "unknown",
}  # fmt: skip
BAR = 30
_NOUNS = {"jobs": "job", "nodes": "node", "counters": "counter sample"}
ROWS_SHOWN = 20


def render(document: Mapping[str, Any]) -> str:
    """Return the text."""
    lines: list[str] = []
    if document.get("synthetic"):
        lines += ["SYNTHETIC DATA, made by `perfkit simulate fleet`", ""]
    lines += [f"note: {clean(note)}" for note in document.get("notes", ())]
    if document.get("quality"):
        lines += _quality(document["quality"])
    totals = document.get("totals")
    if totals is not None:
        lines += _records(document, totals) if document["source"] == "records" else _jobs(totals)
    if document.get("inventory"):
        lines += _inventory(document["inventory"])
    if document.get("counters"):
        lines.append(f"{_some(document['counters'], 'sample')} of GPU counters")
    if document.get("groups"):
        lines += ["", *_groups(document["groups"], document["source"], document.get("by"))]
    if document.get("uptime"):
        lines += ["", *_uptime(document["uptime"])]
    if document.get("runs") and len(document["runs"]) > 1:
        lines += ["", *_runs(document["runs"], document["runs_left_off"])]
    if document.get("plan"):
        lines += ["", *render_plan(document["plan"])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _records(document: Mapping[str, Any], totals: Mapping[str, Any]) -> list[str]:
    scope = document["scope"]
    money = (
        "" if totals["cost"] is None else f", {totals['cost']:,.0f} at {document['price_per_gpu_hour']:g} per GPU-hour"
    )
    states = ", ".join(f"{n} {state}" for state, n in sorted(scope["states"].items(), key=lambda item: -item[1]))
    lines = [
        f"goodput {percent(totals['goodput'])} of {_hours(totals['allocated_gpu_hours'])} GPU-hours{money}",
        f"{plural(scope['runs'], 'run')} ({states}) on {', '.join(map(clean, scope['clusters']))}",
        "",
        f"  ETTR {percent(totals['ettr'])}   MFU {percent(totals['mfu'])}   "
        f"effective MFU {percent(totals['effective_mfu'])}{_covers(totals)}",
        f"  {_some(totals['interruptions'], 'interruption')}, {_some(totals['failures'], 'failure')} among them   "
        f"MTTF {_time(totals['mttf_hours'])}   MTTR {_time(totals['mttr_hours'])}   "
        f"{_some(totals['restarts'], 'restart')}",
        "",
        "where the GPU-hours went",
    ]
    for name, bucket in totals["buckets"].items():
        if bucket["ns"] or name in ("productive", "unknown"):
            cost = "" if bucket["cost"] is None else f"{bucket['cost']:>14,.0f}"
            bar = "█" * round(BAR * (bucket["share"] or 0))
            lines.append(
                f"  {LABELS[name]:<28}{_hours(bucket['gpu_hours']):>14} h {percent(bucket['share'], 2):>9}{cost}  {bar}"
            )
    if totals["interruptions_by_cause"]:
        lines += ["", "interruptions by cause"]
        lines += [
            f"  {n:>6,}  {cause:<24}{CAUSES.get(cause, ('', None))[0]}"
            for cause, n in totals["interruptions_by_cause"].items()
        ]
    return lines


def _covers(totals: Mapping[str, Any]) -> str:
    share = totals["effective_mfu_covers"]
    return "" if share is None or share > 0.999 or not share else f" (known for {percent(share)} of the time)"


def _jobs(totals: Mapping[str, Any]) -> list[str]:
    cost = "" if totals["cost"] is None else f", {totals['cost']:,.0f}"
    lines = [
        f"{_some(totals['jobs'], 'job')} held {_said_hours(totals['allocated_gpu_hours'])} GPU-hours{cost}",
        "goodput is unknown: a scheduler sees jobs, not steps",
    ]
    if totals["jobs_without_gpu_count"]:
        lines.append(_without_gpu_count(totals["jobs_without_gpu_count"], totals["jobs"]))
    if totals["jobs_never_started"]:
        lines.append(
            f"{count(totals['jobs_never_started'])} of {_some(totals['jobs_listed'], 'listed job')} never started"
        )
    lines += [
        f"  {_some(totals['failures'], 'failure')}   MTTF {_time(totals['mttf_hours'])} of job time   "
        f"{_some(totals['restarts'], 'restart')}   queue p50 {_seconds(totals['queue_p50_seconds'])}, "
        f"p95 {_seconds(totals['queue_p95_seconds'])}",
        "",
        "how they ended",
    ]
    for name, row in totals["outcomes"].items():
        cost = "" if row["cost"] is None else f"{row['cost']:>14,.0f}"
        noun = "job " if row["jobs"] == 1 else "jobs"
        lines.append(
            f"  {clean(name):<24}{row['jobs']:>10,} {noun} {_said_hours(row['gpu_hours']):>14} GPU-hours{cost}"
        )
    return lines


def _without_gpu_count(number: int, jobs: int) -> str:
    who = (
        "1 job does not say how many GPUs it held"
        if number == 1
        else (f"{count(number)} jobs do not say how many GPUs they held")
    )
    return who if number == jobs else f"{who}: the GPU-hours are without {'it' if number == 1 else 'them'}"


def _groups(groups: Sequence[Mapping[str, Any]], source: str, by: str | None) -> list[str]:
    shown = groups[-ROWS_SHOWN:] if by == "day" else groups[:ROWS_SHOWN]  # the newest days, the largest of others
    lines = []
    if source == "records":
        lines.append(f"{'':<34}{'GPU-hours':>14}{'goodput':>9}{'ETTR':>8}{'eff. MFU':>10}{'failures':>10}{'cost':>14}")
        for row in shown:
            cost = UNKNOWN if row["cost"] is None else f"{row['cost']:,.0f}"
            lines.append(
                f"{_key(row['key']):<34}{_hours(row['allocated_gpu_hours']):>14}{percent(row['goodput']):>9}"
                f"{percent(row.get('ettr')):>8}{percent(row.get('effective_mfu')):>10}"
                f"{_or(row.get('failures')):>10}{cost:>14}"
            )
    else:
        lines.append(f"{'':<34}{'GPU-hours':>14}{'jobs':>10}{'failures':>10}{'cost':>14}")
        for row in shown:
            cost = UNKNOWN if row["cost"] is None else f"{row['cost']:,.0f}"
            jobs = row.get("jobs", row.get("jobs_started"))
            lines.append(
                f"{_key(row['key']):<34}{_hours(row['allocated_gpu_hours']):>14}{_or(jobs):>10}"
                f"{_or(row.get('failures')):>10}{cost:>14}"
            )
    if len(groups) > ROWS_SHOWN:
        lines.append(f"… and {len(groups) - ROWS_SHOWN:,} more; --format json lists all")
    return lines


def _key(key: Any) -> str:
    return "(unknown)" if key is None else clean(key, 33)


def _some(number: int | None, noun: str) -> str:
    return f"{UNKNOWN} {noun}s" if number is None else plural(number, noun)


def _or(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _uptime(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'GPU-hours':<20}{'uptime':>10}{'down':>12}{'drained':>12}{'unhealthy':>12}{'idle':>14}{'unknown':>12}"]
    for row in rows:
        cells = [row[f"{name}_gpu_hours"] for name in ("down", "drained", "unhealthy", "idle", "unknown")]
        shown = "".join(f"{_hours(c):>{w}}" for c, w in zip(cells, (12, 12, 12, 14, 12), strict=True))
        lines.append(f"{clean(row['cluster'], 19):<20}{percent(row['uptime'], 2):>10}{shown}")
    return lines


def _inventory(row: Mapping[str, Any]) -> list[str]:
    states = ", ".join(f"{v['nodes']} {state}" for state, v in row["states"].items() if v["nodes"])
    if row["gpus"] is None:
        return ["", f"{_some(row['nodes'], 'node')}: {states}; the list does not say how many GPUs they have"]
    silent = row["nodes_without_gpu_count"]
    left = f", and {_some(silent, 'node')} of which the list does not say how many" if silent else ""
    return [
        "",
        f"{_some(row['nodes'], 'node')} with {_some(row['gpus'], 'GPU')}{left}: {states}; "
        f"{percent(row['up_share'])} of the GPUs up",
    ]


def _runs(runs: Sequence[Mapping[str, Any]], left_off: int) -> list[str]:
    lines = [
        f"{'run':<34}{'user':<12}{'state':<9}{'GPUs':>7}{'GPU-hours':>13}{'goodput':>9}{'MFU':>8}{'eff.':>8}"
        f"{'restarts':>10}"
    ]
    for run in runs[:ROWS_SHOWN]:
        lines.append(
            f"{clean(run['cluster'] + '/' + run['run'], 33):<34}{clean(run['user'] or UNKNOWN, 11):<12}"
            f"{run['state'] or UNKNOWN:<9}{_or(run['gpus']):>7}{_hours(run['allocated_gpu_hours']):>13}"
            f"{percent(run['goodput']):>9}{percent(run['mfu']):>8}{percent(run['effective_mfu']):>8}{_or(run['restarts']):>10}"
        )
    more = max(0, len(runs) - ROWS_SHOWN) + left_off
    if more:
        lines.append(f"… and {more:,} more, smaller ones")
    return lines


def _quality(quality: Mapping[str, Any]) -> list[str]:
    lines = []
    for one in quality["files"]:
        rows = ", ".join(_some(n, _NOUNS.get(table, table)) for table, n in one["rows"].items()) or "nothing"
        lines.append(f"{clean(one['path'])}: {one['kind']}, {rows}")
        lines += [f"  {clean(text)}" for text in one["assumed"]]
        if one["left_out"]:
            total = sum(one["left_out"].values())
            lines.append(
                f"  {total:,} left out: " + ", ".join(f"{n:,} × {clean(why)}" for why, n in one["left_out"].items())
            )
            lines += [f"    line {bad['line']}: {clean(bad['why'], 100)}" for bad in one["bad_records"][:5]]
    short = [without_supported(bad["reason"]) for bad in quality["rejected"]]
    lines += [
        f"{clean(bad['path'])}: not used: {clean(why)}" for bad, why in zip(quality["rejected"], short, strict=True)
    ]
    if short != [bad["reason"] for bad in quality["rejected"]]:
        lines.append(SUPPORTED)
    if quality["duplicates"]:
        verb = "lists" if quality["duplicates"] == 1 else "list"
        rows = plural(quality["duplicates"], "row")
        lines.append(f"{rows} {verb} a job that another row lists too; the fuller one stays")
    return [*lines, ""]


def render_plan(plan: Mapping[str, Any]) -> list[str]:
    """Return the lines about checkpoint intervals."""
    lines = [
        f"checkpoint interval: a failure every {_time(plan['mttf_hours'])}, a save costs "
        f"{_seconds(plan['save_seconds'])}, a restart {_seconds(plan['restart_seconds'])}"
    ]
    for name, row in plan["intervals"].items():
        lines.append(
            f"  {name:<8}{_seconds(row['interval_seconds']):>12}   expected ETTR {percent(row['expected_ettr'], 2)}"
        )
    return lines


def _hours(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:,.1f}"
        if abs(value) >= 1
        else f"{value:.4f}"
        if value
        else "0"
    )


def _said_hours(value: float | None) -> str:
    """Return hours for a sentence, in which a dash would say nothing."""
    return "unknown" if value is None else _hours(value)


def _time(hours: float | None) -> str:
    return UNKNOWN if hours is None else _seconds(hours * 3600)


def _seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for size, unit in ((86400 * 2, "d"), (7200, "h"), (120, "min")):
        if value >= size:
            return f"{value / {'d': 86400, 'h': 3600, 'min': 60}[unit]:.1f} {unit}"
    return f"{value:.1f} s"
