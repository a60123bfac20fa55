"""Engines by name. The module of an engine is imported when it is asked for, so that nobody pays for another's vendor."""

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from temper.runtime.errors import Rejected
from temper.trainer.engine.base import Engine

__all__ = ["ENGINES", "make_engine", "usable"]

ENGINES = {
    "torch": "temper.trainer.engine.torch",
    "megatron": "temper.trainer.engine.megatron",
    "fake": "temper.trainer.engine.fake",
}
VENDORS = {"torch": "torch", "megatron": "megatron"}
EXTRAS = {"torch": "trainer", "megatron": "trainer,megatron"}


def usable() -> list[str]:
    """Engines whose vendor is installed here, sorted; nothing is imported to find out."""
    return sorted(
        name for name in ENGINES if name not in VENDORS or importlib.util.find_spec(VENDORS[name]) is not None
    )


def make_engine(
    name: str,
    *,
    micro_batch_tokens: int = 0,
    threads: int = 1,
    megatron: Mapping[str, Any] | None = None,
) -> Engine:
    """A fresh engine. ``micro_batch_tokens`` 0 is the engine's default, ``megatron`` the options of the engine of that name.

    Raises Rejected for an unknown name, a missing extra, or options of another engine.
    """
    if name not in ENGINES:
        raise Rejected(
            f"unknown engine {name!r}", field="trainer.engine", hint=f"known: {', '.join(sorted(ENGINES))}"
        )
    if megatron is not None and name != "megatron":
        raise Rejected(
            f"these are options of the engine megatron, the job asks for {name}", field="trainer.megatron"
        )
    if (
        name == "megatron" and importlib.util.find_spec("megatron") is None
    ):  # ranks import it, the engine does not
        raise _missing(name, "megatron-core")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read once, when the vendor's library is loaded
    try:
        module = importlib.import_module(ENGINES[name])
    except ModuleNotFoundError as error:
        raise _missing(name, error.name or "a module") from error
    make = cast("Callable[..., Engine]", module.make)
    options = {"options": megatron} if name == "megatron" else {}
    return make(micro_batch_tokens=micro_batch_tokens, threads=threads, **options)


def _missing(name: str, module: str) -> Rejected:
    extras = EXTRAS.get(name, "trainer")
    return Rejected(
        f"engine {name!r} needs {module}, which is not installed",
        field="trainer.engine",
        hint=f"pip install 'temper-rl[{extras}]'",
    )
