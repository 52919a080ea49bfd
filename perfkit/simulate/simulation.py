"""Run a job: plan, play, and hold what the emitters and the truth need.

    sim = simulate(Job(…))
    sim.tables(rank)   -> {"events": …, "ops": …, …}          Arrow, as ingest would produce them
    sim.truth()        -> dict                                 truth.json
    write_traces(sim, folder)                                  Kineto JSON per rank, and the truth

Everything is synthetic and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.simulate.emit_arrow import ArrowTemplate
from perfkit.simulate.emit_kineto import KinetoTemplate, write_gzip
from perfkit.simulate.engine import run
from perfkit.simulate.faults import ALL, KINDS
from perfkit.simulate.job import Job
from perfkit.simulate.noise import Ints
from perfkit.simulate.program import Program
from perfkit.simulate.rows import Identity, RowTemplate
from perfkit.simulate.schedule import ideal_bubble_ratio
from perfkit.simulate.step import StepPlan
from perfkit.simulate.truth import Truth
from perfkit.simulate.truth_collectives import collectives_of_stage


@dataclass
class Simulation:
    """A job that has been played."""

    job: Job
    programs: list[Program]
    times: list[Ints]
    """Per stage: int64[points, ranks], true ns since the start."""
    flows: bool = True

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.job.mesh.world_size)

    @cached_property
    def identity(self) -> Identity:
        """Who the ranks are."""
        return Identity(self.job)

    @cached_property
    def templates(self) -> list[RowTemplate]:
        """Rows of each stage."""
        return [RowTemplate.build(program, flows=self.flows) for program in self.programs]

    @cached_property
    def truths(self) -> list[Truth]:
        """Answers of each stage."""
        return [Truth(self.job, p, t) for p, t in zip(self.programs, self.times, strict=True)]

    def locate(self, rank: int) -> tuple[int, int]:
        """Return the stage of a rank, and its column there."""
        return divmod(rank, self.job.mesh.stage_size)

    def tables(self, rank: int) -> dict[str, pa.Table]:
        """Return the tables of one rank, in the schemas of `perfkit.schema`."""
        stage, column = self.locate(rank)
        return self._arrow[stage].tables(column, self.times[stage])

    @cached_property
    def _arrow(self) -> list[ArrowTemplate]:
        return [ArrowTemplate(self.job, self.identity, template) for template in self.templates]

    def kineto(self, rank: int, trace_name: str = "synthetic") -> str:
        """Return the trace of one rank as Kineto JSON."""
        stage, column = self.locate(rank)
        return self._kineto[stage].text(column, self.times[stage], trace_name)

    @cached_property
    def _kineto(self) -> list[KinetoTemplate]:
        return [KinetoTemplate(self.job, self.identity, template) for template in self.templates]

    # -------------------------------------------------------------- the answer

    def truth(self) -> dict[str, Any]:
        """Return the true answer: clocks, MFU, culprits, and where each rank's time went."""
        job, mesh = self.job, self.job.mesh
        ranks = [self._rank_truth(rank) for rank in self.ranks]
        window = sum(step["window_ns"] for rank in ranks for step in rank["steps"])
        flops = [self.flops(count, model=True) for count in ("causal", "full")]
        executed = self.flops("causal", model=False)
        capacity = job.hardware.peak_flops * window / 1e9
        offsets, drifts = job.clocks
        return {
            "synthetic": True,
            "schema_version": 1,
            "job": _describe(job),
            "mesh": {**asdict(mesh), "world_size": mesh.world_size},
            "faults": [{"text": str(fault), **asdict(fault)} for fault in job.faults],
            "culprits": _targets(job, "rank"),
            "culprit_hosts": _targets(job, "host"),
            "clocks": [
                {"host": f"node{i:04d}", "offset_ns": int(o), "drift_ppb": int(d)}
                for i, (o, d) in enumerate(zip(offsets, drifts, strict=True))
            ],
            "mfu": {
                "value": flops[0] / capacity,
                "hfu": executed / capacity,
                "convention": "2mnk per matrix product, causal attention halved, no recompute; over all windows",
                "with_full_attention": flops[1] / capacity,
                "model_flops_per_step": flops[0] // job.steps,
                "model_flops_per_step_full_attention": flops[1] // job.steps,
                "peak_flops": job.hardware.peak_flops,
                "device": job.hardware.device,
                "tokens_per_step": job.tokens_per_step,
            },
            "bubble": self._bubble(ranks),
            "ranks": ranks,
        }  # fmt: skip

    def _bubble(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the bubble by stage, and what it would be if nothing were wrong: played again without faults."""
        job, mesh = self.job, self.job.mesh
        healthy = None
        if mesh.pp > 1 and job.faults:
            other = simulate(replace(job, faults=()), flows=False)
            healthy = [
                _sums([other._rank_truth(r) for r in self.ranks if self.locate(r)[0] == s]) for s in range(mesh.pp)
            ]
        stages = []
        for stage in range(mesh.pp):
            stages.append({"stage": stage, **_sums([rank for rank in ranks if rank["stage"] == stage])})
            stages[-1]["without_faults_ns"] = healthy[stage]["bubble_ns"] if healthy else stages[-1]["bubble_ns"]
        return {
            "ideal_ratio": ideal_bubble_ratio(mesh.pp, job.micro_batches, mesh.vpp),
            "bubble_ns": sum(stage["bubble_ns"] for stage in stages),
            "without_faults_ns": sum(stage["without_faults_ns"] for stage in stages),
            "stages": stages,
        }

    def _rank_truth(self, rank: int) -> dict[str, Any]:
        stage, _ = self.locate(rank)
        answer = self.truths[stage].of(rank)
        return {
            "rank": rank,
            "host": self.identity.host(rank),
            "stage": stage,
            "coordinates": self.job.mesh.coordinates(rank),
            "launches_missing": answer.launches_missing,
            "carry_in": answer.steps[0],
            "steps": answer.steps[1:],
            "idle": answer.idle,
        }

    def flops(self, attention: str, *, model: bool) -> int:
        """Return the matrix FLOPs of all ranks and steps; `model` leaves out what was run again."""
        total = 0
        for program in self.programs:
            for one in program.instructions:
                if one.task is not None and one.kind != "ghost" and (one.task.model_flops or not model):
                    total += len(program.ranks) * (one.task.flops if attention == "causal" else one.task.full_flops)
        return total

    def collectives(self) -> pa.Table:
        """Return wait and transfer of every exchange on every rank (definition 9)."""
        return pa.concat_tables(
            collectives_of_stage(self.job, self.identity, self.programs, self.times, stage)
            for stage in range(len(self.programs))
        )


def simulate(job: Job, *, flows: bool = True) -> Simulation:
    """Play a job; `flows` keeps the arrows from launch to kernel among the rows."""
    programs = [Program.begin(job, stage) for stage in range(job.mesh.pp)]
    for program in programs:
        for step in range(job.steps):
            StepPlan(program, step).build()
    return Simulation(job, programs, run(job, programs), flows)


def write_traces(sim: Simulation, folder: Path, progress: Callable[[int], None] | None = None) -> list[Path]:
    """Write one trace per rank, truth.json and truth_collectives.parquet; return the traces."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in sim.ranks:
        path = folder / f"rank{rank:05d}.pt.trace.json.gz"
        write_gzip(path, sim.kineto(rank, path.name))
        paths.append(path)
        if progress is not None:
            progress(rank)
    (folder / "truth.json").write_text(json.dumps(sim.truth(), indent=1) + "\n")
    pq.write_table(sim.collectives(), folder / "truth_collectives.parquet")
    return paths


def _sums(ranks: list[dict[str, Any]]) -> dict[str, int]:
    return {name: sum(step[name] for rank in ranks for step in rank["steps"]) for name in ("window_ns", "bubble_ns")}


def _targets(job: Job, unit: str) -> list[int]:
    """Return the ranks or hosts that a fault was put into; a fault of all of them has no culprit."""
    return sorted({f.target for f in job.faults if f.target not in (None, ALL) and KINDS[f.kind][0] == unit})


def _describe(job: Job) -> dict[str, Any]:
    kept = [f.name for f in fields(job) if f.name not in ("mesh", "hardware", "faults")]
    values = {name: getattr(job, name) for name in kept}
    return {**values, "num_hosts": job.num_hosts, "hardware": asdict(job.hardware)}
