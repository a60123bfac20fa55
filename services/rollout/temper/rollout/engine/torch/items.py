"""Which rows of the pool a decode step attends, laid into as few calls as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.rollout.engine.torch.feed import Feed
from temper.rollout.engine.torch.merge import as_bias
from temper.rollout.engine.torch.sizes import SEGMENT

_GAP = (
    3  # rows that are attended for nothing rather than split a call; a call costs as much as a few short rows
)
_NOBODY = -1  # feed of such a row

Item = tuple[int, int, int, int]
"""One row as one feed sees it: class, first slot, feed, position of its first token."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What query tokens see."""

    at: Sequence[int]
    """Per feed, the position of its first query token."""
    width: int
    """Query tokens of each feed."""
    window: int = 0
    """How far back they see; 0 is all."""
    sink: int = 0
    """First positions that are seen beyond the window."""

    def whole(self, item: Item) -> bool:
        """Whether all query tokens see all of a row."""
        size, _, feed, base = item
        at, end = self.at[feed], base + size
        return end <= at + 1 and (
            not self.window or base > at + self.width - 1 - self.window or end <= self.sink
        )


@dataclass(slots=True)
class Call:
    """One attention call on a view."""

    start: int
    """First slot."""
    rows: int
    """Rows of the view."""
    size: int
    """Their class: stride and keys."""
    index: Tensor | slice
    """Feeds whose queries attend, one per row, or all of a shared row's."""
    owner: list[int]
    """Feeds of the results, in their order."""
    bias: Tensor | None = None
    """``[rows, 1, 1 or fold, size]``; None: all is seen."""
    unseen: Tensor | None = None
    """Bool ``[rows, 1, fold]``: queries that see nothing of a row; None: there are none."""
    kept: Tensor | None = None
    """Rows whose results count; None: all."""
    shared: int = 0
    """Feeds that attend every row together (cascade); 0: one feed per row."""
    views: Sequence[tuple[Tensor, Tensor]] = ()
    """Keys and values of each layer, once asked for."""


def items_of(feeds: Sequence[Feed], sight: Sight) -> list[Item]:
    """Rows that the feeds see something of."""
    items: list[Item] = []
    for number, feed in enumerate(feeds):
        if len(feed.rows) == 1:
            row = feed.rows[0]
            items.append((row.size, row.start, number, 0))
            continue
        behind = feed.start - sight.window + 1 if sight.window else 0
        for segment, row in enumerate(feed.rows):
            base = segment * SEGMENT
            if base >= feed.start + sight.width:
                break
            if base + row.size > behind or base < sight.sink:
                items.append((row.size, row.start, number, base))
    return items


