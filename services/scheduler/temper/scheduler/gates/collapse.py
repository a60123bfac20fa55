"""A domain that loses all success in training, told from its groups alone: between two evaluations a policy can be lost.

Success of a domain is the share of solved samples per group. Two things make a collapse:

    flat     its last `groups` groups had no success and no difference in reward: nothing there pushes back
    fallen   a cumulative sum test (Page, Biometrika 41 (1954) 100) of "still at its best" against "half of it" has crossed `log(10^4)`:
             the mean time to a false alarm is at least 10^4 groups (Lorden, Ann. Math. Stat. 42 (1971) 1897)

A group counts as one observation however many samples it has: samples of one task are not independent. The best is that of an
exponential mean over about 16 groups, once 16 are in it. A domain that never reached a fifth cannot collapse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEMORY = 1 / 16
SETTLED = 16  # groups before a mean counts as a best
LEAST = 0.2  # a best below it is no skill that could be lost
LIMIT = math.log(1e4)
_EDGE = 0.02  # rates are kept this far from 0 and 1, so that one group is never proof


@dataclass(slots=True)
class Track:
    """One domain."""

    seen: int = 0
    """Groups."""
    mean: float = 0.0
    """Recent success."""
    best: float = 0.0
    """The best of it."""
    evidence: float = 0.0
    """Of the cumulative sum."""
    flat: int = 0
    """Groups in a row without any success or difference."""
    told: bool = False
    """Whether the collapse that lasts was told."""

    def observe(self, success: float, *, flat: bool) -> None:
        """One group came back."""
        if self.best >= LEAST:
            rate = min(max(self.best, _EDGE), 1 - _EDGE)
            won, lost = math.log(0.5), math.log((1 - rate / 2) / (1 - rate))
            self.evidence = max(0.0, self.evidence + success * won + (1 - success) * lost)
        self.flat = self.flat + 1 if flat and success == 0.0 else 0
        self.told = self.told and self.flat > 0
        self.seen += 1
        self.mean += (success - self.mean) * max(MEMORY, 1 / self.seen)
        if self.seen >= SETTLED:
            self.best = max(self.best, self.mean)

    def fallen(self, groups: int) -> bool:
        """Whether it has collapsed."""
        return self.flat >= groups and self.evidence >= LIMIT

    def renew(self) -> None:
        """Training went back: what was lost may be there again."""
        self.evidence, self.flat, self.told = 0.0, 0, False


class Collapses:
    """All domains of a job."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def observe(self, domain: str, success: float, *, flat: bool) -> None:
        """A group of a domain came back."""
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
            name: [each.seen, each.mean, each.best, each.evidence, each.flat, each.told]
            for name, each in self._tracks.items()
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._tracks = {name: Track(*saved) for name, saved in state.items()}
