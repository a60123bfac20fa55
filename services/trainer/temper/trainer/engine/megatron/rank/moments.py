"""The optimizer's view of a parameter, whichever of Megatron's optimizers holds it: master weights and moments, whole.

Kinds: fp32 (a parameter is its own master), bf16 (a master beside it), distributed (a flat part of a master per data-parallel
copy). Parts are put together as integers, so that not a bit is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor, nn


class Moments:
    """Reads and writes the state of one optimizer."""

    def __init__(self, optimizer: Any) -> None:
        chained = getattr(optimizer, "chained_optimizers", None)
        self._megatron: Any = chained[0] if chained else optimizer
        self._torch: torch.optim.Optimizer = self._megatron.optimizer

    def tune(self, said: Mapping[str, Any]) -> None:
        """Learning rate and the like for the next step."""
        for group in self._torch.param_groups:
            betas = (said["beta1"], said["beta2"])
            group.update(lr=said["lr"], betas=betas, weight_decay=said["weight_decay"], eps=1e-8)

    def forget(self) -> None:
        """Drop moments and step counts."""
        self._torch.state.clear()

    def read(self, param: nn.Parameter, what: str) -> Tensor:
        """``param`` (the master), ``exp_avg`` or ``exp_avg_sq`` of this rank's whole parameter, fp32."""
        main, held = self.place(param)
        found = None if main is None else main if what == "param" else self._torch.state[main][what]
        if held is None:
            assert found is not None, "only a distributed optimizer leaves a parameter to others"
            return found.detach().float().clone()
        bits = torch.zeros(param.numel(), dtype=torch.int32, device=param.device)
        if found is not None:
            bits[held] = found.detach().float().flatten().view(torch.int32)
        torch.distributed.all_reduce(
            bits, group=parallel_state.get_data_parallel_group(with_context_parallel=True)
        )
        return bits.view(torch.float32).view(param.shape)

    def write(self, param: nn.Parameter, what: str, value: Tensor, step: float) -> None:
        """The inverse of ``read``; ``step`` is the count that comes with moments."""
        main, held = self.place(param)
        if main is None:
            return
        own = value if held is None else value.flatten()[held]
        with torch.no_grad():
            if what == "param":
                main.data.copy_(own.view(main.shape))
            else:
                state = self._torch.state[main]
                state["step"] = torch.tensor(step)
                state[what] = own.to(main.device, torch.float32).view(main.shape).clone()

    def place(self, param: nn.Parameter) -> tuple[Tensor | None, slice | None]:
        """The master of a parameter and, with a distributed optimizer, which of its elements are here."""
        if not isinstance(self._megatron, DistributedOptimizer):
            return getattr(param, "main_param", param), None
        place = self._megatron.model_param_group_index_map.get(param)
        if place is None:
            return None, slice(0, 0)
        held = self._megatron._get_model_param_range_map(param)["param"]  # noqa: SLF001 - no public way to a part
        group, position = place
        return self._torch.param_groups[group]["params"][position], slice(held.start, held.end)
