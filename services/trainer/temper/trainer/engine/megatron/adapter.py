"""Megatron-Core on a machine without CUDA: what it asks of ``torch.cuda`` is answered for the CPU.

Megatron is not edited. ``install`` runs before the first ``import megatron.core`` and replaces about twenty functions of
``torch.cuda``; ``on_cpu`` is the context around every call into Megatron and rewrites device arguments. Both change the whole process,
so they live in rank processes only, never in the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _Stream:
    """A stream on a device that has only one."""

    device = CPU

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Everything is done already."""

    def wait_stream(self, _: object) -> None:
        """As above."""

    def wait_event(self, _: object) -> None:
        """As above."""

    def record_event(self, event: object = None) -> object:
        """As above."""
        return event or _Event()


class _Event(_Stream):
    """A mark in such a stream."""

    def record(self, _: object = None) -> None:
        """As above."""

    def wait(self, _: object = None) -> None:
        """As above."""

    def query(self) -> bool:
        """As above."""
        return True


class _Generators:
    """``torch.cuda.default_generators``: whatever the device, the CPU's."""

    def __getitem__(self, _: object) -> torch.Generator:
        return torch.default_generator


def _rng_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _seed(seed: int) -> None:
    torch.manual_seed(seed)


def _set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _uncompiled(function: Any = None, **_: Any) -> Any:
    """``torch.compile`` that leaves functions as they are."""
    return _uncompiled if function is None else function


def _nothing() -> Any:
    """A function that does nothing; one for each name, because torch keeps rules by function."""
    return lambda *_, **__: None


def install() -> None:
    """Answer for ``torch.cuda`` on this process's CPU. Does nothing where there is an accelerator."""
    if torch.cuda.is_available():
        return
    torch.compile = (
        _uncompiled  # Megatron decorates at import: seconds of imports for functions that gain nothing here
    )
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.device_count = lambda: 0
    cuda.set_device, cuda.synchronize, cuda.empty_cache = _nothing(), _nothing(), _nothing()
    cuda.current_stream = lambda *_: _Stream()
    cuda.default_stream = lambda *_: _Stream()
    cuda.stream = lambda *_: nullcontext()
    cuda.device = lambda *_: nullcontext()
    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.default_generators = _Generators()
    cuda.get_rng_state = cuda.random.get_rng_state = _rng_state
    cuda.set_rng_state = cuda.random.set_rng_state = _set_rng_state
    cuda.manual_seed = _seed
    cuda._lazy_call = lambda call, **__: call()  # noqa: SLF001 - Megatron's RNG tracker imports it by this name
    cuda._lazy_init = lambda: None  # noqa: SLF001 - as above


def _here(value: Any) -> Any:
    """A device argument on this machine."""
    text = str(value) if isinstance(value, str | torch.device) else ""
    return CPU if text.split(":")[0] == "cuda" else value


class _OnCpu(TorchFunctionMode):
    """Rewrites ``device="cuda"``, ``.cuda()``, pinned memory and the type names that optimizers assert."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not given:
            return func(*args).replace("torch.", "torch.cuda.")
        if "device" in given:
            given["device"] = _here(given["device"])
        if given.get("pin_memory"):
            given["pin_memory"] = False
        return func(*(_here(each) for each in args), **given)


@contextmanager
def on_cpu() -> Iterator[None]:
    """Around every call into Megatron; transparent where there is an accelerator."""
    if torch.cuda.is_available():
        yield
        return
    with _OnCpu():
        yield
