"""What a step hands to the model for one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.pages import PageIndex
from temper.rollout.engine.torch.sizes import SEGMENT


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


def kind_of(feed: Feed) -> int:
    """How it is attended: 0 with others like it in :mod:`.lone`, 1 another decode row, 2 in :mod:`.tiles`, 3 a later chunk."""
    if not feed.decode:
        return 2 if feed.start < SEGMENT else 3
    return 0 if len(feed.rows) == 1 == len(feed.tokens) and feed.pages is None else 1


def pool_order(feed: Feed) -> tuple[int, ...]:
    """Sorts feeds as :mod:`.attention` wants them: by kind, then decode rows dense before sparse, by width and by place."""
    kind = kind_of(feed)
    if kind > 1:
        return (kind,)
    last = feed.rows[-1]
    if kind == 0:
        return 0, last.size, last.start
    return 1, feed.pages is not None, len(feed.tokens), last.size, last.start
