"""Guesses of what comes next, from what a sequence or its group has already said.

Two sources, both without a model: :class:`NGrams` looks for the last few tokens earlier in the same context and copies
what followed them there; :class:`Suffixes` does so over all outputs of a group, prefers the longest match, and lets the
matches vote. :class:`Pace` decides how many tokens are worth verifying: a wrong guess costs a row of the forward, so the
length follows what was accepted. Drafts never change an output, see :mod:`.sample`; they only save steps.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Source(Protocol):
    """Where drafts come from."""

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Up to ``most`` tokens that may follow the context; empty when nothing speaks for any."""
        ...


class NGrams:
    """Copies what followed the first earlier occurrence of the last n tokens, for the largest n that has one."""

    def __init__(self, shortest: int = 2, longest: int = 3) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._first: dict[tuple[int, ...], int] = {}  # n-gram -> index behind its first occurrence
        self._seen = 0

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """See :meth:`Source.propose`; ``tokens`` must continue those of the call before."""
        for end in range(
            self._seen + 1, len(tokens)
        ):  # the last n tokens themselves are not an earlier occurrence
            for size in self._sizes:
                if size <= end:
                    self._first.setdefault(tuple(tokens[end - size : end]), end)
        self._seen = max(self._seen, len(tokens) - 1)
        for size in self._sizes:
            start = self._first.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if start is not None:
                return tuple(tokens[start : start + most])
        return ()


_ANCHOR = 2  # tokens that a match has at least
_PLACES = 8  # latest places remembered per anchor
_LONGEST_MATCH = 32  # tokens; longer matches count the same


class Suffixes:
    """Outputs of a group, found by the longest suffix they share with a context.

    Memory: one reference per learned token and at most ``_PLACES`` per distinct anchor. When ``capacity`` tokens are
    learned a new generation begins, and the one before the last is forgotten.
    """

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._young: dict[tuple[int, ...], list[tuple[Sequence[int], int]]] = {}
        self._old: dict[tuple[int, ...], list[tuple[Sequence[int], int]]] = {}
        self._size = 0

    def learn(self, tokens: Sequence[int], start: int) -> None:
        """Remember ``tokens[start:]`` by their places; ``tokens`` may grow afterwards, but not change."""
        for end in range(max(start, _ANCHOR), len(tokens)):
            places = self._young.setdefault(tuple(tokens[end - _ANCHOR : end]), [])
            if len(places) == _PLACES:
                places.pop(0)
            places.append((tokens, end))
            self._size += 1
        if self._size >= self._capacity:
            self._young, self._old, self._size = {}, self._young, 0

    def propose(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """See :meth:`Source.propose`: the likeliest next token among the longest matches, then what followed it there."""
        anchor = tuple(tokens[-_ANCHOR:])
        places = [
            place
            for place in (*self._old.get(anchor, ()), *self._young.get(anchor, ()))
            if place[0] is not tokens or place[1] < len(tokens)
        ]
        if not places or most < 1:
            return ()
        lengths = [_shared_suffix(tokens, said, end) for said, end in places]
        longest = max(lengths)
        best = [place for place, length in zip(places, lengths, strict=True) if length == longest]
        votes = Counter(said[end] for said, end in best)
        winner = max(votes, key=lambda token: votes[token])
        said, end = next(place for place in reversed(best) if place[0][place[1]] == winner)
        return _copy(said, end, most) if said is tokens else tuple(said[end : end + most])


def _copy(said: Sequence[int], start: int, most: int) -> tuple[int, ...]:
    """``most`` tokens from ``start`` on; at the end of what was said the copy itself is what was said next."""
    period = len(said) - start
    return tuple(said[start + i % period] for i in range(most))


def _shared_suffix(tokens: Sequence[int], said: Sequence[int], end: int) -> int:
    """How many tokens before ``said[end]`` equal the last ones of ``tokens``."""
    length = _ANCHOR
    most = min(len(tokens), end, _LONGEST_MATCH)
    while length < most and tokens[-length - 1] == said[end - length - 1]:
        length += 1
    return length


_LENGTHS = (1, 3, 7)  # few widths, since rows of equal width are attended in one call


@dataclass(slots=True)
class Pace:
    """How long a sequence's next draft should be: longer after one that was right to its end, shorter after another.

    After a draft of which nothing was right, as many steps as drafts in a row failed are taken without one.
    """

    length: int = 3
    """Tokens worth guessing now."""
    failures: int = 0
    """Drafts in a row of which nothing was accepted."""
    rest: int = 0
    """Steps still to take without a draft."""
    pending: tuple[int, tuple[int, ...]] | None = None
    """Context length and tokens of the draft whose fate is not known yet."""

    def observe(self, tokens: Sequence[int]) -> int:
        """Learn what became of the last draft; returns the length of the next, 0 for none."""
        if self.pending is not None:
            at, draft = self.pending
            self.pending = None
            self._judge(draft, tokens[at : at + len(draft)])
        if self.rest:
            self.rest -= 1
            return 0
        return self.length

    def _judge(self, draft: tuple[int, ...], came: Sequence[int]) -> None:
        right = 0
        while right < len(came) and came[right] == draft[right]:
            right += 1
        if right == len(draft):
            self.length = next((length for length in _LENGTHS if length > self.length), _LENGTHS[-1])
        else:
            self.length = max(length for length in _LENGTHS if length <= right + 1)
        self.failures = 0 if right else min(self.failures + 1, 16)
        self.rest = self.failures


@dataclass(slots=True)
class _Writer:
    """A sequence that is being drafted for."""

    pace: Pace
    source: Source
    learned: int = 0


@dataclass(slots=True)
class Drafts:
    """Drafts for all sequences of an engine: :class:`NGrams` each for itself, or :class:`Suffixes` shared by a group."""

    kind: str
    """``ngram`` or ``suffix``."""
    tables: int = 256
    """Suffix tables kept; the group that was silent for longest is forgotten."""
    _writers: dict[str, _Writer] = field(default_factory=dict)
    _groups: OrderedDict[str, Suffixes] = field(default_factory=OrderedDict)

    def propose(self, request_id: str, group: str, tokens: Sequence[int], room: int) -> tuple[int, ...]:
        """Draft for one running request, at most ``room`` tokens. ``tokens`` is its live context, only ever appended to."""
        writer = self._writers.get(request_id)
        if writer is None:
            writer = self._writers[request_id] = self._open(request_id, group)
        if isinstance(writer.source, Suffixes):
            writer.source.learn(tokens, writer.learned)
            writer.learned = len(tokens)
        length = min(room, writer.pace.observe(tokens))
        draft = writer.source.propose(tokens, length) if length > 0 else ()
        if draft:
            writer.pace.pending = (len(tokens), draft)
        return draft

    def close(self, request_id: str) -> None:
        """Forget a request that has finished; what its group learned from it stays. Unknown ids are ignored."""
        self._writers.pop(request_id, None)

    def _open(self, request_id: str, group: str) -> _Writer:
        pace = Pace()
        if self.kind == "ngram":
            return _Writer(pace, NGrams())
        key = group or request_id
        table = self._groups.pop(key, None) or Suffixes()
        self._groups[key] = table
        while len(self._groups) > self.tables:
            self._groups.popitem(last=False)
        return _Writer(pace, table)
