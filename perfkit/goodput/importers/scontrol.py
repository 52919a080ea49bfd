"""`scontrol show node|job -o` and `sinfo` output: the inventory, and jobs as the controller knows them now.

`scontrol` prints Key=Value words. `sinfo` prints columns without names unless asked otherwise; columns are then
recognised by what is in them, and the import says which was taken for what. Both are snapshots: a row of `nodes`
begins when the dump was taken and is open.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from perfkit.errors import CorruptInput, UnsupportedInput
from perfkit.goodput.causes import cause_of_state
from perfkit.goodput.importers.base import Assume, Imported, decode, parse_times, whole
from perfkit.goodput.importers.hostlist import expand_hostlist
from perfkit.goodput.importers.sacct import gpus_in
from perfkit.schema import JOBS, NODES, table_from_rows

_WORD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
_STATE_WORDS = {
    "idle": "up", "allocated": "up", "alloc": "up", "mixed": "up", "mix": "up", "completing": "up", "comp": "up",
    "planned": "up", "plnd": "up", "reserved": "up", "resv": "up", "drained": "drained", "draining": "drained",
    "drain": "drained", "drng": "drained", "maint": "drained", "down": "down", "fail": "unhealthy",
    "failing": "unhealthy", "error": "unhealthy", "power_down": "down", "powered_down": "down", "powering_down": "down",
    "powering_up": "down", "reboot": "down", "unknown": "unknown", "unk": "unknown", "inval": "unhealthy",
    "future": "unknown", "blocked": "up", "perfctrs": "up", "npc": "up",
}  # fmt: skip
_GRES = re.compile(r"gpu(:|$)|\(null\)$|N/A$")


def node_state(text: str) -> str:
    """Translate Slurm's node state: flags (`idle+drain`) count, `*` (not responding) is down, other marks do not."""
    if text.strip().endswith("*"):
        return "down"
    words = [re.sub(r"[^a-z_]", "", word) for word in text.strip().lower().split("+")]
    states = [_STATE_WORDS.get(word, "unknown") for word in words]
    for worst in ("down", "unhealthy", "drained", "unknown"):
        if worst in states:
            return worst
    return "up"


def read_scontrol(data: bytes, path: str, assume: Assume) -> Imported:
    """Return nodes or jobs of `scontrol show node|job` (one per line, or blocks)."""
    found = Imported(path, "scontrol")
    text = decode(data, found).decode()
    first = text.lstrip()[:40]
    if first.startswith("PartitionName="):
        raise UnsupportedInput(
            f"{text.count('PartitionName=')} partitions: they do not say how nodes are", path=path,
            next_step="import `scontrol show node -o` for uptime, or `sacct --parsable2` for jobs",
        )  # fmt: skip
    if first.startswith("Configuration data"):
        raise UnsupportedInput(
            "the configuration of Slurm holds neither jobs nor nodes", path=path,
            next_step="import `scontrol show node -o` or `sacct --parsable2`",
        )  # fmt: skip
    kind = "NodeName" if first.startswith("NodeName=") else "JobId"
    records = re.split(rf"(?:^|\n)(?={kind}=)", text)
    rows = [_words(record) for record in records if record.strip()]
    if kind == "NodeName":
        found.tables["nodes"] = table_from_rows(
            NODES, [r for i, w in enumerate(rows) for r in _node(w, i, assume, found)]
        )
    else:
        found.tables["jobs"] = table_from_rows(JOBS, [r for i, w in enumerate(rows) for r in _job(w, i, assume, found)])
        found.assumed.append(f"times are {assume.timezone}")
    return found


def _words(record: str) -> dict[str, str]:
    text = " ".join(record.split())
    marks = list(_WORD.finditer(text))
    if not marks:
        return {}
    ends = [m.start() for m in marks[1:]] + [len(text)]
    return {m[1]: text[m.end() : end].strip() for m, end in zip(marks, ends, strict=True)}


def _node(words: dict[str, str], i: int, assume: Assume, found: Imported) -> list[dict[str, Any]]:
    if not words.get("NodeName") or not words.get("State"):
        found.reject(i + 1, "a node without NodeName or State")
        return []
    gpus = gpus_in(words.get("CfgTRES")) or gpus_in(words.get("Gres", "").replace("(null)", ""))
    reason = words.get("Reason")
    return [
        {
            "cluster": assume.cluster, "node": words["NodeName"], "start_ns": assume.as_of_ns, "gpus": gpus,
            "state": node_state(words["State"]), "reason": reason,
        }
    ]  # fmt: skip


