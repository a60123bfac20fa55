"""Snapshots of one session by the step of its trajectory. Pure: it decides which to go back to and which to drop."""

from dataclasses import dataclass
from typing import Final

from temper.runtime.errors import Exhausted, Rejected

MOST: Final = 256
"""Snapshots of one session."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A snapshot and when it was taken. Example: `Moment(3, "snap-7", 4)`."""

    step: int
    """Step of the trajectory after which it was taken."""
    snapshot: str
    """The backend's id of it."""
    commands: int
    """Commands that the session had begun by then."""


class Timeline:
    """Moments in the order of their steps; of each step the last one."""

    def __init__(self) -> None:
        self._moments: dict[str, Moment] = {}

    def __len__(self) -> int:
        return len(self._moments)

    def check_room(self) -> None:
        """Raises Exhausted when no further snapshot may be taken."""
        if len(self._moments) >= MOST:
            raise Exhausted(f"a session keeps {MOST} snapshots", hint="roll back, or end the session")

    def add(self, moment: Moment) -> list[str]:
        """Remember it; returns snapshots to drop: an earlier one of the same step."""
        gone = [each.snapshot for each in self._moments.values() if each.step == moment.step]
        for snapshot in gone:
            del self._moments[snapshot]
        self._moments[moment.snapshot] = moment
        return gone

    def find(self, snapshot: str) -> Moment:
        """By the snapshot's id. Raises Rejected for one of another session, or dropped."""
        if snapshot not in self._moments:
            kept = f"it has {', '.join(self._moments) or 'none'}; of one step the last is kept"
            raise Rejected(f"this session has no snapshot {snapshot!r}", field="snapshot_id", hint=kept)
        return self._moments[snapshot]

    def at(self, step: int) -> Moment:
        """The last moment at or before a step. Raises Rejected if there is none."""
        earlier = [each for each in self._moments.values() if each.step <= step]
        if not earlier:
            raise Rejected(
                f"no snapshot at or before step {step}", field="step", hint="take one before the first step"
            )
        return max(earlier, key=lambda each: each.step)

    def forget_after(self, step: int) -> list[str]:
        """Drop moments of later steps, which will be played anew; returns their snapshots."""
        gone = [each.snapshot for each in self._moments.values() if each.step > step]
        for snapshot in gone:
            del self._moments[snapshot]
        return gone

    def clear(self) -> list[str]:
        """Drop all; returns their snapshots."""
        gone = list(self._moments)
        self._moments.clear()
        return gone
