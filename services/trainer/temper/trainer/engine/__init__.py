"""Engines by name. The module of an engine is imported when it is asked for, so that nobody pays for another's vendor."""

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import cast

from temper.runtime.errors import Rejected
from temper.trainer.engine.base import Engine

__all__ = ["ENGINES", "make_engine", "usable"]

ENGINES = {"torch": "temper.trainer.engine.torch", "fake": "temper.trainer.engine.fake"}
VENDORS = {"torch": "torch"}


def usable() -> list[str]:
    """Engines whose vendor is installed here, sorted; nothing is imported to find out."""
    return sorted(
        name for name in ENGINES if name not in VENDORS or importlib.util.find_spec(VENDORS[name]) is not None
    )


def make_engine(name: str, *, micro_batch_tokens: int = 0, threads: int = 1) -> Engine:
    """A fresh engine. ``micro_batch_tokens`` 0 is the engine's default. Raises Rejected for an unknown name or a missing extra."""
    if name not in ENGINES:
        raise Rejected(
            f"unknown engine {name!r}", field="trainer.engine", hint=f"known: {', '.join(sorted(ENGINES))}"
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read once, when the vendor's library is loaded
    try:
        module = importlib.import_module(ENGINES[name])
    except ModuleNotFoundError as error:
        raise Rejected(
            f"engine {name!r} needs {error.name}, which is not installed",
            field="trainer.engine",
            hint="pip install 'temper-rl[trainer]'",
        ) from error
    make = cast("Callable[..., Engine]", module.make)
    return make(micro_batch_tokens=micro_batch_tokens, threads=threads)
