"""Calls and groups of simulated jobs in the tables of the job's analysis, without going through matching."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.calls import CALLS, GROUPS, MEMBERS
from perfkit.analysis.exchanges import collective_name
from perfkit.analysis.group_ops import group_of_calls
from perfkit.analysis.intervals import covered, difference, union
from perfkit.analysis.layout import Layout
from perfkit.analysis.parallelism import infer_layout
from perfkit.analysis.rank import Options, RankPart, analyze_rank
from perfkit.simulate import Job, Mesh, Simulation, simulate

ITEM_BYTES = {"BFloat16": 2, "Float": 4}


def small_job(mesh: Mesh, **changes: object) -> Job:
    """Return a job of two steps that takes milliseconds to simulate."""
    sizes: dict[str, object] = {
        "steps": 2, "hidden": 512, "ffn": 2048, "head_dim": 64, "vocab": 4096, "seq_len": 512,
        "layers": mesh.pp * mesh.vpp, "micro_batches": 2 * mesh.pp,
    }  # fmt: skip
    return Job(mesh=mesh, **{**sizes, **changes})  # type: ignore[arg-type]


def simulated(mesh: Mesh, **changes: object) -> Simulation:
    """Play a small job."""
    return simulate(small_job(mesh, **changes), flows=False)


def op_of(collective: str) -> str:
    """Return the word of CALLS for a recorded name."""
    return collective if collective in ("send", "recv") else collective_name(collective)


def calls_of(sim: Simulation, ranks: Iterable[int] | None = None, *, named: bool = True) -> pa.Table:
    """Return the calls of some ranks; `named=False` leaves the ranks of a group and takes its names away."""
    found = [_calls_of_rank(sim, rank, named=named) for rank in (sim.ranks if ranks is None else ranks)]
    return pa.concat_tables(found).unify_dictionaries()


def _calls_of_rank(sim: Simulation, rank: int, *, named: bool) -> pa.Table:
    tables = sim.tables(rank)
    kernels = tables["events"].filter(pc.equal(tables["events"]["category"], "kernel"))
    kernels = kernels.select(["event_id", "start_ns", "dur_ns", "device", "correlation"])
    rows = kernels.join(tables["collective_args"].drop_columns(["rank", "segment"]), "event_id", join_type="inner")
    rows = rows.sort_by("start_ns").to_pylist()
    launches = tables["events"].filter(pc.equal(tables["events"]["category"], "cuda_runtime"))
    asked = dict(zip(launches["correlation"].to_pylist(), launches["start_ns"].to_pylist(), strict=True))
    host = pc.equal(tables["events"]["category"], "user_annotation")
    ranges = tables["events"].filter(
        pc.and_(host, pc.starts_with(tables["events"]["name"].cast(pa.utf8()), "ProfilerStep"))
    )
    steps = np.sort(np.array(ranges["start_ns"]))

    def peer(row: dict[str, object]) -> object:
        return {"send": row["dst_rank"], "recv": row["src_rank"]}.get(str(row["collective"]))

    return pa.Table.from_pylist(
        [
            {
                "rank": rank, "device": row["device"], "segment": 0, "call": i, "event_id": row["event_id"],
                "step": sim.job.first_step + int(np.searchsorted(steps, asked[row["correlation"]], "right")) - 1,
                "group": row["group_name"] if named else None, "group_desc": row["group_desc"] if named else None,
                "group_ranks": json.dumps(json.loads(row["group_ranks"]), separators=(",", ":")),
                "group_size": row["group_size"], "op": op_of(row["collective"]), "seq": row["seq"],
                "dtype": row["dtype"], "in_bytes": row["in_nelems"] * ITEM_BYTES[row["dtype"]],
                "out_bytes": row["out_nelems"] * ITEM_BYTES[row["dtype"]], "peer": peer(row), "root": None,
                "start_ns": row["start_ns"], "end_ns": row["start_ns"] + row["dur_ns"],
                "host_start_ns": asked[row["correlation"]], "source": "kernel_args", "in_split": None,
                "out_split": None,
            }
            for i, row in enumerate(rows)
        ],
        schema=CALLS,
    )  # fmt: skip


def groups_of(sim: Simulation, ranks: Iterable[int] | None = None, *, named: bool = True) -> pa.Table:
    """Return the distinct groups that some ranks are in."""
    ranks = list(sim.ranks if ranks is None else ranks)
    found = {
        group.ranks + ((group.name,) if named else ()): group
        for r in ranks
        for group in sim.identity.groups(r).values()
    }
    return group_table(
        [(g.name if named else None, g.desc if named else None, g.ranks) for g in found.values()], traced=ranks
    )


def group_table(
    groups: Sequence[tuple[str | None, str | None, Sequence[int] | None]], traced: Sequence[int] = ()
) -> pa.Table:
    """Return GROUPS of (name, description, ranks)."""
    return pa.Table.from_pylist(
        [
            {
                "gid": i, "name": name, "desc": desc, "ranks": None if ranks is None else list(ranks),
                "size": None if ranks is None else len(ranks), "traced": len(set(ranks or ()) & set(traced)),
                "calls": 0, "role": None,
            }
            for i, (name, desc, ranks) in enumerate(groups)
        ],
        schema=GROUPS,
    )  # fmt: skip


@dataclass
class SimulatedView:
    """The job's view of a simulation: labels come from its truth, everything else from its rows."""

    sim: Simulation
    mesh: str | None = None

    @property
    def ranks(self) -> list[int]:
        return list(self.sim.ranks)

    @property
    def world_size(self) -> int:
        return self.sim.job.mesh.world_size

    @property
    def hosts(self) -> dict[int, str | None]:
        return {rank: self.sim.identity.host(rank) for rank in self.ranks}

    @property
    def devices(self) -> dict[int, str | None]:
        return dict.fromkeys(self.ranks, self.sim.job.hardware.device)

    @cached_property
    def calls(self) -> pa.Table:
        return calls_of(self.sim)

    @cached_property
    def groups(self) -> pa.Table:
        return groups_of(self.sim)

    @cached_property
    def layout(self) -> Layout:
        return infer_layout(self.groups, self.calls, world_size=self.world_size, ranks=self.ranks, mesh=self.mesh)

    @cached_property
    def parts(self) -> list[RankPart]:
        return [part for rank in self.ranks for part in analyze_rank(self.sim.tables(rank), Options())]

    def detail(self, name: str) -> pa.Table:
        """Return a table of all ranks, without what runs before the first window."""
        table = pa.concat_tables([getattr(part, name) for part in self.parts]).unify_dictionaries()
        return table.filter(pc.invert(table["carry_in"])) if "carry_in" in table.column_names else table

    @cached_property
    def truth(self) -> dict[int, list[dict[str, object]]]:
        return {rank: self.sim.truths[self.sim.locate(rank)[0]].of(rank).steps[1:] for rank in self.ranks}

    @cached_property
    def steps(self) -> pa.Table:
        rows = [
            {
                "rank": rank, "device": self.sim.identity.device(rank), "step": step["step"],
                "window_start_ns": step["start_ns"], "window_ns": step["window_ns"], "bubble_ns": step["bubble_ns"],
            }
            for rank, steps in self.truth.items()
            for step in steps
        ]  # fmt: skip
        types = [("rank", pa.int32()), ("device", pa.int32())]
        return pa.Table.from_pylist(rows).cast(
            pa.schema([*types, *((n, pa.int64()) for n in ("step", "window_start_ns", "window_ns", "bubble_ns"))])
        )

    @cached_property
    def members(self) -> pa.Table:
        """Return labels of calls: all exposed time of a receive is bubble, and of everything else wait."""
        exposed, rank = [], np.array(self.calls["rank"])
        for one in self.ranks:
            mine = self.calls.filter(pa.array(rank == one))
            events = self.sim.tables(one)["events"]
            kernels = events.filter(pc.equal(events["class"], "compute"))
            start, length = np.array(kernels["start_ns"]), np.array(kernels["dur_ns"])
            begin, end = np.array(mine["start_ns"]), np.array(mine["end_ns"])
            free = difference(union([begin.min()], [end.max()]), union(start, start + length))
            exposed.append(covered(free, begin, end))
        ns = np.concatenate(exposed)
        receives = np.array(pc.equal(self.calls["op"].cast(pa.utf8()), "recv"))
        zero = np.zeros_like(ns)
        columns = dict.fromkeys(MEMBERS.names, zero)
        columns["gid"] = group_of_calls(self.groups, self.calls)
        offset, _ = self.sim.job.clocks
        clock = offset[self.sim.job.host_of[rank]]  # drift is small here
        columns["start_ns"], columns["end_ns"] = (np.array(self.calls[n]) - clock for n in ("start_ns", "end_ns"))
        columns["bubble_ns"], columns["exposed_wait_ns"] = np.where(receives, ns, 0), np.where(receives, 0, ns)
        return pa.table(columns).cast(MEMBERS)
