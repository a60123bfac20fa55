"""What a step hands to the model for one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from temper.rollout.engine.torch.blocks import Row
from temper.rollout.engine.torch.pages import PageIndex


@dataclass(slots=True)
class Feed:
    """Tokens of one sequence to compute in one forward."""

    tokens: Sequence[int]
    """Ids; several in a decode row when it verifies drafts."""
    start: int
    """Position of the first; KV is there up to here, or is written by an earlier feed of the same forward."""
    rows: Sequence[Row]
    """``rows[i]`` holds positions from ``256 i`` on; full ones may be shared."""
    logits: int
    """Logits are wanted for so many of the last tokens."""
    decode: bool
    """A decode row: few tokens, attended with others; else a chunk of prefill inside one segment."""
    stretch: int = 0
    """Class of its context's length, where rotation depends on it."""
    pages: PageIndex | None = None
    """For a decode row that reads a part of its context only: what is known of its pages."""


def pool_order(feed: Feed) -> tuple[int, ...]:
    """Sorts feeds as :mod:`.attention` wants them: decode before prefill, dense before sparse, then by width and place."""
    if not feed.decode:
        return (1,)
    last = feed.rows[-1]
    return 0, feed.pages is not None, len(feed.tokens), last.size, last.start
