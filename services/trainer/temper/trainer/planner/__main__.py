"""``temper plan MODEL --gpus N --context L``: the best layout, the next ones, and why they lost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from temper.runtime.errors import Rejected, TemperError
from temper.trainer.planner.layout import Work
from temper.trainer.planner.machine import GIB, MACHINES
from temper.trainer.planner.search import Candidate, Plan, plan
from temper.trainer.planner.shapes import Shape, read

SHOWN = 4
WRONG_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Print a plan; 0, or 2 with a sentence on standard error."""
    asked = parser().parse_args(argv)
    try:
        shape = read(config_of(asked.model))
        work = Work(
            asked.context,
            asked.batch or asked.gpus,
            half=not asked.fp32,
            engine=asked.engine,
            fused=not asked.unfused,
            colocated_kv=asked.kv_tokens,
        )
        found = plan(shape, work, MACHINES[asked.machine], asked.gpus)
    except TemperError as error:
        sys.stderr.write(f"temper plan: {error}\n")
        return WRONG_INPUT
    if asked.output == "json":
        text = json.dumps(as_json(found, shape, asked.show), indent=2)
    else:
        text = as_text(found, shape, work, asked.machine, asked.show)
    sys.stdout.write(text + "\n")
    if asked.write:
        asked.write.write_text(launch(found.best, work))
        sys.stderr.write(f"wrote {asked.write}\n")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="temper plan", description="Lay a model out over devices for training."
    )
    made.add_argument("model", type=Path, help="a Hugging Face directory, or its config.json")
    made.add_argument("--gpus", type=positive, required=True, help="devices in all")
    made.add_argument("--context", type=positive, required=True, help="tokens of a sequence")
    made.add_argument("--batch", type=positive, help="sequences of an optimizer step (as many as devices)")
    made.add_argument("--machine", choices=sorted(MACHINES), default="h100", help="kind of device (h100)")
    made.add_argument("--engine", choices=("megatron", "torch"), default="megatron", help="training engine")
    made.add_argument(
        "--unfused",
        action="store_true",
        help="memory of the megatron engine as it is, without Transformer Engine",
    )
    made.add_argument("--fp32", action="store_true", help="fp32 throughout instead of bf16 with fp32 masters")
    made.add_argument(
        "--kv-tokens", type=positive, default=0, help="KV tokens of a rollout engine on the same devices"
    )
    made.add_argument("--show", type=positive, default=SHOWN, help="how many layouts to show (4)")
    made.add_argument("--write", type=Path, help="write the best layout as a launch configuration (TOML)")
    made.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return made


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def config_of(model: Path) -> dict[str, Any]:
    """``config.json`` of a directory, or the file itself. Raises Rejected for what is not there or no JSON object."""
    path = model / "config.json" if model.is_dir() else model
    try:
        found: Any = json.loads(path.read_text())
    except OSError as error:
        raise Rejected(f"{path}: {error.strerror}", field="model") from None
    except ValueError as error:
        raise Rejected(f"{path} is not JSON: {error}", field="model") from None
    if not isinstance(found, dict):
        raise Rejected(f"{path} holds no JSON object", field="model")
    return cast("dict[str, Any]", found)


def as_text(found: Plan, shape: Shape, work: Work, machine: str, show: int) -> str:
    """For people."""
    names = ("weights", "gradients", "optimizer", "activations", "logits", "rollout")
    memory = found.best.memory
    parts = ", ".join(f"{name} {size(getattr(memory, name))}" for name in names if getattr(memory, name))
    return "\n".join(
        (
            f"{count(shape.parameters)} parameters, {work.batch} sequences of {work.context} tokens a step, {machine}",
            "",
            f"  {'layout':<36}{'step':>10}{'memory':>11}   why not",
            *(
                f"  {each.layout!s:<36}{seconds(each.step.total):>10}{size(each.memory.total):>11}   "
                f"{each.reason or '(best)'}"
                for each in found.ranked[:show]
            ),
            "",
            f"memory of the best: {parts}",
            f"{len(found.ranked)} layouts fit, {len(found.refused)} do not, for example:",
            *(f"  {layout!s:<36} {words}" for layout, words in _one_of_each(found)),
        )
    )


def count(parameters: int) -> str:
    """Parameters with a unit."""
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"


def seconds(value: float) -> str:
    """A time with a unit."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def size(value: float) -> str:
    """Bytes with a unit."""
    return f"{value / GIB:.1f} GiB" if value >= GIB else f"{value / (1 << 20):.1f} MiB"


def _one_of_each(found: Plan) -> list[tuple[object, str]]:
    """One refused layout for each kind of reason."""
    seen: dict[str, tuple[object, str]] = {}
    for layout, words in found.refused:
        seen.setdefault(words.split(" ", 1)[0], (layout, words))
    return list(seen.values())


def as_json(found: Plan, shape: Shape, show: int) -> dict[str, Any]:
    """For programs."""
    return {
        "parameters": shape.parameters,
        "layouts": [_candidate(each) for each in found.ranked[:show]],
        "fit": len(found.ranked),
        "refused": [{"layout": str(layout), "reason": words} for layout, words in _one_of_each(found)],
    }


def _candidate(each: Candidate) -> dict[str, Any]:
    layout, step, memory = each.layout, each.step, each.memory
    return {
        "data": layout.data,
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "context": layout.context,
        "micro_batch": layout.micro,
        "recompute": layout.recompute,
        "step_s": step.total,
        "bubble_s": step.bubble,
        "exposed_traffic_s": step.tensor + step.data + step.context + step.pipeline,
        "memory_bytes": memory.total,
        "reason": each.reason,
    }


def launch(best: Candidate, work: Work) -> str:
    """A launch configuration: what a launcher and the trainer need to know of a layout."""
    layout = best.layout
    return "\n".join(
        (
            f"# {layout}: {best.step.total:.2f} s a step and {best.memory.total / GIB:.1f} GiB by the planner's estimate",
            f"world_size = {layout.devices}",
            f"tensor_parallel = {layout.tensor}",
            f"pipeline_parallel = {layout.pipeline}",
            f"context_parallel = {layout.context}",
            f"data_parallel = {layout.data}",
            f"micro_batch_size = {layout.micro}",
            f"global_batch_size = {work.batch}",
            f"sequence_length = {work.context}",
            f"recompute = {str(layout.recompute).lower()}",
            f'precision = "{"bf16" if work.half else "fp32"}"',
            f"distributed_optimizer = {str(layout.sharded).lower()}",
            "",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
