"""One way to cut a model and a batch over devices, and what makes a cut impossible."""

from __future__ import annotations

from dataclasses import dataclass

from temper.trainer.planner.shapes import Shape


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be trained on."""

    context: int
    """Tokens of a sequence, s."""
    batch: int
    """Sequences of an optimizer step."""
    half: bool = True
    """bf16 weights with fp32 master copies; else fp32 throughout."""
    engine: str = "megatron"
    """``megatron``, or ``torch``: one device, nothing fused."""
    fused: bool = True
    """Whether Megatron's layers are fused, as with Transformer Engine; else as temper's engine computes them now."""
    colocated_kv: int = 0
    """Tokens of KV that a rollout engine keeps on the same devices; it holds a copy of the weights, too."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Devices = data · tensor · pipeline · context."""

    data: int
    tensor: int
    pipeline: int
    context: int
    micro: int
    """Sequences of a micro-batch."""
    recompute: bool
    """Whether layers are computed again in the backward pass instead of kept."""
    sharded: bool = True
    """Whether optimizer state is cut over the data-parallel ranks."""
    sequence: bool = True
    """Whether tensor-parallel ranks share the sequence between matrices."""

    @property
    def devices(self) -> int:
        """How many it needs."""
        return self.data * self.tensor * self.pipeline * self.context

    def micro_batches(self, work: Work) -> int:
        """Micro-batches of one step, per pipeline."""
        return work.batch // (self.data * self.micro)

    def __str__(self) -> str:
        again = " recompute" if self.recompute else ""
        return f"DP{self.data} TP{self.tensor} PP{self.pipeline} CP{self.context} micro {self.micro}{again}"


def impossible(shape: Shape, work: Work, layout: Layout, node: int) -> str:
    """The first constraint that a layout breaks, in words; empty if it can work."""
    checks = (
        (work.engine == "torch" and layout.devices > 1, "the torch engine uses one device"),
        (shape.heads % layout.tensor, f"tensor {layout.tensor} does not divide {shape.heads} heads"),
        (
            shape.kv_heads % layout.tensor,
            f"tensor {layout.tensor} does not divide {shape.kv_heads} key/value heads",
        ),
        (
            shape.intermediate % layout.tensor,
            f"tensor {layout.tensor} does not divide the intermediate size {shape.intermediate}",
        ),
        (layout.tensor > node, f"tensor {layout.tensor} reaches over a node of {node} devices"),
        (shape.layers % layout.pipeline, f"pipeline {layout.pipeline} does not divide {shape.layers} layers"),
        (
            layout.context > 1 and work.context % (2 * layout.context),
            f"a context of {work.context} cannot be cut into {2 * layout.context} equal pieces",
        ),
        (
            work.batch % (layout.data * layout.micro),
            f"a batch of {work.batch} is no multiple of data {layout.data} times micro-batch {layout.micro}",
        ),
    )
    return next((words for broken, words in checks if broken), "")
