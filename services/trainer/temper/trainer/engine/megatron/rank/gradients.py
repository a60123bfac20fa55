"""Gradients of several domains in Megatron's buffers: taken out after their reduction, compared over all ranks, put back merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor, nn

from temper.trainer.advantage import Floats
from temper.trainer.engine.megatron.rank.moments import Moments
from temper.trainer.engine.torch.mixture import Bucket, products


class RankGradients:
    """``Gradients`` of this rank: of its parts of parameters and, with a distributed optimizer, of its part of those."""

    def __init__(self, wrapped: nn.Module, moments: Moments) -> None:
        self._wrapped: Any = wrapped
        self._params = list(wrapped.parameters())
        places = [moments.place(param) for param in self._params]
        self._spread = any(held is not None for _, held in places)
        self._held = [slice(None) if held is None else held for _, held in places]

    def _views(self) -> list[Tensor]:
        """What is here of every parameter's gradient, in place."""
        grads: list[Tensor] = [vars(param)["main_grad"] for param in self._params]
        return [grad.view(-1)[held] for grad, held in zip(grads, self._held, strict=True)]

    def take(self) -> list[Tensor | None]:
        """See ``Gradients``."""
        found: list[Tensor | None] = [view.clone() for view in self._views()]
        self._wrapped.zero_grad_buffer()
        return found

    def gram(self, buckets: Sequence[Bucket]) -> Floats:
        """See ``Gradients``. The same on all ranks."""
        out = np.zeros((len(buckets), len(buckets)))
        for index, param in enumerate(self._params):
            if self._counts(param):
                out += products([bucket.gradient[index] for bucket in buckets])
        found = torch.from_numpy(out).to(self._params[0].device)
        torch.distributed.all_reduce(found)
        return found.cpu().numpy()

    def put(self, merged: Iterable[Tensor | None]) -> None:
        """See ``Gradients``."""
        for view, gradient in zip(self._views(), merged, strict=True):
            assert gradient is not None, "buffers have a gradient for every parameter"
            view.copy_(gradient)

    def _counts(self, param: nn.Parameter) -> bool:
        """Whether this rank speaks for its part of a parameter: of equal copies, one does."""
        said = vars(param)
        copies = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        tensor = parallel_state.get_tensor_model_parallel_rank()
        return not (
            said.get("shared", False)
            or (copies and not self._spread)
            or (tensor and not said["tensor_model_parallel"])
        )
