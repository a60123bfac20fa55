"""`temper variant …`: fast variants of a served model, admitted by evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

RecordsOption = Annotated[Path, Parameter(name="--records", help="Directory of admission records.")]


def register(app: App) -> None:
    """Add the group."""
    group = App(
        name="variant", help="Fast variants of a served model: admitted by evidence, refused otherwise."
    )
    group.command(admit)
    group.command(list_, name="list")
    app.command(group)


def admit(
    *,
    model: Annotated[Path, Parameter(help="Hugging Face directory of the standard variant.")],
    corpus: Annotated[
        Path, Parameter(help="Texts, one per line: logprobs of both variants are compared on them.")
    ],
    golden: Annotated[
        Path, Parameter(help="Tasks, one JSON object per line: prompt, and equals, contains or regex.")
    ],
    records: RecordsOption,
    seeds: Annotated[int, Parameter(help="Outputs per task.")] = 4,
    temperature: Annotated[float, Parameter(help="Of the tasks' outputs.")] = 1.0,
    config: Annotated[
        Path | None, Parameter(name="--config", help="TOML file on top of the defaults.")
    ] = None,
    set_: Annotated[
        tuple[str, ...],
        Parameter(name="--set", help='What differs, e.g. serving.fast.engine={quantisation="w8a8"}.'),
    ] = (),
) -> int:
    """Compare a fast variant with the standard one; exit 0 and a signed record if it is as good, else 1 and why."""
    options = ["--model", str(model), "--corpus", str(corpus), "--golden", str(golden)]
    options += ["--records", str(records), "--seeds", str(seeds), "--temperature", str(temperature)]
    if config is not None:
        options += ["--config", str(config)]
    for assignment in set_:
        options += ["--set", assignment]
    return _run("admit", *options)


def list_(*, records: RecordsOption) -> int:
    """Records of a directory, one JSON object per line."""
    return _run("list", "--records", str(records))


def _run(*arguments: str) -> int:
    """The rollout service's own command, in a process of its own: the client knows no engine."""
    import subprocess
    import sys

    from temper.client.platform.services import SERVICES, require_installed

    require_installed(tuple(each for each in SERVICES if each.name == "rollout"))
    command = [sys.executable, "-m", "temper.rollout.serving.variants", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own command line
