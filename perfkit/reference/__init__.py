"""The reference distributed training loop: `torchrun -m perfkit.reference.train`, with faults on purpose."""
