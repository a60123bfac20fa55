"""Who runs, who waits, and what each computes in the next step.

One token budget per step: decode rows first, then prefill chunks with fixed edges. Requests are admitted by priority, which
grows with waiting, then by arrival; a group's members of equal prompt are admitted together and its prompt is computed once.
Admission asks for the memory of the request and of what every running sequence needs next. When memory runs out, cached
blocks go first, then kept sequences, then the newest sequence of the lowest priority goes back to the queue; its blocks stay
findable, so that coming back is mostly a hit.

Knows no tensor: :mod:`.blocks` keeps the book, whoever moves the numbers is handed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.context import Context
from temper.rollout.engine.torch.pages import PageIndex, Sparse
from temper.rollout.engine.torch.roster import Limits, Roster
from temper.rollout.engine.torch.sequence import Sequence
from temper.rollout.engine.torch.sizes import layout
from temper.rollout.engine.torch.work import Work

AGE_STEPS = 256  # waiting so many steps counts as much as one step of priority

Proposer = Callable[[Sequence, int], tuple[int, ...]]
"""Drafts for a running sequence, at most so many."""


class Schedule(Roster):
    """What all sequences of one model compute, step by step. Not thread-safe."""

    def __init__(self, pool: Pool, limits: Limits, salt: Callable[[Sequence, int], bytes]) -> None:
        super().__init__(pool, limits, salt)
        self.proposer: Proposer | None = None
        self.sparse: Sparse | None = None
        """When decode rows read a part of their context only."""
        self.kv_heads = 0
        """Key heads of the model, which sparse decode asks for."""
        self._needed: list[int] = []

    def lay(self) -> list[Work]:
        """Admit, make room, and say what the next step computes."""
        self.steps += 1
        if self.waiting and len(self.admitted) < self.limits.slots:
            self._admit()
        decodes, prefills = self._reserve()
        if not prefills:
            return decodes
        left = self.limits.prefill_tokens - sum(len(work.tokens) for work in decodes)
        laid: list[Work] = []
        for sequence in prefills:
            for work in self._chunks(sequence):
                if left <= 0 and laid:
                    return decodes + laid
                laid.append(work)
                left -= len(work.tokens)
        return decodes + laid

    def _chunks(self, sequence: Sequence) -> Iterator[Work]:
        """Chunks of prefill; a later one may follow an earlier one in the same step."""
        context, known = sequence.context, len(sequence.tokens)
        assert context is not None
        scored = any(member.wants_scores for member in (sequence, *sequence.followers))
        start = context.done
        while start < known:
            chunk = context.course.chunk(start, known)
            if chunk.decode or chunk.stop > context.capacity:  # the next step takes the rows for it
                return
            last = chunk.stop == known
            fed = sequence.tokens[start : chunk.stop]
            yield Work(
                fed,
                start,
                context.rows,
                len(fed) if scored else int(last),
                False,
                context.stretch,
                sequence=sequence,
                last=last,
            )
            start = chunk.stop

    def _admit(self) -> None:
        """Those who were admitted before go on even while nobody else is admitted."""
        self._needed = self._next_needs()
        if not self.held_back:
            for leader in filter(_computes_fresh_prompt, list(self.admitted)):
                self._gather_group(leader)  # who came while the prompt was already being computed
        while len(self.admitted) < self.limits.slots:
            ready = [s for s in self.waiting if s.admission or not self.held_back]
            if not ready or not self._start(sequence := min(ready, key=self._rank)):
                return
            if sequence.own_start == 0 and not sequence.raw:
                self._gather_group(sequence)

    def _rank(self, sequence: Sequence) -> tuple[int, bool, int]:
        """Small goes first; among equals who goes on or continues, for others wait for its end."""
        aged = sequence.request.priority + (self.steps - sequence.arrived) // AGE_STEPS
        return -aged, sequence.admission == 0 and sequence.resumes is None, sequence.arrival

    def _start(self, sequence: Sequence) -> bool:
        """Admit a sequence if its memory is there."""
        known = len(sequence.tokens)
        context, resumes = self._context(sequence), sequence.resumes
        sequence.resumes = None  # its own KV must not make room for it
        if not self._hold(sequence, context, known):
            sequence.resumes = resumes
            return False
        sequence.context = context
        self._enter(sequence, context.done, context.done)
        return True

    def _hold(self, sequence: Sequence, context: Context, known: int) -> bool:
        """Take rows for a sequence to admit, or nothing."""
        found = [] if context.rows or sequence.wants_scores else context.match(self.pool, sequence.tokens)

        length = self._first_length(context, known)

        def fits(shared: int) -> bool:
            # What is known must fit as a whole, or admitting it would only start a quarrel.
            return all(
                self.make_room([*context.needs(positions)[shared:], *self._needed])
                for positions in (known + 1, length)
            )

        if context.rows:
            if fits(0):
                context.widen(self.pool, length)
                return True
            return False
        if context.adopt(self.pool, found, length, fits):
            return True
        # Without the hits nothing is held that would have to stay: a last resort when memory is short.
        context.done, context.keys = 0, []
        length = self._first_length(context, known)
        return bool(found) and context.adopt(self.pool, [], length, fits)

    def _first_length(self, context: Context, known: int) -> int:
        """Positions to take rows for: all that is known, or, where bits count, no more than at first."""
        if not context.course.exact:
            return known + 1
        chunk = context.course.chunk(context.done, known)
        if chunk.decode:
            return chunk.stop
        return 1 + next(stop for start, stop in context.course.prompts if start < chunk.stop <= stop)

    def _context(self, sequence: Sequence) -> Context:
        resumes = sequence.resumes
        if resumes is not None and resumes.context is not None:
            resumes.context.course = sequence.course
            return resumes.context
        stretch = self.stretch(len(sequence.tokens)) if self.stretch is not None else 0
        return Context(self.salt(sequence, stretch), sequence.course, stretch=stretch)

    def _enter(self, sequence: Sequence, there: int, cached: int) -> None:
        self.waiting.remove(sequence)
        self.admitted.append(sequence)
        self._admissions += 1
        sequence.admission = self._admissions
        if there:
            sequence.computed(0, there, self.version)
        if sequence.cached < 0:
            sequence.cached = cached
            self.hits += cached

    def _gather_group(self, leader: Sequence) -> None:
        """Admit those with the same fresh prompt: it is computed once."""
        context = leader.context
        assert context is not None
        known = len(leader.tokens)
        tail = layout(known + 1)[-1]
        for other in sorted(filter(lambda other: _alike(leader, other), self.waiting), key=self._rank):
            if len(self.admitted) >= self.limits.slots or not self.make_room([tail, *self._needed]):
                return
            if other.wants_scores and context.done:
                continue
            other.context = Context(context.salt, other.course, [self.pool.take(tail)])
            other.leader = leader
            leader.followers.append(other)
            self._enter(other, context.done, known)

    def _next_needs(self) -> list[int]:
        """Rows that running sequences need in the next step."""
        return [
            size
            for sequence in self.admitted
            if sequence.context is not None and sequence.leader is None
            for size in sequence.context.needs(len(sequence.tokens) + 1)
        ]

    def _reserve(self) -> tuple[list[Work], list[Sequence]]:
        """Rows for what the step computes, oldest sequences first; who finds no room goes back to the queue."""
        decodes: list[Work] = []
        prefills: list[Sequence] = []
        preemptions = self.preemptions
        plain = self.stretch is None and self.proposer is None and self.sparse is None
        for sequence in list(self.admitted):
            context, known = sequence.context, len(sequence.tokens)
            if context is None or sequence.leader is not None:
                continue
            start = context.done
            if plain and sequence.output_start <= start == known - 1 and known <= context.capacity:
                # What nearly every row is, in the fewest words.
                fed = [sequence.tokens[start]]
                decodes.append(Work(fed, start, context.rows, 1, True, sequence=sequence, last=True))
                continue
            if self.stretch is not None:
                self._restretch(sequence, context, self.stretch)
            if context.done == known - 1 and context.done >= sequence.output_start:
                work = self._decode(sequence, context, known)
            elif (chunk := context.course.chunk(context.done, known)).decode:
                work = self._decode(sequence, context, chunk.stop)
            elif self._room(sequence, context, self._first_length(context, known)):
                prefills.append(sequence)
                continue
            else:
                continue
            end = work.start + len(work.tokens)
            if end <= context.capacity or self._room(sequence, context, end):
                decodes.append(work)
        if self.preemptions != preemptions:
            running = set(self.admitted)
            decodes = [work for work in decodes if work.sequence in running]
            prefills = [sequence for sequence in prefills if sequence in running]
        return decodes, prefills

    def _decode(self, sequence: Sequence, context: Context, stop: int) -> Work:
        work = self._decode_row(sequence, context, stop)
        if self.sparse is not None and self.sparse.pays(work.start):
            sequence.pages = work.pages = sequence.pages or PageIndex(self.sparse, self.kv_heads)
        return work

    def _decode_row(self, sequence: Sequence, context: Context, stop: int) -> Work:
        known, start = len(sequence.tokens), context.done
        if self.proposer is not None and stop == known and sequence.request.speculate:
            # The bonus token counts too: drafts plus one must stay inside the limit.
            most = sequence.limit - len(sequence.raw) - 1
            drafts = self.proposer(sequence, most) if most > 0 else ()
            fed = [*sequence.tokens[start:], *drafts]
            count = len(drafts)
            return Work(
                fed,
                start,
                context.rows,
                1 + count,
                True,
                context.stretch,
                sequence=sequence,
                drafts=count,
                last=True,
            )
        last = stop == known
        fed = sequence.tokens[start:stop]
        return Work(fed, start, context.rows, int(last), True, context.stretch, sequence=sequence, last=last)

    def _room(self, sequence: Sequence, context: Context, length: int) -> bool:
        """Make room for a context of ``length`` positions; False if it was its own turn to leave."""
        while needs := context.needs(length):
            if self.make_room(needs):
                context.widen(self.pool, length)
                break
            victim = min(self.admitted, key=lambda s: (s.request.priority, -s.admission))
            self.put_back(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return sequence.context is context

    def _restretch(self, sequence: Sequence, context: Context, classify: Callable[[int], int]) -> None:
        """Keys turned for another length are of no use: compute all again."""
        stretch = classify(len(sequence.tokens))
        if stretch != context.stretch:
            context.free(self.pool)
            context.stretch, context.salt = stretch, self.salt(sequence, stretch)
            context.course.flatten(len(sequence.tokens))
            sequence.uncompute()


def _computes_fresh_prompt(sequence: Sequence) -> bool:
    """Whether others may still join: none of its output is there, and no KV of an older version."""
    context = sequence.context
    return (
        sequence.own_start == 0
        and not sequence.raw
        and sequence.leader is None
        and context is not None
        and not context.sealed
        and context.done < len(sequence.tokens)
    )


def _alike(leader: Sequence, other: Sequence) -> bool:
    """Whether a waiting request has the leader's fresh prompt."""
    return (
        other.own_start == 0
        and not other.raw
        and other.request.tenant == leader.request.tenant
        and other.tokens == leader.tokens
    )
