"""Shares of domains that follow what there is to learn, and a watch on domains that rise at another's expense. Pure.

After each evaluation on the way, per domain: held-out success ``q`` (a moving average), the best so far ``q*``, and learnability ``l``, the
mean of ``4p(1-p)`` over the tasks trained on since the last one. Its score is

    base · (0.1 + l) · (1 + kappa · max(0, q* - q) / max(q*, 0.05))

Scores become shares by water-filling: they sum to one, each stays within `floor` and `ceiling` times its base (never under a tenth of an
equal share), and none moves by more than `max_change` of itself at once. Domains that have nothing left to teach shrink; one that is being
forgotten grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from temper.api.job.v1.job_pb2 import EvalResult
from temper.api.job.v1.spec_pb2 import JobSpec, MixSpec

MEMORY = 0.5  # weight of the newest evaluation in q
MOST_PAIRS = 8  # seesaws told at one evaluation
ROUNDS = 100  # halvings of the water level: past the precision of floats


@dataclass(slots=True)
class Standing:
    """What is known about one domain."""

    q: float | None = None
    """Held-out success."""
    best: float = 0.0
    """The best q so far."""
    learnable: float = 0.0
    """Sum of 4p(1-p) since the last evaluation."""
    seen: int = 0
    """Tasks in that sum."""


class ShareController:
    """Shares for a job's mixer. `fixed` controllers never move them."""

    def __init__(self, spec: JobSpec) -> None:
        self._standing: dict[str, Standing] = {}
        self._taken: list[str] = []
        self.configure(spec)

    def configure(self, spec: JobSpec) -> None:
        """Take over base shares and settings; what is known about domains that stay is kept."""
        self._mix = spec.mix
        whole = sum(domain.share for domain in spec.domains)
        self._base = {domain.name: domain.share / whole for domain in spec.domains}
        self._shares = dict(self._base)
        self._standing = {name: self._standing.get(name, Standing()) for name in self._base}

    @property
    def moves(self) -> bool:
        """Whether shares follow what is learned."""
        return self._mix.controller == "learnability"

    @property
    def shares(self) -> dict[str, float]:
        """As they are now; they sum to one."""
        return dict(self._shares)

    def observe(self, domain: str, solved: int, valid: int) -> None:
        """A task of a domain came back from training."""
        if domain in self._standing and valid:
            rate = solved / valid
            self._standing[domain].learnable += 4.0 * rate * (1.0 - rate)
            self._standing[domain].seen += 1

    def take(self, point: str, results: Iterable[EvalResult]) -> bool:
        """Move the shares after an evaluation on the way; False if it was taken before or says nothing."""
        found = {each.domain: each for each in results if each.n and each.domain in self._standing}
        if not self.moves or point in self._taken or not found:
            return False
        self._taken.append(point)
        for name, result in found.items():
            known = self._standing[name]
            fresh = result.pass_at_1
            known.q = fresh if known.q is None else (1.0 - MEMORY) * known.q + MEMORY * fresh
            known.best = max(known.best, known.q)
        scores = {name: self._score(name) for name in self._base}
        self._shares = water_filled(scores, {name: self._bounds(name) for name in self._base})
        for known in self._standing.values():
            known.learnable, known.seen = 0.0, 0
        return True

    def _score(self, name: str) -> float:
        known = self._standing[name]
        learnable = known.learnable / known.seen if known.seen else 1.0  # nothing seen is no reason to shrink
        lost = 0.0 if known.q is None else max(0.0, known.best - known.q) / max(known.best, 0.05)
        return self._base[name] * (0.1 + learnable) * (1.0 + self._mix.kappa * lost)

    def _bounds(self, name: str) -> tuple[float, float]:
        """Least and most that the share may be next."""
        base, now = self._base[name], self._shares[name]
        least = max(self._mix.floor * base, 0.1 / len(self._base), now * (1.0 - self._mix.max_change))
        most = min(max(self._mix.ceiling * base, 0.1 / len(self._base)), now * (1.0 + self._mix.max_change))
        return min(least, most), most

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        standing = {name: [s.q, s.best, s.learnable, s.seen] for name, s in self._standing.items()}
        return {"shares": self._shares, "standing": standing, "taken": self._taken}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; domains that came since keep their base."""
        self._taken = list(state["taken"])
        for name, (q, best, learnable, seen) in state["standing"].items():
            if name in self._standing:
                self._standing[name] = Standing(q, best, learnable, seen)
        if state["shares"].keys() == self._base.keys():
            self._shares = dict(state["shares"])


def water_filled(scores: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Shares in proportion to scores, each within its bounds, that sum to one (or come as near as bounds allow)."""

    def filled(level: float) -> dict[str, float]:
        return {name: min(max(level * scores[name], bounds[name][0]), bounds[name][1]) for name in scores}

    low, high = 0.0, max(bounds[name][1] / scores[name] for name in scores)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if sum(filled(middle).values()) < 1.0:
            low = middle
        else:
            high = middle
    found = filled(high)
    whole = sum(found.values())
    return {name: share / whole for name, share in found.items()}


@dataclass(frozen=True, slots=True)
class Seesaw:
    """One domain rose while another fell, both beyond chance. Example: `Seesaw("calc", "sums", .12, -.08)`."""

    up: str
    down: str
    gained: float
    """Change of pass@1 of the one that rose."""
    lost: float
    """Change of pass@1 of the one that fell; negative."""


def seesaws(before: Sequence[EvalResult], after: Sequence[EvalResult], *, margin: float) -> list[Seesaw]:
    """Pairs between two evaluations: the interval of one change lies above 0, that of the other below -margin.

    The intervals hold together at 95 % (Bonferroni), so that many domains are no reason to see pairs. Worst first, at most `MOST_PAIRS`.
    """
    both = [(name, old, new) for name, old, new in _both(before, after) if old.n and new.n]
    z = NormalDist().inv_cdf(1.0 - 0.025 / max(1, len(both)))
    changes = {name: _change(old, new, z) for name, old, new in both}
    up = [(name, middle) for name, (low, middle, _) in changes.items() if low > 0]
    down = [(name, middle) for name, (_, middle, high) in changes.items() if high < -margin]
    pairs = [Seesaw(a, b, gained, lost) for a, gained in up for b, lost in down]
    return sorted(pairs, key=lambda pair: (pair.lost - pair.gained, pair.up, pair.down))[:MOST_PAIRS]


def _both(
    before: Sequence[EvalResult], after: Sequence[EvalResult]
) -> list[tuple[str, EvalResult, EvalResult]]:
    old = {each.domain: each for each in before}
    return [(each.domain, old[each.domain], each) for each in after if each.domain in old]


def _change(old: EvalResult, new: EvalResult, z: float) -> tuple[float, float, float]:
    """(low, middle, high) of the change of a proportion, `z` standard errors to each side."""
    variance = sum(each.pass_at_1 * (1.0 - each.pass_at_1) / each.n for each in (old, new))
    middle, half = new.pass_at_1 - old.pass_at_1, z * math.sqrt(variance)
    return middle - half, middle, middle + half


def filled_in(mix: MixSpec) -> MixSpec:
    """With every default."""
    return MixSpec(
        controller=mix.controller or "fixed",
        kappa=mix.kappa if mix.HasField("kappa") else 2.0,
        max_change=mix.max_change or 0.25,
        floor=mix.floor or 0.25,
        ceiling=mix.ceiling or 4.0,
        seesaw_margin=mix.seesaw_margin if mix.HasField("seesaw_margin") else 0.02,
    )
