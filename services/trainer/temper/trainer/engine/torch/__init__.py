"""The torch engine: model, packing, optimizer. The only room of the trainer that imports torch."""

import torch

from temper.trainer.engine.torch.engine import TorchEngine

__all__ = ["TorchEngine", "make"]


def make(*, micro_batch_tokens: int = 0, threads: int = 1) -> TorchEngine:
    """An engine on the CPU, or on the first accelerator if there is one."""
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return TorchEngine(device=device, micro_batch_tokens=micro_batch_tokens)