def _job(words: dict[str, str], i: int, assume: Assume, found: Imported) -> list[dict[str, Any]]:
    if not words.get("JobId") or not words.get("JobState"):
        found.reject(i + 1, "a job without JobId or JobState")
        return []
    restarts = whole(words.get("Restarts") or "0")
    if restarts is None:
        found.reject(i + 1, f"Restarts is no number: {words['Restarts'][:40]}")
        return []
    names = ("SubmitTime", "EligibleTime", "StartTime", "EndTime")
    times = parse_times(pa.array([words.get(n, "") for n in names], pa.utf8()), assume.timezone).to_pylist()
    cause = cause_of_state(words["JobState"])
    running = cause is None
    code, _, signal = words.get("ExitCode", "").partition(":")
    tres = words.get("TRES") or words.get("AllocTRES") or words.get("ReqTRES")
    nodes = words.get("NumNodes", "").partition("-")[0]
    return [
        {
            "cluster": assume.cluster,
            "job": words["JobId"],
            "attempt": restarts,
            "user": words.get("UserId", "").partition("(")[0] or None,
            "name": words.get("JobName"),
            "submit_ns": times[0],
            "eligible_ns": times[1],
            "start_ns": None if words["JobState"] == "PENDING" else times[2],
            "end_ns": None if running else times[3],
            "gpus": gpus_in(tres),
            "nodes": expand_hostlist(words.get("NodeList")),
            "num_nodes": whole(nodes),
            "state": words["JobState"],
            "cause": cause,
            "exit_code": whole(code),
            "signal": whole(signal),
            "account": words.get("Account"),
            "partition": words.get("Partition"),
            "array": words.get("ArrayJobId"),
            "source": "scontrol",
        }
    ]


# ------------------------------------------------------------------ sinfo


def looks_like_sinfo(head: bytes) -> bool:
    """Whether the lines are columns with a node state and GRES among them."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:20] if line.strip()]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if "|" in line]
    if not rows or len(rows) != len(lines):
        return False
    named = {cell.upper() for cell in rows[0]}
    if named & {"NODELIST", "HOSTNAMES"} and "STATE" in named:
        return True
    return len(rows[0]) >= 4 and _state_column(rows[-1:]) is not None


def read_sinfo(data: bytes, path: str, assume: Assume) -> Imported:
    """Return the nodes of `sinfo` with a delimiter; node lists are unfolded."""
    found = Imported(path, "sinfo")
    lines = decode(data, found).decode().splitlines()
    rows = [(i + 1, [cell.strip() for cell in line.split("|")]) for i, line in enumerate(lines) if line.strip()]
    names = [cell.upper() for cell in rows[0][1]] if rows else []
    if assume.fields:
        names = [name.upper() for name in assume.fields]
    elif any(name in ("NODELIST", "HOSTNAMES", "NODE") for name in names):
        rows = rows[1:]
    else:
        names = []
    at = _named(names) if names else _recognise([cells for _, cells in rows], path, found)
    if lost := {"node", "state"} - set(at):
        raise CorruptInput(
            f"no column of {' and '.join(sorted(lost))}s", path=path, next_step="sinfo -N -o '%N|%G|%T', or --fields"
        )
    seen: set[str] = set()
    result: list[dict[str, object]] = []
    for line, cells in rows:
        if max(at.values()) >= len(cells):
            found.reject(line, f"too few columns: {len(cells)}")
            continue
        hosts = expand_hostlist(cells[at["node"]])
        if hosts is None:
            found.reject(line, f"no node list: {cells[at['node']]!r}")
            continue
        gres = cells[at["gres"]] if "gres" in at else ""
        gpus = gpus_in(gres.replace("(null)", "").replace("N/A", "")) if gres not in ("(null)", "N/A") else 0
        for host in hosts:
            if host not in seen:  # a node is listed once per partition
                seen.add(host)
                result.append(
                    {"cluster": assume.cluster, "node": host, "start_ns": assume.as_of_ns, "gpus": gpus,
                     "state": node_state(cells[at["state"]]), "reason": None}
                )  # fmt: skip
    found.tables["nodes"] = table_from_rows(NODES, result)
    return found


def _named(names: list[str]) -> dict[str, int]:
    wanted = {"node": ("NODELIST", "HOSTNAMES", "NODE", "NODEHOST"), "state": ("STATE", "STATELONG", "STATECOMPACT"),
              "gres": ("GRES",)}  # fmt: skip
    return {ours: names.index(n) for ours, theirs in wanted.items() for n in theirs if n in names}


def _state_column(rows: list[list[str]]) -> int | None:
    for i in reversed(range(len(rows[0]))):
        words = [re.sub(r"[^a-z_+]", "", row[i].lower()) for row in rows if i < len(row)]
        if words and all(w and all(p in _STATE_WORDS for p in w.split("+")) for w in words):
            return i
    return None


def _recognise(rows: list[list[str]], path: str, found: Imported) -> dict[str, int]:
    """Find the columns by their content."""
    help_text = "name the columns with --fields, for example NODELIST,GRES,STATE"
    state = _state_column(rows) if rows else None
    if state is None:
        raise CorruptInput("no column of node states", path=path, next_step=help_text)
    width = min(len(row) for row in rows)
    gres = next(
        (i for i in range(width) if all(_GRES.match(r[i]) for r in rows) and any("gpu" in r[i] for r in rows)), None
    )
    names = [
        i for i in range(width)
        if i != state and all(re.fullmatch(r"[A-Za-z][\w.-]*(\[[\d,-]+\])?[\w.-]*", r[i]) for r in rows)
        and not all(r[i] in ("up", "down", "none") for r in rows) and i != gres
    ]  # fmt: skip
    names.sort(key=lambda i: (-len({r[i] for r in rows}), not any(c.isdigit() for c in rows[0][i]), i))
    if not names:
        raise CorruptInput("no column of node names", path=path, next_step=help_text)
    at = {"node": names[0], "state": state} | ({} if gres is None else {"gres": gres})
    told = ", ".join(f"column {i + 1} is {name}" for name, i in at.items())
    found.assumed.append(f"no header; by their content {told}")
    return at
