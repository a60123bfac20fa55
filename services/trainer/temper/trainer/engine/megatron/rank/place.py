"""Where a rank stands in a layout, and the slots of parameters it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from megatron.core import parallel_state

from temper.trainer.engine.megatron.layout import MegatronOptions
from temper.trainer.engine.megatron.names import Slot, head_slots, slots
from temper.trainer.engine.torch.model import DecoderConfig


@dataclass(frozen=True, slots=True)
class Place:
    """Numbers of one rank; they change with the layout."""

    options: MegatronOptions
    tensor: int
    stage: int
    copy: int
    """Number among the copies of the same parameters, data-parallel and context-parallel together."""
    last: bool
    """Whether it holds the last layers."""
    speaks: bool
    """Whether it reports for its data-parallel copy."""

    @classmethod
    def here(cls, options: MegatronOptions) -> Self:
        """Of this process, once Megatron knows the layout."""
        tensor, last = (
            parallel_state.get_tensor_model_parallel_rank(),
            parallel_state.is_pipeline_last_stage(),
        )
        return cls(
            options=options,
            tensor=tensor,
            stage=parallel_state.get_pipeline_model_parallel_rank(),
            copy=parallel_state.get_data_parallel_rank(with_context_parallel=True),
            last=last,
            speaks=last and tensor == 0 and parallel_state.get_context_parallel_rank() == 0,
        )

    def slots(self, cfg: DecoderConfig, layers: range | None = None) -> list[Slot]:
        """All of this pipeline stage, or those of some layers of it; with the first and the last the ends of the model come along."""
        count = cfg.layers // self.options.pipeline_parallel
        held = range(self.stage * count, (self.stage + 1) * count)
        some = held if layers is None else layers
        first = self.stage == 0 and some.start == held.start
        last = self.last and some.stop == held.stop
        copied = layers is None and self.stage > 0  # who asks for layers wants every tensor once
        return list(slots(cfg, some, start=held.start, first=first, last=last, copied=copied))

    def head_slots(self) -> list[Slot]:
        """The scalar head, where it is."""
        return head_slots() if self.last else []
