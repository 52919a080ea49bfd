"""The rows of a rank as Kineto JSON, as torch.profiler writes it.

    KinetoTemplate(job, identity, template).text(column, times, trace_name) -> str

The text of an event is cut where times go; what depends on the rank (process, device, groups) is a
placeholder that is replaced in the whole file at once. `perfkit_synthetic` marks the file at its top.
"""

from __future__ import annotations

import json
from pathlib import Path

from isal import igzip

from perfkit.simulate.emit_arrow import has_device, metadata_events
from perfkit.simulate.job import EPOCH_NS, Job
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import Comm
from perfkit.simulate.rows import AUTOGRAD_FORWARD_THREAD, CONTEXT, DEVICE, Identity, Row, RowTemplate, kernel_config

_PID, _TID, _DEVICE, _GROUP, _PAIR, _ROUTED = "\x01p", "\x01t", "\x01d", "\x01g", "\x01m", "\x01r"


class KinetoTemplate:
    """Shared text of the ranks of a stage."""

    def __init__(self, job: Job, identity: Identity, template: RowTemplate) -> None:
        self.job, self.identity, self.template = job, identity, template
        self._routed: dict[str, Comm] = {}
        """Exchanges whose sizes differ from rank to rank, by what stands for them in the text."""
        self._pieces = [self._cut(row) for row in template.rows]
        self._rate = [row.num_bytes for row in template.rows]
        pairs = {row.comm.stages for row in template.rows if row.comm is not None and row.comm.role == "pp"}
        self._pairs = sorted(pairs)

    def text(self, column: int, times: Ints, trace_name: str) -> str:
        """Return the whole trace of one rank."""
        rank = int(self.template.program.ranks[column])
        rows = self.template.rows_of(column)
        start, duration = self.template.times_of(self.job, times, column, rows)
        parts = [self._head(rank)]
        for row, ts, dur in zip(rows.tolist(), (start - EPOCH_NS).tolist(), duration.tolist(), strict=True):
            before, middle, after = self._pieces[row]
            parts.append(f"{before}{ts // 1000}.{ts % 1000:03d}")
            if middle:
                parts.append(f"{middle}{dur // 1000}.{dur % 1000:03d}")
            rate = self._rate[row]
            parts.append(after if rate is None else after.replace("\x01b", repr(rate / max(dur, 1))))
        first = int(start.min()) - EPOCH_NS
        names = [
            json.dumps({
                "name": key, "ph": "M", "ts": first // 1000, "pid": pid, "tid": tid,
                "args": {_META_ARG.get(key, "sort_index"): value},
            })
            for pid, tid, key, value in metadata_events(self.identity, rank)
        ]  # fmt: skip
        parts.append(",\n  ".join(["", *names])[1:].lstrip("\n"))
        tail = f'\n  ],\n  "traceName": {json.dumps(trace_name)}\n}}\n'
        return self._fill("".join(parts), rank) + tail

    def _fill(self, text: str, rank: int) -> str:
        identity = self.identity
        for thread in (0, 1):
            text = text.replace(f"{_TID}{thread}", str(identity.tid(rank, thread)))
        for role, group in identity.groups(rank).items():
            args = {
                "Group size": len(group.ranks), "Process Group Name": group.name,
                "Process Group Description": group.desc, "Process Group Ranks": group.ranks_text,
            }  # fmt: skip
            text = text.replace(f"{_GROUP}{role};", json.dumps(args)[1:-1])
        for mark, comm in self._routed.items():
            text = text.replace(mark, _sizes(*identity.message_sizes(rank, comm)))
        size = self.job.mesh.stage_size
        for sender, receiver in self._pairs:
            ranks = {"Src Rank": sender * size + rank % size, "Dst Rank": receiver * size + rank % size}
            text = text.replace(f"{_PAIR}{sender},{receiver};", json.dumps(ranks)[1:-1])
        return text.replace(_PID, str(identity.pid(rank))).replace(_DEVICE, str(identity.device(rank)))

    def _head(self, rank: int) -> str:
        identity = self.identity
        groups = [
            {
                "pg_name": group.name, "pg_desc": group.desc, "backend_config": "cuda:nccl",
                "pg_size": len(group.ranks), "ranks": list(group.ranks),
            }
            for group in identity.groups(rank).values()
        ]  # fmt: skip
        keys = {
            "schemaVersion": 1,
            "perfkit_synthetic": True,
            "deviceProperties": identity.devices(),
            "cuda_runtime_version": 12080,
            "distributedInfo": {
                "backend": "nccl", "rank": rank, "world_size": self.job.mesh.world_size, "pg_count": len(groups),
                "pg_config": groups, "nccl_version": "2.27.5",
            },
            "host_name": identity.host(rank),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": EPOCH_NS,
        }  # fmt: skip
        lines = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in keys.items())
        return f'{{\n  {lines},\n  "traceEvents": [\n  '

    def _cut(self, row: Row) -> tuple[str, str, str]:
        """Return the text of an event before its ts, between ts and dur (empty: no dur), and after."""
        place = (
            f'"pid": {_DEVICE}, "tid": {row.stream}'
            if row.place == DEVICE
            else f'"pid": {_PID}, "tid": {_TID}{row.place}'
        )
        name = f'"cat": {json.dumps(row.category)}, "name": {json.dumps(row.name)}'
        if row.category == "ac2g":
            end = ', "bp": "e"' if row.phase == "f" else ""
            return f'{{"ph": "{row.phase}", "id": {row.correlation}, {place}, "ts": ', "", f", {name}{end}}},\n  "
        before = f'{{"ph": "{row.phase}", {name}, {place}, "ts": '
        return before, ', "dur": ', f', "args": {{{", ".join(self._args(row))}}}}},\n  '

    def _args(self, row: Row) -> list[str]:
        args: list[str] = []

        def add(values: dict[str, object]) -> None:
            args.extend(f"{json.dumps(key)}: {json.dumps(v)}" for key, v in values.items() if v is not None)

        add({"External id": row.external_id, "cbid": row.cbid, "Python id": row.python_id})
        if row.sync_kind is not None:
            add({"cuda_sync_kind": row.sync_kind})
        if has_device(row):
            args.append(f'"device": {_DEVICE}, "context": {CONTEXT}, "stream": {row.stream}')
        add({"correlation": row.correlation, "bytes": row.num_bytes})
        if row.num_bytes is not None:
            args.append('"memory bandwidth (GB/s)": \x01b')
        if row.category == "kernel":
            add(kernel_config(self.job, row))
        if row.sequence_number is not None:
            add({"Sequence number": row.sequence_number, "Fwd thread id": AUTOGRAD_FORWARD_THREAD})
        if row.dims is not None:
            add({"Input Dims": row.dims, "Input type": row.types, "Concrete Inputs": row.concrete})
        if row.comm is not None:
            comm = row.comm
            add({"Collective name": comm.op})
            if comm.to_experts is None:
                args.append(_sizes(comm.in_elements, comm.out_elements, [], []))
            else:
                self._routed[_routed(comm)] = comm
                args.append(_routed(comm))
            add({"dtype": comm.dtype, "Seq": comm.seq})
            args.append(f"{_GROUP}{comm.role};")
            if comm.role == "pp":
                args.append(f"{_PAIR}{comm.stages[0]},{comm.stages[1]};")
        return args


def _routed(comm: Comm) -> str:
    """Return what stands for the sizes of an exchange that differ from rank to rank."""
    return f"{_ROUTED}{comm.step},{int(bool(comm.to_experts))},{comm.in_elements};"


def _sizes(in_elements: int, out_elements: int, in_split: list[int], out_split: list[int]) -> str:
    args = {
        "In msg nelems": in_elements, "Out msg nelems": out_elements, "In split size": str(in_split),
        "Out split size": str(out_split),
    }  # fmt: skip
    return json.dumps(args)[1:-1]


_META_ARG = {"process_name": "name", "thread_name": "name", "process_labels": "labels"}


def write_gzip(path: Path, text: str) -> None:
    """Write compressed, complete or not at all; the same text gives the same bytes."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(igzip.compress(text.encode(), compresslevel=1, mtime=0))
    temporary.replace(path)
