"""Which domain the next group comes from: a deficit rule with a proof, not dice.

After any number of draws every domain has been issued within one group of its share. The rule is Tijdeman's for the
chairman assignment problem (Discrete Mathematics 32, 1980): deviation at most 1 - 1/(2n - 2) for n >= 2 domains.
Shares are integers out of 2**40, so that the proof holds for the arithmetic too, and a resumed mixer is bit-exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from temper.runtime.errors import Rejected

WHOLE = 1 << 40  # all shares together: fine enough for a share of 1e-9, small enough to multiply cheaply


class Mixer:
    """A stream of domain names in which every prefix holds each domain's share to within one.

    Deterministic in the shares and the seed (the seed only decides ties). Not an iterator: `draw` is an event.
    """

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._weights = quantise(shares)
        self._issued = dict.fromkeys(self._weights, 0)
        self._draws = 0
        self._order = sorted(self._weights, key=lambda name: _tie(seed, name))

    @property
    def shares(self) -> dict[str, float]:
        """Normalised shares."""
        return {name: weight / WHOLE for name, weight in self._weights.items()}

    @property
    def issued(self) -> dict[str, int]:
        """Draws per domain since the shares were last set."""
        return dict(self._issued)

    def draw(self) -> str:
        """The next domain."""
        self._draws += 1
        chosen = self._order[0] if len(self._order) == 1 else self._most_urgent()
        self._issued[chosen] += 1
        return chosen

    def _most_urgent(self) -> str:
        """Among domains that may be drawn now, the one whose share forces it soonest.

        With c = 1/(2n-2) and lag = share*k - issued: eligible if lag >= c; urgency (1 - c - lag) / share. Both sides
        are multiplied by WHOLE * (2n - 2), and urgencies are compared crosswise, so nothing is rounded.
        """
        scale = 2 * len(self._order) - 2
        best, best_slack, best_weight = "", 0, 0
        for name in self._order:
            weight = self._weights[name]
            lag = scale * (weight * self._draws - self._issued[name] * WHOLE)
            slack = WHOLE * (scale - 1) - lag
            if lag >= WHOLE and (not best or slack * best_weight < best_slack * weight):
                best, best_slack, best_weight = name, slack, weight
        assert best, "lags add up to one, so the largest is at least 1/n"
        return best

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; `resume` continues exactly here."""
        return {"weights": self._weights, "issued": self._issued, "draws": self._draws}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; if it was taken under other shares, deficits restart from zero."""
        if dict(state["weights"]) == self._weights:
            self._issued = dict(state["issued"])
            self._draws = int(state["draws"])


def quantise(shares: Mapping[str, float]) -> dict[str, int]:
    """Integer weights that add up to `WHOLE`, by largest remainder; every domain gets at least one.

    Raises Rejected if there is no domain or a share is not a positive finite number.
    """
    if not shares:
        raise Rejected("a mix needs at least one domain", field="domains")
    for name, share in shares.items():
        if not 0 < share < float("inf"):
            raise Rejected(f"share of {name!r} must be a positive number, is {share}", field="domains")
    total = sum(shares.values())
    exact = {name: share / total * WHOLE for name, share in shares.items()}
    weights = {name: max(1, int(value)) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (exact[name] - int(exact[name]), name), reverse=True)
    missing = WHOLE - sum(weights.values())
    for name in by_remainder[: max(missing, 0)]:
        weights[name] += 1
    # What floats or the minimum of one leave over is a rounding error: the largest domain carries it.
    weights[max(weights, key=lambda name: weights[name])] += WHOLE - sum(weights.values())
    return weights


def _tie(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
