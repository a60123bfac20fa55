"""Every layout of some devices, ranked by time, with the reason why each other one lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from temper.runtime.errors import Rejected
from temper.trainer.planner.layout import Layout, Work, impossible
from temper.trainer.planner.machine import GIB, Machine
from temper.trainer.planner.memory import RESERVE, Memory, needed
from temper.trainer.planner.shapes import Shape
from temper.trainer.planner.speed import Step, estimate

SAME = 1.02  # times closer than this are not told apart


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout with what it costs."""

    layout: Layout
    memory: Memory
    step: Step
    reason: str
    """Why it is not the first; empty for the first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts that were looked at."""

    ranked: tuple[Candidate, ...]
    """Those that can run, the fastest first."""
    refused: tuple[tuple[Layout, str], ...]
    """Those that cannot, with the constraint in the way."""

    @property
    def best(self) -> Candidate:
        """The fastest."""
        return self.ranked[0]


def plan(shape: Shape, work: Work, machine: Machine, devices: int) -> Plan:
    """All layouts of exactly that many devices. Raises Rejected naming the binding constraint when none can run."""
    fits: list[Candidate] = []
    refused: list[tuple[Layout, str]] = []
    limit = machine.memory * RESERVE
    for layout in layouts(work, devices):
        words = impossible(shape, work, layout, machine.node)
        memory = needed(shape, work, layout) if not words else None
        if memory is not None and memory.total > limit:
            words = (
                f"needs {memory.total / GIB:.1f} GiB of {limit / GIB:.1f} GiB that a {machine.name} gives, "
                f"most of it {memory.largest}"
            )
        if words or memory is None:
            refused.append((layout, words))
        else:
            fits.append(Candidate(layout, memory, estimate(shape, work, layout, machine), ""))
    if not fits:
        raise Rejected(_binding(refused, shape, work), field="gpus", hint=_way_out(refused))
    fastest = min(each.step.total for each in fits)
    fits.sort(key=lambda each: _rank(each, fastest))
    best = fits[0]
    ranked = (best, *(_explained(each, best) for each in fits[1:]))
    return Plan(ranked, tuple(refused))


def _rank(each: Candidate, fastest: float) -> tuple[float, int, float]:
    """The fastest first; of those that an estimate cannot tell apart, the simplest, then the leanest."""
    layout, slower = each.layout, each.step.total / fastest
    ways = sum(cut > 1 for cut in (layout.tensor, layout.pipeline, layout.context)) + layout.recompute
    return (1.0 if slower < SAME else slower, ways, each.memory.total)


def layouts(work: Work, devices: int) -> Iterator[Layout]:
    """Every product of four factors, with micro-batches in powers of two and with or without recomputation."""
    for tensor in _divisors(devices):
        for pipeline in _divisors(devices // tensor):
            for context in _divisors(devices // tensor // pipeline):
                data = devices // tensor // pipeline // context
                micro = 1
                while micro <= 8 and micro * data <= work.batch:
                    for recompute in (False, True):
                        yield Layout(data, tensor, pipeline, context, micro, recompute)
                    micro *= 2
                if data > work.batch:
                    yield Layout(data, tensor, pipeline, context, 1, recompute=False)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _explained(each: Candidate, best: Candidate) -> Candidate:
    slower = each.step.total / best.step.total
    if slower < SAME:
        return replace(each, reason="as fast, as far as an estimate tells")
    if each.layout.recompute and each.step.compute > 1.1 * best.step.compute:
        why = "computes layers twice"
    elif each.step.compute > 1.1 * best.step.compute:
        why = "its products are too small to fill a device"
    else:
        why = each.step.costliest
    return replace(each, reason=f"{slower:.2f} x the time: {why}")


def _binding(refused: list[tuple[Layout, str]], shape: Shape, work: Work) -> str:
    """What stood in the way of the layout that came nearest."""
    short = [(layout, needed(shape, work, layout)) for layout, words in refused if words.startswith("needs ")]
    if short:
        layout, _ = min(short, key=lambda pair: pair[1].total)
        words = next(words for found, words in refused if found == layout)
        return f"no layout fits: the leanest, {layout}, {words}"
    return f"no layout can work: {refused[0][1]}" if refused else "no device to lay anything out on"


def _way_out(refused: list[tuple[Layout, str]]) -> str:
    if any(words.startswith("needs ") for _, words in refused):
        return "more devices, a shorter context, or a kind of device with more memory (--machine)"
    return "another number of devices, or a batch that they divide (--batch)"
