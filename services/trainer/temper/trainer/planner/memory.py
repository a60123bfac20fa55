"""Bytes on the fullest device of a layout.

Weights, gradients and optimizer: bf16 weights 2, fp32 gradients 4, fp32 master copy and two moments 12 bytes per parameter (in fp32: 4, 4
and 8), the last cut over data-parallel ranks where sharded. Activations after Korthikanti et al. (arXiv 2205.05198), written out for gated
blocks and grouped queries, with attention that keeps no scores; tensor parallelism cuts all of them because the norms between are cut along the
sequence. The first pipeline stage holds as many micro-batches as there are stages; the last one adds the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

from temper.trainer.planner.layout import Layout, Work
from temper.trainer.planner.shapes import Shape

RESERVE = 0.92  # share of a device that may be planned for: the rest is the allocator's, the collectives' and the kernels'


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    rollout: float
    """Weights and KV of a rollout engine on the same device."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.rollout

    @property
    def largest(self) -> str:
        """Name of the largest part."""
        parts = {
            name: float(getattr(self, name))
            for name in ("weights", "gradients", "optimizer", "activations", "logits", "rollout")
        }
        return max(parts, key=lambda name: parts[name])


def needed(shape: Shape, work: Work, layout: Layout) -> Memory:
    """Of the stage that needs most: the larger of the first and the last."""
    first = _stage(shape, work, layout, first=True, last=layout.pipeline == 1)
    if layout.pipeline == 1:
        return first
    last = _stage(shape, work, layout, first=False, last=True)
    return max(first, last, key=lambda memory: memory.total)


def _stage(shape: Shape, work: Work, layout: Layout, *, first: bool, last: bool) -> Memory:
    layers = shape.layers // layout.pipeline
    parameters = layers * shape.layer_parameters
    parameters += shape.embedding if first else 0
    if last:
        parameters += shape.hidden + (shape.vocab * shape.hidden if not first else shape.head)
    held = parameters / layout.tensor
    wide, state = (2, 12) if work.half else (4, 8)
    tokens = layout.micro * work.context / layout.context
    in_flight = min(layout.pipeline, layout.micro_batches(work)) if first else 1
    element = 2 if work.half else 4
    logits = _logits(shape, work, layout, tokens) if last else 0.0
    return Memory(
        weights=wide * held,
        gradients=4 * held,
        optimizer=state * held / (layout.data * layout.context if layout.sharded else 1),
        activations=element * tokens * _kept(shape, work, layers, layout, in_flight),
        logits=logits,
        rollout=_rollout(shape, work, layout),
    )


def _logits(shape: Shape, work: Work, layout: Layout, tokens: float) -> float:
    """Bytes at the end: logits and their gradient in fp32; unfused, what is kept of log-probabilities and the last norm."""
    if work.engine == "torch":
        return 4 * tokens * (shape.vocab + 3 * shape.hidden + shape.head_dim)
    if work.fused:
        return 2 * 4 * tokens * shape.vocab / layout.tensor
    element = 2 if work.half else 4
    return tokens * (2 * 4 * shape.vocab / layout.tensor + element * 4 * shape.hidden + work.context)


def per_token(shape: Shape, work: Work) -> float:
    """Elements that one layer keeps of one token for its backward pass.

    Fused: input and output of both norms (4h), q, k, v and the output of attention (2q + 2kv), gate, up and their product (3f; 2f without a
    gate). The torch engine on CPU fuses nothing: normalised values and the copy before the output projection (6h + 3q + 2kv), the activated
    gate (4f), log-sum-exps, and one row of a mask in floats.
    """
    if work.engine == "torch":
        attention = 3 * shape.query_width + 2 * shape.kv_width + shape.heads + work.context
        return 6 * shape.hidden + attention + 4 * shape.intermediate
    attention = 2 * shape.query_width + 2 * shape.kv_width
    return 4 * shape.hidden + attention + (3 if shape.gated else 2) * shape.intermediate


def unfused(shape: Shape, work: Work, layout: Layout) -> float:
    """Elements that one layer of temper's megatron engine keeps of one token on one rank.

    Both norms keep input, normalised values and output (6h; 10h in bf16, where they compute in fp32). Attention keeps the product of the fused matrix, a copy of the queries, what
    rotary positions make of queries and keys, and its output (5q + 4kv), angles (4 head widths), log-sum-exps, and one row of a mask. The
    block keeps 4f. Tensor parallelism cuts what belongs to heads and to the block, and norms where the sequence is shared.
    """
    norms = (10 if work.half else 6) * shape.hidden / (layout.tensor if layout.sequence else 1)
    split = 5 * shape.query_width + 4 * shape.kv_width + shape.heads + 4 * shape.intermediate
    return norms + split / layout.tensor + 4 * shape.head_dim + work.context + 2


def _kept(shape: Shape, work: Work, layers: int, layout: Layout, in_flight: int) -> float:
    """Elements per token of a micro-batch, over all micro-batches in flight and on one rank of those of tensor parallelism."""
    if work.engine == "megatron" and not work.fused:
        whole, entry = unfused(shape, work, layout), shape.hidden / (layout.tensor if layout.sequence else 1)
    else:
        whole, entry = per_token(shape, work) / layout.tensor, shape.hidden / layout.tensor
    if not layout.recompute:
        return in_flight * layers * whole
    return in_flight * layers * entry + whole  # inputs of layers, and one layer at work


def _rollout(shape: Shape, work: Work, layout: Layout) -> float:
    """A copy of the weights and the KV, cut over the devices of one tensor-parallel group."""
    if not work.colocated_kv:
        return 0.0
    element = 2 if work.half else 4
    kv = work.colocated_kv * 2 * shape.kv_width * shape.layers
    return element * (shape.parameters + kv) / layout.tensor
