"""One step of everything: lay it, compute it, draw, hand out; and what a swap, a cancel or a deadline changes in between.

Everything here is synchronous and owns no thread; :mod:`.engine` calls it from one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from temper.rollout.engine.base import Completion, Emitted, FinishReason, Request, SwapPolicy
from temper.rollout.engine.torch.blocks import Pool
from temper.rollout.engine.torch.fast import Fast
from temper.rollout.engine.torch.feed import pool_order
from temper.rollout.engine.torch.kv import Cache
from temper.rollout.engine.torch.model import Model
from temper.rollout.engine.torch.roster import Limits
from temper.rollout.engine.torch.sample import draw, verify
from temper.rollout.engine.torch.schedule import Schedule
from temper.rollout.engine.torch.sequence import Sequence
from temper.rollout.engine.torch.sizes import BLOCK
from temper.rollout.engine.torch.weights import Weights
from temper.rollout.engine.torch.work import Work


class Loop:
    """All sequences of one model, with their KV. Not thread-safe."""

    def __init__(self, model: Model, limits: Limits, units: int, fast: Fast | None = None) -> None:
        self.weights: Weights | None = None
        self.generated = self.prefilled = self.steps = self.proposed = self.accepted = 0
        self.next_deadline = math.inf
        self.paused = False
        self._model, self._cache = model, Cache(model.shape, units)
        self.pool = Pool(units, self._cache)
        self.schedule = Schedule(self.pool, limits, self._salt)
        if not model.rotary.fixed:
            self.schedule.stretch = model.rotary.stretch
        self._fast = fast or Fast()
        self._drafts = self._fast.drafts()
        if self._drafts is not None:
            self.schedule.proposer = self._propose
        self.schedule.sparse, self.schedule.kv_heads = self._fast.sparse(), model.shape.kv_heads
        self._finished: list[Completion] = []
        self._emitted: list[Emitted] = []
        self._counted: tuple[tuple[int, ...], int] = (), 0  # by state, see kv_tokens

    @property
    def running(self) -> int:
        """Sequences that are admitted."""
        return len(self.schedule.admitted)

    @property
    def unfinished(self) -> int:
        """Sequences that were admitted, those among them too that had to make room."""
        return self.running + sum(s.admission > 0 for s in self.schedule.waiting)

    @property
    def kv_tokens(self) -> int:
        """Context tokens that running and kept sequences hold. Asked for more often than it changes, so counted once."""
        schedule = self.schedule
        state = (
            self.steps,
            self.pool.book().held,
            len(schedule.admitted),
            len(schedule.waiting),
            len(schedule.kept),
        )
        if state != self._counted[0]:
            contexts = [sequence.context for sequence in schedule.admitted]
            contexts += [kept.context for kept in schedule.resumable()]
            self._counted = state, sum(context.done for context in contexts if context is not None)
        return self._counted[1]

    def add(self, request: Request, *, watched: bool = False) -> None:
        """Queue a request."""
        self.schedule.add(request, watched=watched)
        if request.deadline is not None:
            self.next_deadline = min(self.next_deadline, request.deadline)

    def cancel(self, request_id: str) -> None:
        """Finish a request now, with what it has."""
        self._finish_where(lambda sequence: sequence.request.request_id == request_id, FinishReason.ABORT)

    def cancel_all(self) -> None:
        """Finish every request now."""
        self._finish_where(lambda _: True, FinishReason.ABORT)

    def expire(self, now: float) -> None:
        """Finish the requests whose deadline has passed."""
        if now < self.next_deadline:
            return
        self._finish_where(lambda sequence: _deadline(sequence) <= now, FinishReason.DEADLINE)
        self.next_deadline = min(map(_deadline, self._everyone()), default=math.inf)

    def drain(self) -> tuple[list[Emitted], list[Completion]]:
        """What was added and who finished since the last call."""
        result = self._emitted, self._finished
        self._emitted, self._finished = [], []
        return result

    def swap(self, weights: Weights, policy: SwapPolicy) -> int:
        """New weights from the next step on; returns how many sequences go on."""
        schedule = self.schedule
        going_on = self.unfinished
        if policy is SwapPolicy.ABORT:
            self._finish_where(lambda sequence: sequence.admission > 0, FinishReason.ABORT)
            going_on = 0
        self.weights, schedule.version = weights, weights.version
        if policy in (SwapPolicy.RECOMPUTE, SwapPolicy.REQUEUE):
            for sequence in list(schedule.admitted):
                schedule.put_back(sequence)
            for sequence in [s for s in schedule.waiting if s.admission]:
                sequence.course.flatten(len(sequence.tokens))
                if policy is SwapPolicy.REQUEUE:
                    schedule.requeue(sequence)
        schedule.turn_over()
        return going_on

    def step(self) -> bool:
        """Advance every sequence once; says whether there was anything to do."""
        schedule = self.schedule
        if self.weights is None or self.paused or not (schedule.waiting or schedule.admitted):
            return False
        works = schedule.lay()
        if not works:
            return False
        works.sort(key=pool_order)
        logits = self._model.forward(self.weights, self._cache.tensor, works)
        self.steps += 1
        asking: list[tuple[Sequence, Work]] = []
        rows: list[int] = []
        end = 0
        for work in works:
            first, end = end, end + work.logits
            sequence = work.sequence
            if work.decode:
                self._decoded(work)
            else:
                self._account(work, logits, first)
            if work.last:
                asking.append((sequence, work))
                drawn = range(end - 1 - work.drafts, end)
                rows += drawn
                if not work.decode:
                    for follower in self._fork(sequence):
                        asking.append((follower, work))
                        rows += drawn
        if asking:
            self._draw(asking, logits if rows == list(range(len(logits))) else logits[torch.tensor(rows)])
        return True

    def _decoded(self, work: Work) -> None:
        """KV of a decode row is there now, but for drafts, which are not known to be right."""
        sequence, context = work.sequence, work.sequence.context
        assert self.weights is not None
        assert context is not None
        if sequence.oldest is None:
            sequence.oldest = self.weights.version
        context.done = done = work.start + len(work.tokens) - work.drafts
        if done >= (len(context.keys) + 1) * BLOCK:
            context.publish(self.pool, sequence.tokens)

    def _account(self, work: Work, logits: Tensor, row: int) -> None:
        """KV of a chunk of prefill is there now; its logits begin at ``row``."""
        assert self.weights is not None
        sequence, context = work.sequence, work.sequence.context
        assert context is not None
        self.prefilled += work.stop - work.start
        members = (sequence, *sequence.followers)
        for member in members:
            member.computed(work.start, work.stop, self.weights.version)
        if any(member.wants_scores for member in members):
            _score(sequence, work, logits[row : row + work.logits])
        context.done = work.stop
        context.publish(self.pool, sequence.tokens)

    def _fork(self, leader: Sequence) -> list[Sequence]:
        """The prompt is computed: from here each goes its own way."""
        if not leader.followers and not leader.request.prompt_logprobs:
            return leader.followers
        followers, leader.followers = leader.followers, []
        for follower in followers:
            assert leader.context is not None
            assert follower.context is not None
            follower.leader = None
            follower.context = leader.context.fork(self.pool, follower.context.rows, follower.course)
            if follower.wants_scores:
                follower.scores = list(leader.scoring)
        if leader.wants_scores:
            leader.scores = leader.scoring
        return followers

    def _draw(self, asking: list[tuple[Sequence, Work]], logits: Tensor) -> None:
        assert self.weights is not None
        if self.schedule.proposer is None and not any(one.asking.sampling.top_logprobs for one, _ in asking):
            self._append([sequence for sequence, _ in asking], logits, self.weights.version)
            return
        for sequence, work in asking:
            sequence.asking.draft = tuple(work.tokens[-work.drafts :]) if work.drafts else ()
        drawn = verify(logits, [sequence.asking for sequence, _ in asking])
        version = self.weights.version
        for (sequence, work), one in zip(asking, drawn, strict=True):
            before = len(sequence.raw)
            reason = sequence.take(one, version)
            took = len(sequence.raw) - before
            self.generated += took
            self.proposed += work.drafts
            self.accepted += min(took, one.accepted)
            assert sequence.context is not None
            # Accepted drafts were fed already; the last token of a context never was.
            sequence.context.done = work.start + len(work.tokens) - work.drafts + took - 1
            if sequence.watched:
                self._emitted.append(sequence.emitted(version))
            if reason is not None:
                self._finish(sequence, reason)

    def _append(self, sequences: list[Sequence], logits: Tensor, version: int) -> None:
        """One token for each, no drafts: what :meth:`_draw` does, with less to do per sequence."""
        drawn = draw(logits, [sequence.asking for sequence in sequences])
        self.generated += len(sequences)
        columns = zip(sequences, drawn.tokens, drawn.raw, drawn.processed, drawn.surviving, strict=True)
        for sequence, token, raw, processed, surviving in columns:
            reason = sequence.append(token, raw, processed, surviving, version)
            if sequence.watched:
                self._emitted.append(sequence.emitted(version))
            if reason is not None:
                self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Record a completion. What was aborted is not kept: its KV may be half written."""
        if sequence.request.keep and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.schedule.keep(sequence)
        else:
            self.schedule.leave(sequence)
        if self._drafts is not None:
            self._drafts.close(sequence.request.request_id)
        self._finished.append(sequence.complete(reason, exact=not self._fast.quantised))

    def _propose(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        assert self._drafts is not None
        request = sequence.request
        return self._drafts.propose(request.request_id, request.group, sequence.tokens, most)

    def _everyone(self) -> list[Sequence]:
        return [*self.schedule.waiting, *self.schedule.admitted]

    def _finish_where(self, chosen: Callable[[Sequence], bool], reason: FinishReason) -> None:
        for sequence in [sequence for sequence in self._everyone() if chosen(sequence)]:
            self._finish(sequence, reason)

    def _salt(self, sequence: Sequence, stretch: int) -> bytes:
        """Root of a context's block keys: what else shaped its KV."""
        tenant = sequence.request.tenant.encode()
        salt = hashlib.blake2b(self._model.shape.kv_key(stretch), digest_size=16)
        salt.update(self.schedule.version.to_bytes(8, "little", signed=True) + self._fast.kv_key + tenant)
        return salt.digest()


def _score(sequence: Sequence, work: Work, logits: Tensor) -> None:
    """Logprobs of the own prompt tokens that follow the positions just computed."""
    first, end = max(work.start + 1, sequence.own_start), min(work.stop + 1, sequence.output_start)
    if sequence.own_start == 0 and work.start == 0:
        sequence.scoring = [None]  # nothing precedes the first token
    if first >= end:
        return
    rows = torch.log_softmax(logits[first - work.start - 1 : end - work.start - 1], dim=-1)
    tokens = torch.tensor(sequence.tokens[first:end])
    sequence.scoring += rows.gather(1, tokens[:, None])[:, 0].tolist()


def _deadline(sequence: Sequence) -> float:
    return math.inf if sequence.request.deadline is None else sequence.request.deadline
