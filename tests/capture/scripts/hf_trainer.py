"""The Hugging Face Trainer on a tiny Llama."""

import hashlib
import sys

import torch
import transformers

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = transformers.LlamaForCausalLM(config)
ids = torch.randint(0, 64, (24, 16), generator=torch.Generator().manual_seed(0))
arguments = transformers.TrainingArguments(
    output_dir=sys.argv[1], max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[],
    use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no", seed=1,
)  # fmt: skip
trainer = transformers.Trainer(
    model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in ids]
)
trainer.train()
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
