"""Who is where: waiting, admitted, or kept after its end; and whose KV makes room for whose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from temper.rollout.engine.base import Request
from temper.rollout.engine.torch.arena import Row
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.context import Context
from temper.rollout.engine.torch.sequence import Kept, Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the schedule."""

    slots: int
    """Most sequences admitted at once."""
    prefill_tokens: int
    """Most tokens computed in one step, give or take a chunk; one chunk always goes on."""
    max_context: int
    """Most tokens of a sequence."""
    exact: bool = True
    """Whether recomputation must give the same bits (batch-invariant mode)."""


class Roster:
    """All sequences of one model, with the rows they hold."""

    def __init__(self, pool: Pool, limits: Limits, salt: Callable[[Sequence, int], bytes]) -> None:
        self.limits, self.pool = limits, pool
        self.waiting: list[Sequence] = []
        self.admitted: list[Sequence] = []
        self.kept: dict[str, Kept] = {}
        self.held_back = False
        """Whether nobody is admitted for now."""
        self.stretch: Callable[[int], int] | None = None
        """Class of a context's length, where rotation depends on it."""
        self.version = -1
        """Weight version that steps run under."""
        self.preemptions = self.hits = self.steps = 0
        self.salt = salt
        """Root of a context's block keys, for a length's class."""
        self._arrivals = self._admissions = 0

    def add(self, request: Request, *, watched: bool = False) -> Sequence:
        """Queue a request."""
        resumes = self.kept.pop(request.continues) if request.continues else None
        sequence = Sequence.of(
            request, resumes, self.limits.max_context, exact=self.limits.exact, watched=watched
        )
        self.enqueue(sequence)
        return sequence

    def enqueue(self, sequence: Sequence) -> None:
        """To the end of the queue."""
        self._arrivals += 1
        sequence.arrival, sequence.arrived = self._arrivals, self.steps
        self.waiting.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the schedule; all it held is free. The one path of finishing, cancelling, preempting."""
        if sequence.resumes is not None and sequence.resumes.context is not None:
            sequence.resumes.context.free(self.pool)
        sequence.resumes = None
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.admitted.remove(sequence)
        context, sequence.context = sequence.context, None
        if sequence.leader is not None:
            sequence.leader.followers.remove(sequence)
            sequence.leader = None
        elif sequence.followers:
            context = self._hand_over(sequence, context)
        if context is not None:
            context.free(self.pool)

    def keep(self, sequence: Sequence) -> None:
        """Set a finished sequence aside with its KV, if that is of one version: who continues it is admitted anew."""
        self.admitted.remove(sequence)
        context = sequence.context
        if context is not None and context.sealed:
            context.free(self.pool)
            context = None
            sequence.course.flatten(len(sequence.tokens))
        self.kept[sequence.request.request_id] = Kept(sequence.tokens, sequence.course, context)

    def release(self, request_id: str) -> None:
        """Stop keeping a sequence."""
        kept = self.kept.pop(request_id, None)
        if kept is not None and kept.context is not None:
            kept.context.free(self.pool)

    def put_back(self, sequence: Sequence) -> None:
        """Back to its old place in the queue; it goes on where it was, once it is admitted again."""
        if sequence.leader is not None:
            self.hits -= sequence.cached
            sequence.cached = -1
        self.leave(sequence)
        sequence.uncompute()
        self.waiting.append(sequence)

    def requeue(self, sequence: Sequence) -> None:
        """A waiting sequence goes to the end of the queue."""
        self.waiting.remove(sequence)
        sequence.admission = 0
        self.enqueue(sequence)

    def turn_over(self) -> None:
        """The weights have changed: nothing computed before serves who is admitted from now on."""
        self.pool.forget()
        while self.evict_kept():
            pass
        for sequence in self.admitted:
            context = sequence.context
            if context is not None and context.done:
                context.sealed = True
            elif context is not None:
                context.salt = self.salt(sequence, context.stretch)

    def _hand_over(self, leader: Sequence, context: Context | None) -> Context | None:
        """The first follower becomes the leader; returns what is left to free."""
        heir, *others = leader.followers
        rest, heir.context = heir.context, context
        heir.leader, heir.followers, leader.followers = None, others, []
        heir.scoring = leader.scoring
        if context is not None:
            heir.course = context.course
        for other in others:
            other.leader = heir
        return rest

    def make_room(self, needs: list[int]) -> bool:
        """Whether rows can be taken; gives up the KV of kept sequences if that helps, the longest kept first."""
        while not self.pool.fits(needs):
            if not self.pool.fits(needs, self._kept_rows()) or not self.evict_kept():
                return False
        return True

    def evict_kept(self) -> bool:
        """Drop the KV of the sequence that is kept longest."""
        for kept in self.resumable():
            if kept.context is not None:
                kept.context.free(self.pool)
                kept.context = None
                return True
        return False

    def resumable(self) -> list[Kept]:
        """Finished sequences that may go on, or wait to."""
        return [*self.kept.values(), *(s.resumes for s in self.waiting if s.resumes)]

    def _kept_rows(self) -> list[Row]:
        contexts = [kept.context for kept in self.resumable()]
        return [row for context in contexts if context is not None for row in context.rows]
