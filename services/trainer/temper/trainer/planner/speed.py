"""Seconds of one optimizer step.

Work over what the devices reach; times ``1 + (p - 1)/m`` for the bubble of a 1F1B pipeline with m micro-batches (a share of (p-1)/(m+p-1) of
the whole); plus traffic that nothing hides. Per layer and token, tensor parallelism gathers and scatters the residual stream four times forward and
four times backward (half an all-reduce each); context parallelism passes keys and values around a ring, hidden behind attention as far as that takes;
data parallelism reduces gradients once a step, hidden behind the last backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from temper.trainer.planner.layout import Layout, Work
from temper.trainer.planner.machine import Machine
from temper.trainer.planner.shapes import Shape

NARROW = 512  # width per device of a product at which a device reaches half of its efficiency


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds by what they are spent on."""

    compute: float
    bubble: float
    tensor: float
    data: float
    context: float
    pipeline: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.compute + self.bubble + self.tensor + self.data + self.context + self.pipeline

    @property
    def costliest(self) -> str:
        """The overhead that costs most."""
        overheads = {
            "pipeline bubble": self.bubble,
            "tensor-parallel traffic": self.tensor,
            "data-parallel traffic": self.data,
            "context-parallel traffic": self.context,
            "pipeline traffic": self.pipeline,
        }
        return max(overheads, key=lambda name: overheads[name])


def estimate(shape: Shape, work: Work, layout: Layout, machine: Machine) -> Step:
    """Of one step on such machines."""
    tokens = work.batch * work.context
    flops = shape.flops(tokens, work.context, recomputed=layout.recompute)
    reached = machine.flops * machine.efficiency * _fill(shape, work, layout)
    compute = flops / (layout.devices * reached)
    count = layout.micro_batches(work)
    local = work.context / layout.context * layout.micro  # tokens of a micro-batch on one device
    element = 2 if work.half else 4
    layers = shape.layers / layout.pipeline
    tensor = _tensor(shape, layout, machine, local * element) * layers * count
    bubble = (compute + tensor) * (layout.pipeline - 1) / count
    return Step(
        compute=compute,
        bubble=bubble,
        tensor=tensor,
        data=_data(shape, layout, machine, compute / max(1, count)),
        context=_context(shape, layout, machine, local * element, compute / (layers * count))
        * layers
        * count,
        pipeline=_pipeline(shape, layout, machine, local * element) * count,
    )


def _fill(shape: Shape, work: Work, layout: Layout) -> float:
    """How well products fill a device: their width and their rows, whichever is less, against `NARROW`."""
    width = shape.intermediate / layout.tensor
    rows = layout.micro * work.context / layout.context
    narrow = min(width, rows)
    return narrow / (narrow + NARROW)


def _tensor(shape: Shape, layout: Layout, machine: Machine, bytes_of_tokens: float) -> float:
    """Per layer and micro-batch."""
    if layout.tensor == 1:
        return 0.0
    speed = machine.inside if layout.tensor <= machine.node else machine.outside
    share = (layout.tensor - 1) / layout.tensor
    times = 8 + (4 if layout.recompute else 0)
    return times * share * bytes_of_tokens * shape.hidden / speed


def _data(shape: Shape, layout: Layout, machine: Machine, one_pass: float) -> float:
    """Per step: reduce gradients and gather weights over the replicas, less what one micro-batch hides."""
    replicas = layout.data * layout.context
    if replicas == 1:
        return 0.0
    held = shape.parameters / (layout.tensor * layout.pipeline)
    near = layout.devices <= machine.node
    speed = machine.inside if near else machine.outside
    moved = (4 + 2) * held * (replicas - 1) / replicas
    return max(0.0, moved / speed - one_pass)


def _context(
    shape: Shape, layout: Layout, machine: Machine, bytes_of_tokens: float, work_of_layer: float
) -> float:
    """Per layer and micro-batch: keys and values once around forward and twice backward, less what the layer's work hides."""
    if layout.context == 1:
        return 0.0
    near = layout.tensor * layout.context <= machine.node
    speed = machine.inside if near else machine.outside
    around = 3 * (layout.context - 1) * bytes_of_tokens * 2 * shape.kv_width / layout.tensor / shape.hidden
    return max(0.0, around * shape.hidden / speed - 0.5 * work_of_layer)


def _pipeline(shape: Shape, layout: Layout, machine: Machine, bytes_of_tokens: float) -> float:
    """Per micro-batch: the residual stream to the next stage and its gradient back."""
    if layout.pipeline == 1:
        return 0.0
    near = layout.tensor * layout.context * layout.pipeline <= machine.node
    speed = machine.inside if near else machine.outside
    return 2 * bytes_of_tokens * shape.hidden / layout.tensor / speed
