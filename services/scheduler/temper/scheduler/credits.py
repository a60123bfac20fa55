"""How many groups may be under way: the staleness bound, as one number.

At most (η + 1)·B groups are published and not settled, with η = `max_staleness` versions and B = `groups_per_step`.
A credit is charged when a group is published and freed when the trainer's record names it consumed or dropped, not
when its rollout ends: a finished group that waits for the trainer grows stale all the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Credits:
    """The bound of one phase. Example: `Credits(max_staleness=1, groups_per_step=8).bound == 16`."""

    max_staleness: int
    """η: versions that a sample may be behind when it is trained on; 0 is synchronous."""
    groups_per_step: int
    """B: groups that one optimizer step consumes."""

    @property
    def bound(self) -> int:
        """Most groups published and not settled."""
        return (self.max_staleness + 1) * self.groups_per_step

    def free(self, in_flight: int, steps_left: int) -> int:
        """Groups that may be published now.

        Besides the bound, no more than the steps that are left can consume, so that a phase ends without surplus;
        a group that is dropped makes room for another.
        """
        needed = steps_left * self.groups_per_step
        return max(0, min(self.bound, needed) - in_flight)
