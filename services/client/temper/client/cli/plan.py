"""`temper plan`: which parallel layout a model should be trained in. The planner is the trainer's; it needs no platform."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

_PLANNER = "temper.trainer.planner"


def register(app: App) -> None:
    """Add the command."""
    app.command(plan)


def plan(
    model: Annotated[Path, Parameter(help="A Hugging Face directory, or its config.json.")],
    /,
    *,
    gpus: Annotated[int, Parameter(help="Devices in all.")],
    context: Annotated[int, Parameter(help="Tokens of a sequence.")],
    batch: Annotated[int | None, Parameter(help="Sequences of a step; left out: as many as devices.")] = None,
    machine: Annotated[
        Literal["a100-80g", "h100", "h200", "b200"], Parameter(help="Kind of device.")
    ] = "h100",
    engine: Annotated[Literal["megatron", "torch"], Parameter(help="Training engine.")] = "megatron",
    unfused: Annotated[
        bool, Parameter(help="Memory of the megatron engine as it is, without Transformer Engine.")
    ] = False,
    fp32: Annotated[bool, Parameter(help="fp32 throughout instead of bf16 with fp32 masters.")] = False,
    kv_tokens: Annotated[int, Parameter(help="KV tokens of a rollout engine on the same devices.")] = 0,
    show: Annotated[int, Parameter(help="How many layouts to show.")] = 4,
    write: Annotated[Path | None, Parameter(help="Write the best as a launch configuration (TOML).")] = None,
    output: Annotated[
        Literal["table", "json"], Parameter(name=["--output", "-o"], help="Form of the data.")
    ] = "table",
) -> int:
    """Lay a model out over devices: the best layout, the next ones, and why they lost.

    Estimates from formulas, held to published runs; nothing is started. `temper plan DIR --gpus 64 --context 8192`
    """
    import subprocess

    options: dict[str, object] = {
        "--gpus": gpus,
        "--context": context,
        "--batch": batch,
        "--machine": machine,
        "--engine": engine,
        "--kv-tokens": kv_tokens or None,
        "--show": show,
        "--write": write,
        "--output": output,
    }
    given = [text for name, value in options.items() if value is not None for text in (name, str(value))]
    flags = [name for name, asked in (("--fp32", fp32), ("--unfused", unfused)) if asked]
    command = [sys.executable, "-m", _PLANNER, str(model), *given, *flags]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own command line
