"""What the commands of this package share: settings from the usual places, errors in words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from temper.rollout.serving.config import ServingSettings
from temper.runtime.config import load
from temper.runtime.errors import Rejected, TemperError, Unavailable

REJECTED, NOT_AVAILABLE = 2, 3


def settings(file: Path | None, sets: Sequence[str]) -> ServingSettings:
    """Packaged defaults, then the file, the environment (``TEMPER_ROLLOUT__...``) and ``--set``."""
    return load("rollout", ServingSettings, file=file, sets=sets)


def require_installed() -> None:
    """Raises ``Unavailable`` with the command that helps when a library of the front is not there."""
    missing = [name for name in ("jinja2", "starlette", "tokenizers", "uvicorn") if find_spec(name) is None]
    if missing:
        raise Unavailable(f"{', '.join(missing)} not installed", hint="pip install 'temper-rl[rollout]'")


def fail(error: TemperError) -> int:
    """Say it without a traceback; returns the exit code."""
    where = f"{error.field}: " if error.field else ""
    say(f"error: {where}{error.message}")
    if error.hint:
        say(f"  hint: {error.hint}")
    return REJECTED if isinstance(error, Rejected) else NOT_AVAILABLE


def say(text: str) -> None:
    """Talk goes to standard error."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command line tool talks
