"""Safetensors files of the service, mapped: each rank reads its part of what it needs and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from safetensors import safe_open
from torch import Tensor


class Files:
    """Tensors of some files by name; a tensor is read when it is asked for."""

    def __init__(self, paths: list[str]) -> None:
        self._open: list[Any] = [safe_open(path, framework="pt") for path in paths]
        self._at = {name: each for each in self._open for name in each.keys()}  # noqa: SIM118 - no mapping

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._at.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._at

    def get(self, name: str) -> Tensor:
        """One tensor."""
        return self._at[name].get_tensor(name)

    def under(self, prefix: str) -> Callable[[str], Tensor]:
        """``get`` for names behind a prefix."""
        return lambda name: self.get(prefix + name)