def lines_of(feeds: Sequence[Feed], planes: int) -> Tensor:
    """Where the keys and values of all tokens go, as lines of ``head_dim`` numbers: ``[tokens * planes]``."""
    firsts: list[int] = []
    sizes: list[int] = []
    for feed in feeds:
        at = feed.start
        if len(feed.tokens) == 1:
            row = feed.rows[at // SEGMENT]
            firsts.append(row.start * planes + at % SEGMENT)
            sizes.append(row.size)
            continue
        stop = at + len(feed.tokens)
        while at < stop:
            row, offset = feed.rows[at // SEGMENT], at % SEGMENT
            count = min(stop - at, SEGMENT - offset)
            first = row.start * planes + offset
            firsts += range(first, first + count)
            sizes += [row.size] * count
            at += count
    return (torch.tensor(firsts)[:, None] + torch.tensor(sizes)[:, None] * torch.arange(planes)).flatten()


def calls_of(
    items: list[Item], sight: Sight, groups: int, *, cascade: bool
) -> tuple[list[Call], Tensor | None]:
    """Lay items into calls: shared rows by their sharers if ``cascade``, all others by neighbourhood.

    Also the feed of each result; None if the results are those of all feeds, in order.
    """
    items.sort()
    calls: list[Call] = []
    rounds = [items]
    if len({item[1] for item in items}) < len(items):
        calls, rounds = _split_shared(items, sight, cascade=cascade)
    runs = [run for each in rounds for run in _runs(each)]
    alone = [_call(run) for run in runs]
    _mask(alone, runs, sight, groups)
    calls += alone
    owner = [feed for call in calls for feed in call.owner]
    return calls, None if owner == list(range(len(owner))) else torch.tensor(owner)


def _split_shared(items: list[Item], sight: Sight, *, cascade: bool) -> tuple[list[Call], list[list[Item]]]:
    """Cascade calls, and rounds in which every row occurs once."""
    places: dict[int, list[Item]] = defaultdict(list)
    for item in items:
        places[item[1]].append(item)
    shared = [here for here in places.values() if cascade and len(here) > 1 and all(map(sight.whole, here))]
    for here in shared:
        del places[here[0][1]]
    rounds: list[list[Item]] = []
    while alone := [here[len(rounds)] for here in places.values() if len(here) > len(rounds)]:
        rounds.append(alone)
    return [_cascade(run) for run in _shared_runs(shared)], rounds


def _runs(items: list[Item]) -> Iterator[list[Item]]:
    """Neighbours in the pool; small gaps are filled."""
    run: list[Item] = []
    size, start = 0, 0
    for item in items:
        distance = item[1] - start
        if run and (item[0] != size or distance % size or distance > (1 + _GAP) * size):
            yield run
            run = []
        if run and distance != size:
            run += [(size, slot, _NOBODY, 0) for slot in range(start + size, item[1], size)]
        run.append(item)
        size, start = item[0], item[1]
    if run:
        yield run


def _shared_runs(shared: list[list[Item]]) -> Iterator[list[list[Item]]]:
    """Neighbouring rows with the same sharers."""
    run: list[list[Item]] = []
    for here in shared:
        if run:
            size, start, _, _ = run[-1][0]
            near = here[0][0] == size and here[0][1] == start + size
            if not near or [item[2] for item in here] != [item[2] for item in run[-1]]:
                yield run
                run = []
        run.append(here)
    if run:
        yield run


def _cascade(run: list[list[Item]]) -> Call:
    size, start, _, _ = run[0][0]
    feeds = [item[2] for item in run[0]]
    return Call(start, len(run), size, torch.tensor(feeds), feeds * len(run), shared=len(feeds))


def _call(run: list[Item]) -> Call:
    size, start, first, _ = run[0]
    order = [item[2] for item in run]
    call = Call(start, len(run), size, slice(first, first + len(run)), order)
    if order != list(range(first, first + len(run))):
        call.index = torch.tensor([max(0, feed) for feed in order])
    if _NOBODY in order:
        call.kept = torch.tensor([i for i, feed in enumerate(order) if feed != _NOBODY])
        call.owner = [feed for feed in order if feed != _NOBODY]
    return call


def _mask(calls: list[Call], runs: list[list[Item]], sight: Sight, groups: int) -> None:
    """Additive masks of calls, and the queries that see nothing: they are made to see one key, and lose their weight."""
    items = [item for run in runs for item in run]
    at = [sight.at[feed] - base if feed != _NOBODY else 0 for _, _, feed, base in items]
    if not items or (min(at) >= SEGMENT - 1 and not sight.window):
        return
    keys = torch.arange(max(call.size for call in calls))
    queries = torch.tensor(at)[:, None] + torch.arange(sight.width)
    reach = queries[:, :, None] - keys  # how far a key lies behind a query
    seen = reach >= 0
    blind = None
    if sight.window:
        sink = torch.tensor([sight.sink - base for _, _, _, base in items])[:, None, None]
        seen &= (reach < sight.window) | (keys < sink)
    if sight.window or min(at) < 0:
        sizes = torch.tensor([item[0] for item in items])[:, None, None]
        blind = ~(seen & (keys < sizes)).any(dim=2)
        seen[..., 0] |= blind
        blind = blind.repeat_interleave(groups, dim=1)[:, None]
    bias = as_bias(seen)
    bias = (bias if sight.width == 1 else bias.repeat_interleave(groups, dim=1))[:, None]
    row = 0
    for call in calls:
        rows = slice(row, row + call.rows)
        call.bias, call.unseen = bias[rows, ..., : call.size], None if blind is None else blind[rows]
        row = rows.stop
