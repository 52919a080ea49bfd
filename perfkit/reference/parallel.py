"""One device mesh, and the model spread over it: DDP, FSDP2, HSDP, tensor parallel and combinations.

    mesh = make_mesh(ParallelConfig(shard=2, tensor=2), device)       (replicate, shard, tensor)
    model = parallelise(model, mesh, config)

| replicate | shard | tensor | what runs |
|---|---|---|---|
| n | 1 | 1 | DistributedDataParallel |
| 1 | n | any | FSDP2 (`fully_shard`) over `shard` |
| n | m | any | HSDP: `fully_shard` over (replicate, shard) |
| n | 1 | m | as HSDP with shards of one: DDP does not take tensor-parallel parameters |

The code asks for a device type, never for a backend: gloo on CPU and NCCL on CUDA run the same lines.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from perfkit.errors import UsageError
from perfkit.reference.model import Decoder, MixtureOfExperts


@dataclass(kw_only=True, slots=True)
class ParallelConfig:
    """Degrees of parallelism; their product is the world size."""

    replicate: int = 0
    """Copies of the model; 0: what the others leave over."""
    shard: int = 1
    """Ranks that share one copy's parameters, gradients and optimizer state."""
    tensor: int = 1
    """Ranks that share every matrix product."""
    bucket_mb: float = 25.0
    """DDP: size of a gradient bucket."""
    timeout_s: float = 600.0
    """A collective that takes longer ends the job."""

    def resolve(self, world_size: int) -> tuple[int, int, int]:
        """Return (replicate, shard, tensor) for a world size."""
        inner = self.shard * self.tensor
        if (
            min(self.shard, self.tensor) < 1
            or world_size % inner
            or (self.replicate and self.replicate * inner != world_size)
        ):
            raise UsageError(
                f"replicate {self.replicate or 'auto'} × shard {self.shard} × tensor {self.tensor} does not make "
                f"{world_size} ranks",
                next_step="change --parallel.replicate, --parallel.shard, --parallel.tensor or --nproc-per-node",
            )
        return world_size // inner, self.shard, self.tensor


def start(config: ParallelConfig) -> torch.device:
    """Join the process group that torchrun prepared (or a group of one) and return this rank's device."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"  # asynchronous checkpoints talk over gloo
    else:
        device, backend = torch.device("cpu"), "gloo"
    timeout = datetime.timedelta(seconds=config.timeout_s)
    store: Store = HashStore()
    rank, world_size = 0, 1
    if "RANK" in os.environ:
        store, rank, world_size = next(rendezvous("env://", timeout=timeout))
        # the agent's store outlives a restart: without a prefix a rank may read the address of its dead predecessor
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt-{attempt}", store)
    dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=world_size)
    return device


def make_mesh(config: ParallelConfig, device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks with dimensions replicate, shard and tensor."""
    degrees = config.resolve(dist.get_world_size())
    return init_device_mesh(device.type, degrees, mesh_dim_names=("replicate", "shard", "tensor"))


def data_place(mesh: DeviceMesh) -> tuple[int, int]:
    """Return which data-parallel replica this rank belongs to, of how many; tensor-parallel peers share one."""
    replicate, shard, _ = mesh.get_coordinate() or [0, 0, 0]
    return replicate * mesh.size(1) + shard, mesh.size(0) * mesh.size(1)


def parallelise(
    model: Decoder, mesh: DeviceMesh, config: ParallelConfig, *, dtype: torch.dtype | None = None, compile: str = ""
) -> nn.Module:
    """Apply tensor parallelism, then compilation, then data parallelism."""
    replicate, shard, tensor = mesh.shape
    if tensor > 1:
        _tensor_parallel(model, mesh["tensor"])
    if compile:
        for block in model.blocks:
            block.compile(backend=compile)
    if shard == 1 and tensor == 1:
        if replicate == 1:
            return model
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["rope"])  # the same on every rank
        return DistributedDataParallel(
            model, process_group=mesh.get_group("replicate"), bucket_cap_mb=config.bucket_mb,
            gradient_as_bucket_view=True,
        )  # fmt: skip
    if replicate == 1 and shard == 1:
        return model
    data = mesh["shard"] if replicate == 1 else mesh["replicate", "shard"]
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for block in model.blocks:
        fully_shard(block, mesh=data, mp_policy=policy)
    fully_shard(model, mesh=data, mp_policy=policy)
    return model


def accumulate(model: nn.Module, last: bool) -> Any:
    """Return a context in which gradients are reduced only if this is the last micro-batch."""
    if isinstance(model, DistributedDataParallel):
        return torch.enable_grad() if last else model.no_sync()
    set_sync = getattr(model, "set_requires_gradient_sync", None)
    if set_sync is not None:
        set_sync(last)
    return torch.enable_grad()


def bare(model: nn.Module) -> Decoder:
    """Return the decoder inside a wrapper."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, Decoder)
    return inner


def _tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    config, degree = model.config, mesh.size()
    if config.kv_heads % degree or config.ffn % degree:
        raise UsageError(
            f"{config.kv_heads} kv_heads and ffn {config.ffn} cannot be cut into {degree} tensor-parallel parts",
            next_step="lower --parallel.tensor",
        )
    for block in model.blocks:
        plan: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan["attention.wo"] = RowwiseParallel()
        if isinstance(block.mlp, MixtureOfExperts):
            paths = [f"mlp.experts.{i}" for i in range(config.experts)]
        else:
            paths = ["mlp"]
        for path in paths:
            plan |= {f"{path}.gate": ColwiseParallel(), f"{path}.up": ColwiseParallel()}
            plan[f"{path}.down"] = RowwiseParallel()
        missing = [name for name in plan if not _has(block, name)]
        if missing:
            raise UsageError(f"tensor parallelism does not find {missing[0]}", next_step="leave --transform out")
        parallelize_module(block, mesh, plan)
    parallelize_module(model, mesh, {"output": ColwiseParallel(output_layouts=Replicate())})


def _has(module: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in module.named_modules())
