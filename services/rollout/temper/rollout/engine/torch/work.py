"""What a step computes for one of its sequences."""

from __future__ import annotations

from dataclasses import dataclass

from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Work(Feed):
    """What one sequence computes in a step."""

    sequence: Sequence
    """Whose."""
    drafts: int = 0
    """How many of the tokens are guesses; they come last."""
    last: bool
    """Whether all that is known is computed then, so that a token is drawn."""

    @property
    def stop(self) -> int:
        """One past the last position that holds a known token."""
        return self.start + len(self.tokens) - self.drafts
