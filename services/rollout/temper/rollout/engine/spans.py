"""Run-length version spans: contiguous from 0, neighbours differ, the last end is the length."""

from __future__ import annotations

from temper.rollout.engine.base import Span


class Spans:
    """Grows by appending; re-announcing a version extends the open span."""

    __slots__ = ("_ends", "_versions")

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._versions: list[int] = []

    def extend(self, count: int, version: int) -> None:
        """Say that the next ``count`` tokens were computed under ``version``."""
        if count <= 0:
            return
        if self._versions and self._versions[-1] == version:
            self._ends[-1] += count
            return
        self._ends.append((self._ends[-1] if self._ends else 0) + count)
        self._versions.append(version)

    def frozen(self) -> tuple[Span, ...]:
        """The spans so far."""
        starts = [0, *self._ends[:-1]]
        return tuple(Span(*span) for span in zip(starts, self._ends, self._versions, strict=False))
