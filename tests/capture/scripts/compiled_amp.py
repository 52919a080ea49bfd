"""A compiled model under autocast with a GradScaler, and a loader with worker processes."""

import torch

torch.manual_seed(0)


class Model(torch.nn.Module):
    """An embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.head = torch.nn.Linear(32, 64)

    def forward(self, tokens):
        """Return logits."""
        return self.head(torch.nn.functional.gelu(self.embed(tokens)))


class Numbers(torch.utils.data.Dataset):
    """Rows of one number."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index):
        return torch.full((8,), index, dtype=torch.long)


if __name__ == "__main__":
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu")
    with torch.no_grad():
        compiled(torch.zeros(1, 8, dtype=torch.long))
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = compiled(batch).flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(logits, batch.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print("loss", loss.item().hex())
