"""What a merging method knows about the domains of one update, and what is reported whichever method is on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from temper.trainer.advantage import Floats

TINY = 1e-12
"""A gradient shorter than this has no direction."""
SHOWN = 12
"""Pairs whose cosine is reported: all of them up to five domains, the most opposed ones of more."""


@dataclass(frozen=True, slots=True)
class Domains:
    """Mean gradients ``g_d`` of one update, by their inner products.

    Example: two domains that pull apart::

        Domains(("a", "b"), gram=[[1, -1], [-1, 2]], share=[.5, .5], weight=[1, 1], seed=7)
    """

    names: Sequence[str]
    """[domain]."""
    gram: Floats
    """[domain, domain] ``g_i · g_j``."""
    share: Floats
    """[domain] lambda, summing to 1."""
    weight: Floats
    """[domain] GradNorm's weights, summing to the number of domains."""
    seed: int
    """Seed of random orders: the same step of the same job draws the same."""

    @property
    def norms(self) -> Floats:
        """[domain] lengths."""
        return np.sqrt(np.maximum(np.diag(self.gram), 0.0))

    def cosines(self) -> Floats:
        """[domain, domain]; 0 where a gradient has no direction."""
        norms = self.norms
        sized = norms > TINY
        scale = np.where(sized, norms, 1.0)
        return np.where(np.outer(sized, sized), self.gram / np.outer(scale, scale), 0.0)

    def report(self) -> dict[str, float]:
        """Norm per domain, share of pairs in conflict, and the cosines of the most opposed pairs."""
        cosines = self.cosines()
        first, second = np.triu_indices(len(self.names), k=1)
        found = cosines[first, second]
        out = {f"domain_grad_norm/{n}": float(v) for n, v in zip(self.names, self.norms, strict=True)}
        if not found.size:
            return out
        out |= {"conflict_share": float((found < 0).mean()), "conflict_cosine_min": float(found.min())}
        for at in np.argsort(found, kind="stable")[:SHOWN].tolist():
            pair = f"{self.names[int(first[at])]}|{self.names[int(second[at])]}"
            out[f"conflict_cosine/{pair}"] = float(found[at])
        return out
