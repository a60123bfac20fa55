"""The Megatron-Core engine: the policy lives in rank processes, this side speaks to them. Megatron is imported by ``rank`` alone."""

from collections.abc import Mapping
from typing import Any

import torch

from temper.trainer.engine.megatron.engine import MegatronEngine
from temper.trainer.engine.megatron.layout import MegatronOptions

__all__ = ["MegatronEngine", "MegatronOptions", "make"]


def make(
    *, micro_batch_tokens: int = 0, threads: int = 1, options: Mapping[str, Any] | None = None
) -> MegatronEngine:
    """An engine; its processes start with the first policy. Raises Rejected for a layout that cannot work."""
    torch.set_num_threads(threads)
    layout = MegatronOptions(**(options or {}))
    return MegatronEngine(layout, micro_batch_tokens=micro_batch_tokens, threads=threads)
