"""How a model is laid over processes, and which layouts cannot work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from temper.runtime.errors import Rejected
from temper.trainer.engine.torch.model import DecoderConfig

PRECISIONS = ("fp32", "bf16")
RECOMPUTE = ("none", "full")


@dataclass(frozen=True, slots=True)
class MegatronOptions:
    """What a job says under ``trainer.megatron``."""

    tensor_parallel: int = 1
    """Processes that share every matrix."""
    pipeline_parallel: int = 1
    """Processes that share the layers."""
    data_parallel: int = 1
    """Copies of the model, each with its part of a batch."""
    context_parallel: int = 1
    """Processes that share a sequence."""
    sequence_parallel: bool = False
    """Whether the processes of ``tensor_parallel`` share the sequence where they do not share matrices."""
    precision: str = "fp32"
    """fp32, or bf16: weights and activations in bf16, master weights, gradients and moments in fp32."""
    recompute: str = "none"
    """full: activations of a layer are made again in the backward pass."""
    distributed_optimizer: bool = False
    """Whether master weights and moments are spread over data-parallel copies."""

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.context_parallel

    @property
    def columns(self) -> int:
        """What the columns of a row must be a multiple of."""
        return self.context_parallel * (self.tensor_parallel if self.sequence_parallel else 1)

    def check(self) -> None:
        """Refuse what no model could run with."""
        sizes = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel")
        for name in sizes:
            if getattr(self, name) < 1:
                raise _rejected(name, f"{getattr(self, name)} is not at least 1")
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise _rejected(
                "sequence_parallel",
                "the processes of tensor_parallel share the sequence between matrices, and it is 1",
                hint="set tensor_parallel above 1, or leave sequence_parallel out",
            )
        if self.precision not in PRECISIONS:
            raise _rejected("precision", f"{self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.recompute not in RECOMPUTE:
            raise _rejected("recompute", f"{self.recompute!r} is not one of {', '.join(RECOMPUTE)}")

    def fit(self, cfg: DecoderConfig) -> None:
        """Refuse a layout that cannot hold this model, naming the constraint."""
        shared: tuple[tuple[Literal["heads", "kv_heads", "intermediate_size", "vocab_size"], str], ...] = (
            ("heads", "num_attention_heads"),
            ("kv_heads", "num_key_value_heads"),
            ("intermediate_size", "intermediate_size"),
            ("vocab_size", "vocab_size"),
        )
        for attribute, name in shared:
            _divides("tensor_parallel", self.tensor_parallel, name, getattr(cfg, attribute))
        _divides("pipeline_parallel", self.pipeline_parallel, "num_hidden_layers", cfg.layers)


def _divides(option: str, parts: int, name: str, whole: int) -> None:
    if whole % parts:
        raise _rejected(option, f"{name} {whole} is not a multiple of {parts}", hint="choose a divisor of it")


def _rejected(option: str, why: str, *, hint: str = "") -> Rejected:
    return Rejected(why, field=f"trainer.megatron.{option}", hint=hint or None)
