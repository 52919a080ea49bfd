"""The callbacks on the real packages, with tiny models on the CPU."""

from __future__ import annotations

import pytest

from tests.capture.settled import settled

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

VOCAB, LENGTH, BATCH = 64, 16, 2
FLOPS = {"peak_flops": 1e12}


def dataset(rows=24):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (rows, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in ids]


def tiny_llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def read(folder):
    """Return the steps (by number), spans and lifecycle rows of the only run."""
    store = settled(folder / "store")
    steps = sorted(store.read("steps").to_pylist(), key=lambda row: row["step"])
    return steps, store.read("spans").to_pylist(), store.read("lifecycle").to_pylist()


def train_hf(folder, *, callbacks, accumulation=2):
    transformers = pytest.importorskip("transformers")
    model = tiny_llama()
    args = transformers.TrainingArguments(
        output_dir=str(folder / "out"), max_steps=6, per_device_train_batch_size=BATCH, save_steps=3, eval_steps=3,
        gradient_accumulation_steps=accumulation, eval_strategy="steps", logging_steps=1, report_to=[], use_cpu=True,
        disable_tqdm=True, seed=1,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=dataset(), eval_dataset=dataset(4), callbacks=callbacks
    )
    trainer.train()
    return [p.detach().clone() for p in model.parameters()]


def test_hf_trainer_records_steps_tokens_phases_checkpoints_and_mfu(tmp_path):
    from perfkit.capture.integrations.huggingface import PerfkitCallback

    callback = PerfkitCallback(run="hf", store=tmp_path / "store", **FLOPS)
    watched = train_hf(tmp_path / "a", callbacks=[callback])
    steps, spans, lifecycle = read(tmp_path)
    assert [row["step"] for row in steps] == list(range(6))
    assert {row["tokens"] for row in steps} == {2 * BATCH * LENGTH}  # two accumulated batches are one step
    assert all(row["data_wait_ns"] is not None for row in steps)
    assert all(row["model_flops"] for row in steps)
    assert callback.loop.recorder.metrics["mfu"] > 0
    assert {"forward", "backward", "optimizer"} <= {row["name"] for row in spans}
    kinds = [row["kind"] for row in lifecycle]
    assert kinds.count("checkpoint_save") >= 2
    assert kinds.count("eval") == 2
    plain = train_hf(tmp_path / "b", callbacks=[])
    assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))


def test_a_callback_that_breaks_does_not_end_hf_training(tmp_path, monkeypatch):
    from perfkit.capture.integrations.huggingface import PerfkitCallback

    callback = PerfkitCallback(run="hf", store=tmp_path / "store")
    monkeypatch.setattr(callback.loop, "begin_step", lambda number: 1 / 0)
    assert train_hf(tmp_path, callbacks=[callback])


def lightning_module(lightning):
    class Tiny(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = torch.nn.Embedding(VOCAB, 16)
            self.head = torch.nn.Linear(16, VOCAB)

        def training_step(self, batch, index):
            ids = batch["input_ids"]
            loss = torch.nn.functional.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), ids.flatten())
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.head(self.embed(batch["input_ids"]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Tiny()


def train_lightning(folder, callbacks):
    lightning = pytest.importorskip("lightning.pytorch")
    module = lightning_module(lightning)
    trainer = lightning.Trainer(
        max_steps=4, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=callbacks, val_check_interval=4,
        enable_checkpointing=True,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(dataset(), batch_size=BATCH)
    trainer.fit(module, loader, torch.utils.data.DataLoader(dataset(4), batch_size=BATCH))
    return [p.detach().clone() for p in module.parameters()]


def test_lightning_records_steps_tokens_phases_validation_and_checkpoints(tmp_path):
    pytest.importorskip("lightning")
    from perfkit.capture.integrations.lightning import PerfkitCallback

    callback = PerfkitCallback(run="pl", store=tmp_path / "store", flops_per_token=1000.0, **FLOPS)
    watched = train_lightning(tmp_path / "a", [callback])
    steps, spans, lifecycle = read(tmp_path)
    assert [row["step"] for row in steps] == list(range(4))
    assert {row["tokens"] for row in steps} == {2 * BATCH * LENGTH}
    assert {"forward", "backward", "optimizer", "perfkit.data"} <= {row["name"] for row in spans}
    kinds = {row["kind"] for row in lifecycle}
    assert {"eval", "checkpoint_save", "end"} <= kinds
    assert callback.loop.recorder.metrics["mfu"] is not None
    plain = train_lightning(tmp_path / "b", [])
    assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))


def test_accelerate_loops_make_steps_of_accumulated_batches(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    from perfkit.capture.integrations.accelerate import watch

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 8), torch.nn.Linear(8, VOCAB))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(dataset(), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    watched = watch(accelerator, loader, run="acc", store=tmp_path / "store")
    for batch in watched:
        with accelerator.accumulate(model):
            ids = batch["input_ids"]
            loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(str(tmp_path / "checkpoint"))
    watched.finish()
    steps, spans, lifecycle = read(tmp_path)
    assert [row["tokens"] for row in steps] == [3 * BATCH * LENGTH] * 4
    assert len([row for row in spans if row["name"] == "backward"]) == 12
    assert "checkpoint_save" in {row["kind"] for row in lifecycle}
