"""Like nanoGPT: batches of its own making, gradient accumulation, DDP under torchrun, two optimizers."""

import hashlib
import os

import torch
import torch.distributed as dist

ACCUMULATE, BATCH, LENGTH, VOCAB = 3, 2, 16, 48
rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(0)


class Model(torch.nn.Module):
    """Two layers of attention-free nonsense."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, 32)
        self.mix = torch.nn.Linear(32, 32)
        self.head = torch.nn.Linear(32, VOCAB, bias=False)

    def forward(self, idx, targets):
        """Return the loss."""
        logits = self.head(torch.nn.functional.gelu(self.mix(self.embed(idx))))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = Model()
wrapped = model
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizers = [
    torch.optim.SGD(model.mix.parameters(), 0.1),
    torch.optim.AdamW([model.embed.weight, model.head.weight], 1e-3),
]
source = torch.Generator().manual_seed(rank)
for _step in range(10):
    for _micro in range(ACCUMULATE):
        data = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=source)
        loss = wrapped(data[:, :-1], data[:, 1:]) / ACCUMULATE
        loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if _step % 4 == 3:
        with torch.no_grad():
            wrapped(data[:, :-1], data[:, 1:])
if "RANK" in os.environ:
    total = loss.detach().clone()
    dist.all_reduce(total)
    dist.destroy_process_group()
print(rank, hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
