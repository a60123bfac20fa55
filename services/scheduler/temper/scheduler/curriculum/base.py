"""What a curriculum is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Curriculum(Protocol):
    """A stateful stream of task indices of one domain."""

    def draw(self) -> int:
        """The next task index, in [0, tasks)."""
        ...

    def observe(self, task: int, solved: int, valid: int) -> None:
        """`solved` of `valid` samples of `task` reached the environment's maximum."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        ...

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave."""
        ...
