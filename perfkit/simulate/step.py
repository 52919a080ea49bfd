"""One training step of a pipeline stage: input, micro-batches in schedule order, reductions, optimizer, output.

    StepPlan(program, step).build()

How parallelism shows: FSDP gathers a layer ahead of its kernels and scatters its gradients behind them; DDP
reduces buckets as they fill; tensor and expert parallelism exchange inside a layer and the kernels wait;
pipeline stages send and receive around their chunks. Faults that add work add it here.
"""

from __future__ import annotations

import numpy as np

from perfkit.simulate import model
from perfkit.simulate.faults import amounts, factors
from perfkit.simulate.program import AUTOGRAD, COPY, DATA_LOADER, MAIN, STREAMS, Mask, Program, Task
from perfkit.simulate.schedule import order


class StepPlan:
    """Adds one step to a program."""

    def __init__(self, program: Program, step: int) -> None:
        self.program, self.step, self.job, self.stage = program, step, program.job, program.stage
        self.mesh = self.job.mesh
        self.per_chunk = self.job.layers // (self.mesh.pp * self.mesh.vpp)
        self.parameters = model.layer_parameters(self.job)
        self.gathered: dict[str, int] = {}
        self.reductions: list[int] = []
        self.bucket_elements = 0
        shrink = int(factors(self.job.faults, "small-bucket", step, np.zeros(1, np.int64))[0])
        self.bucket_limit = max(1, self.job.bucket_bytes * 1000 // shrink // model.BF16)
        self.buckets = 0
        self.recompute = any(fault.kind == "recompute" and fault.active(step) for fault in self.job.faults)

    def build(self) -> None:
        """Append everything that the stage does in the step."""
        program, step, job = self.program, self.step, self.job
        program.open(f"s{step}/open", step, f"ProfilerStep#{job.first_step + step}", (15_000, 30_000))
        self._input()
        for slot in order(self.stage, self.mesh.pp, job.micro_batches, self.mesh.vpp):
            key = f"s{step}/{slot.kind}/m{slot.micro_batch}/c{slot.chunk}"
            if slot.kind == "F":
                self._forward(key, slot.micro_batch, slot.chunk)
            else:
                self._backward(key, slot.micro_batch, slot.chunk)
        self._optimizer()
        self._output()
        program.close(f"s{step}/close", step)

    # -------------------------------------------------------------- around the model

    def _input(self) -> None:
        program, step, job = self.program, self.step, self.job
        late = amounts(job.faults, "late-rank", step, program.ranks)
        if late.any():
            program.host(f"s{step}/late", step, "train.py(88): prepare_batch", late, ranks=late > 0)
        stall = amounts(job.faults, "data-stall", step, program.ranks)
        program.host(f"s{step}/data", step, DATA_LOADER, job.data_ns + stall)
        num_bytes = 8 * job.tokens * job.micro_batches
        self._copy("input", "Memcpy HtoD (Pinned -> Device)", num_bytes, ("aten::to", "aten::_to_copy", "aten::copy_"))
        memset = Task(COPY, "gpu_memset", "Memset (Device)", STREAMS["compute"], 1_300, num_bytes=512)
        program.launch(f"s{step}/zero", memset, step=step, thread=MAIN, ops=("aten::zero_",), dims=((128,),))

    def _copy(
        self,
        key: str,
        name: str,
        num_bytes: int,
        ops: tuple[str, ...],
        *,
        blocks: bool = False,
        ranks: Mask | None = None,
    ) -> None:
        duration = 1_200 + round(num_bytes / self.job.hardware.copy_bandwidth * 1e9)
        task = Task(COPY, "gpu_memcpy", name, STREAMS["compute"], duration, num_bytes=num_bytes)
        self.program.launch(
            f"s{self.step}/{key}", task, step=self.step, thread=MAIN, ops=ops, blocks=blocks, ranks=ranks
        )

    def _item(self, key: str, ranks: Mask | None = None) -> None:
        ops = ("aten::item", "aten::_local_scalar_dense")
        self._copy(key, "Memcpy DtoH (Device -> Pageable)", 4, ops, blocks=True, ranks=ranks)

    def _optimizer(self) -> None:
        program, step = self.program, self.step
        program.open(f"s{step}/adam/open", step, "Optimizer.step#AdamW.step")
        program.waits += self.reductions
        for layer in range(self.per_chunk * self.mesh.vpp):
            part = model.adam(self.job, "adam", self.parameters // self.mesh.fsdp)
            program.kernel(part, f"s{step}/adam/{layer}", step=step, thread=MAIN)
        program.close(f"s{step}/adam/close", step)

    def _output(self) -> None:
        program, step, job = self.program, self.step, self.job
        if job.loss_allreduce and self.mesh.world_size > 1:
            program.exchange(
                f"s{step}/loss", "world", "allreduce", step=step, thread=MAIN, in_elements=1, out_elements=1,
                dtype="Float", deps=[program.last], stages=tuple(range(self.mesh.pp)),
            )  # fmt: skip
        if job.log_every and (step + 1) % job.log_every == 0:
            self._item("log")
        if job.checkpoint_every and (step + 1) % job.checkpoint_every == 0:
            num_bytes = 2 * self.parameters // self.mesh.fsdp
            self._copy(
                "save", "Memcpy DtoH (Device -> Pinned)", num_bytes, ("aten::to", "aten::_to_copy", "aten::copy_")
            )
            program.host(f"s{step}/checkpoint", step, "checkpoint_save", job.checkpoint_ns)

    # -------------------------------------------------------------- the model

    def _forward(self, key: str, micro_batch: int, chunk: int) -> None:
        virtual = chunk * self.mesh.pp + self.stage
        last = self.mesh.pp * self.mesh.vpp - 1
        if virtual > 0:
            self._receive("act", micro_batch, virtual, (self.stage - 1) % self.mesh.pp, MAIN)
        else:
            self._parts(model.embedding(self.job), f"{key}/embedding", MAIN)
        for layer in range(self.per_chunk):
            self._gather(key, layer, 1, MAIN)
            self._parts(model.layer_forward(self.job), f"{key}/L{layer}", MAIN)
            self._between_layers(f"{key}/L{layer}")
        if virtual < last:
            self._send("act", micro_batch, virtual + 1, (self.stage + 1) % self.mesh.pp, MAIN)
        else:
            self._parts(model.head(self.job), f"{key}/head", MAIN)

    def _backward(self, key: str, micro_batch: int, chunk: int) -> None:
        virtual = chunk * self.mesh.pp + self.stage
        last = self.mesh.pp * self.mesh.vpp - 1
        if virtual < last:
            self._receive("grad", micro_batch, virtual, (self.stage + 1) % self.mesh.pp, AUTOGRAD)
        else:
            self._parts(model.head(self.job, backward=True), f"{key}/head", AUTOGRAD)
        for layer in reversed(range(self.per_chunk)):
            self._gather(key, layer, -1, AUTOGRAD)
            if self.recompute:
                self._parts(model.layer_forward(self.job), f"{key}/L{layer}/again", AUTOGRAD, counts=False)
            self._parts(model.layer_backward(self.job), f"{key}/L{layer}", AUTOGRAD)
            if micro_batch == self.job.micro_batches - 1:
                self._reduce(f"{key}/L{layer}")
        if virtual > 0:
            self._send("grad", micro_batch, virtual - 1, (self.stage - 1) % self.mesh.pp, AUTOGRAD)
        else:
            self._parts(model.embedding(self.job, backward=True), f"{key}/embedding", AUTOGRAD)
        if micro_batch == self.job.micro_batches - 1:
            self._flush()

    def _parts(self, parts: list[model.Part], key: str, thread: int, *, counts: bool = True) -> None:
        program, step = self.program, self.step
        for part in parts:
            if isinstance(part, model.Kernel):
                program.kernel(part, f"{key}/{part.key}", step=step, thread=thread, counts=counts)
                continue
            index = program.exchange(
                f"{key}/{part.key}", part.role, part.op, step=step, thread=thread, in_elements=part.num_elements,
                out_elements=part.num_elements, deps=[program.last, *program.waits], to_experts=part.to_experts,
            )  # fmt: skip
            program.waits.append(index)

    def _between_layers(self, key: str) -> None:
        program, step, faults = self.program, self.step, self.job.faults
        syncs = amounts(faults, "sync-point", step, program.ranks) > 0
        if syncs.any():
            self._item(f"{key[key.index('/') + 1 :]}/sync", ranks=syncs)
        churn = amounts(faults, "allocator-churn", step, program.ranks)
        if churn.any():  # well over 20 µs after the stream has drained: the gap is not taken for a sync's
            program.host(f"{key}/free", step, "cudaFree", 60_000 + churn // 2, ranks=churn > 0, drains=True)
            program.host(f"{key}/malloc", step, "cudaMalloc", 60_000 + churn - churn // 2, ranks=churn > 0)

    # -------------------------------------------------------------- sharding and pipeline

    def _gather(self, key: str, layer: int, direction: int, thread: int) -> None:
        """Gather a layer's parameters, the next layer's too, and let the kernels wait for this layer's."""
        if self.mesh.fsdp == 1:
            return
        for wanted in (layer, layer + direction):
            name = f"{key}/L{wanted}/gather"
            if 0 <= wanted < self.per_chunk and name not in self.gathered:
                # parameters are updated, and the memory of an earlier layer is free, when the stream is here
                copy = model.copy_in(self.job, self.parameters // self.mesh.fsdp)
                self.program.kernel(
                    copy, f"{name}/copy_in", step=self.step, thread=thread, counts=False, stream="fsdp.gather",
                    deps=[self.program.last],
                )  # fmt: skip
                self.gathered[name] = self.program.exchange(
                    name, "fsdp", "_allgather_base", step=self.step, thread=thread, stream="fsdp.gather",
                    in_elements=self.parameters // self.mesh.fsdp, out_elements=self.parameters, deps=[],
                )  # fmt: skip
        self.program.waits.append(self.gathered[f"{key}/L{layer}/gather"])

    def _reduce(self, key: str) -> None:
        """Reduce the gradients of a layer as the kind of data parallelism does."""
        program, shard = self.program, self.parameters // self.mesh.fsdp
        if self.mesh.fsdp > 1:
            scatter = program.exchange(
                f"{key}/scatter", "fsdp", "_reduce_scatter_base", step=self.step, thread=AUTOGRAD,
                in_elements=self.parameters, out_elements=shard, deps=[program.last], stream="fsdp.scatter",
            )  # fmt: skip
            self.reductions.append(scatter)
            if self.mesh.dp > 1:
                self.reductions.append(self._all_reduce(f"{key}/replicas", shard, [scatter]))
        elif self.mesh.dp > 1:
            self.bucket_elements += self.parameters
            while self.bucket_elements >= self.bucket_limit:
                self._bucket(self.bucket_limit)

    def _flush(self) -> None:
        if self.bucket_elements:
            self._bucket(self.bucket_elements)

    def _bucket(self, elements: int) -> None:
        self.bucket_elements -= elements
        key = f"s{self.step}/bucket{self.buckets}"
        self.buckets += 1
        self.reductions.append(self._all_reduce(key, elements, [self.program.last]))

    def _all_reduce(self, key: str, elements: int, deps: list[int]) -> int:
        return self.program.exchange(
            key, "dp", "allreduce", step=self.step, thread=AUTOGRAD, in_elements=elements, out_elements=elements,
            deps=deps,
        )  # fmt: skip

    def _receive(self, what: str, micro_batch: int, virtual: int, source: int, thread: int) -> None:
        """Ask for a message; as in PyTorch, its stream first waits for what the compute stream was given before."""
        index = self._message(what, "recv", micro_batch, virtual, (source, self.stage), thread, [self.program.last])
        self.program.waits.append(index)

    def _send(self, what: str, micro_batch: int, virtual: int, target: int, thread: int) -> None:
        self._message(what, "send", micro_batch, virtual, (self.stage, target), thread, [self.program.last])

    def _message(
        self, what: str, op: str, micro_batch: int, virtual: int, stages: tuple[int, int], thread: int, deps: list[int]
    ) -> int:
        """Send or receive; `virtual` is the virtual stage that receives. Gradients have odd sequence numbers."""
        program, elements = self.program, self.job.tokens * self.job.hidden
        counter = f"{what}/{stages}"
        count = program.seq[counter] = program.seq.get(counter, 0) + 1
        return program.exchange(
            f"s{self.step}/{what}/{op}/m{micro_batch}/v{virtual}", "pp", op, step=self.step, thread=thread,
            in_elements=elements, out_elements=elements, deps=deps, stream=f"{what}.{op}",
            meeting=f"s{self.step}/{what}/m{micro_batch}/v{virtual}", stages=stages, seq=2 * count + (what == "grad"),
        )  # fmt: skip
