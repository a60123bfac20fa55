"""A domain that loses all success in training, told from its groups alone: between two evaluations a policy can be lost.

A group is *dead* when none of its samples succeeded and all of them earned the same: nothing in it pushes back. Even a good policy has dead
groups, on tasks that are too hard for it; their usual share ``f`` is an exponential mean over about 32 groups, and its upper end (two standard
errors) is what counts. A run of ``k`` dead groups has collapsed when

    k >= groups    and    k * log(1 / f) >= log(10^4)

so that a domain that stays as it is, its groups independent, starts such a run once in ten thousand groups or more rarely. The groups of the run
itself do not count for ``f``. A domain whose success never reached a fifth has nothing that it could lose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEMORY = 1 / 32
SETTLED = 16  # groups before anything is known about a domain
LEAST = 0.2  # success below it is no skill that could be lost
LIMIT = math.log(1e4)
LEAST_DEAD = 0.05  # share that is assumed at least: 0 of a few groups is not never


@dataclass(slots=True)
class Track:
    """One domain."""

    seen: int = 0
    """Groups before the current run."""
    mean: float = 0.0
    """Success of those, lately."""
    best: float = 0.0
    """The best of it."""
    dead: float = 0.0
    """Usual share of dead groups."""
    run: int = 0
    """Dead groups in a row, up to now."""
    told: bool = False
    """Whether the collapse that lasts was told."""

    def observe(self, success: float, *, flat: bool) -> None:
        """One group came back."""
        if flat and success == 0.0:
            self.run += 1
            return
        for _ in range(self.run):
            self._learn(0.0, dead=1.0)
        self._learn(success, dead=0.0)
        self.run, self.told = 0, False

    def _learn(self, success: float, *, dead: float) -> None:
        self.seen += 1
        weight = max(MEMORY, 1 / self.seen)
        self.mean += (success - self.mean) * weight
        self.dead += (dead - self.dead) * weight
        if self.seen >= SETTLED:
            self.best = max(self.best, self.mean)

    def fallen(self, groups: int) -> bool:
        """Whether it has collapsed."""
        if self.best < LEAST or self.run < groups:
            return False
        share = max(self.dead, LEAST_DEAD)
        upper = share + 2.0 * math.sqrt(share * (1.0 - share) * MEMORY / 2.0)
        return self.run * -math.log(min(upper, 1.0)) >= LIMIT

    def renew(self) -> None:
        """Training went back: what was lost may be there again."""
        self.run, self.told = 0, False


class Collapses:
    """All domains of a job."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def observe(self, domain: str, success: float, *, flat: bool) -> None:
        """A group of a domain came back; ``flat``: all its samples earned the same."""
        self._tracks.setdefault(domain, Track()).observe(success, flat=flat)

    def news(self, groups: int) -> dict[str, Track]:
        """Domains that have collapsed since this was asked last."""
        found = {name: each for name, each in self._tracks.items() if not each.told and each.fallen(groups)}
        for each in found.values():
            each.told = True
        return found

    def renew(self) -> None:
        """Training went back."""
        for each in self._tracks.values():
            each.renew()

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        return {
            name: [each.seen, each.mean, each.best, each.dead, each.run, each.told]
            for name, each in self._tracks.items()
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._tracks = {name: Track(*saved) for name, saved in state.items()}
