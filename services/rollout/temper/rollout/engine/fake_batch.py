"""What runs in the twin, and one step of it. Pure: no futures, no clock, no event loop."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from temper.rollout.engine.base import Completion, Emitted, FinishReason, Request, SwapPolicy
from temper.rollout.engine.book import BLOCK, Book
from temper.rollout.engine.fake_sequence import Sequence
from temper.rollout.engine.made_up import Lengths, draw, made_up_logits, prompt_logprobs
from temper.rollout.engine.spans import Spans

_AGEING_STEPS = 64  # steps of waiting that weigh as much as one level of priority


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of the made-up policy."""

    version: int
    """Weight version."""
    fingerprint: int
    """Hash of its bytes: the whole model."""


class Batch:
    """Queue, running sequences and kept ones over one pool."""

    def __init__(self, *, slots: int, kv_tokens: int, lengths: Lengths | None) -> None:
        self.slots, self._lengths = slots, lengths
        self.book = Book(kv_tokens // BLOCK)
        self.vocab = 0
        self.weights: Weights | None = None
        self.holding = False  # admit nothing that has not started
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.kept: dict[str, Sequence] = {}
        self.emitted: list[Emitted] = []
        self.finished: list[Completion] = []
        self.generated = self.prefilled = self.steps = self.shared = self.preemptions = self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.weights is not None and bool(self.running or self._admissible())

    @property
    def drained(self) -> bool:
        """Whether nothing that has started is unfinished."""
        return not self.running and not any(each.started for each in self.waiting)

    def add(self, request: Request, max_context: int) -> None:
        """Queue a checked request."""
        before = self.kept.pop(request.continues or "", None)
        known = before.tokens if before else []
        tokens = [*known, *request.tokens]
        self._arrivals += 1
        sequence = Sequence(
            request=request,
            tokens=tokens,
            own_start=len(known),
            limit=min(request.sampling.max_tokens, max_context - len(tokens)),
            arrival=self._arrivals,
            queued_at=self.steps,
            resumes=before is not None,
        )
        if before is not None:
            sequence.blocks, sequence.computed, sequence.oldest = (
                before.blocks,
                before.computed,
                before.oldest,
            )
        self.waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """Finish with reason ``abort``; unknown ids are ignored."""
        for sequence in [*self.running, *self.waiting]:
            if sequence.request.request_id == request_id:
                self._finish(sequence, FinishReason.ABORT)

    def cancel_all(self) -> None:
        """Finish everything with reason ``abort``."""
        for sequence in [*self.running, *self.waiting]:
            self._finish(sequence, FinishReason.ABORT)

    def release(self, request_id: str) -> None:
        """Stop keeping a sequence."""
        self.book.drop(self.kept.pop(request_id).blocks)

    def expire(self, now: float) -> None:
        """Finish what is past its deadline."""
        for sequence in [*self.running, *self.waiting]:
            deadline = sequence.request.deadline
            if deadline is not None and deadline <= now:
                self._finish(sequence, FinishReason.DEADLINE)

    def next_deadline(self) -> float:
        """Earliest deadline of anything unfinished."""
        deadlines = (each.request.deadline for each in [*self.running, *self.waiting])
        return min((each for each in deadlines if each is not None), default=math.inf)

    def swap(self, weights: Weights, policy: SwapPolicy) -> int:
        """Other weights from here on. Says how many sequences go on."""
        running = list(self.running)
        self.weights = weights
        self.book.forget()
        for kept in [*self.kept.values(), *self.waiting]:
            self._strip(kept)  # admitted under the new version, they may read no KV of the old one
        if policy is SwapPolicy.KEEP:
            for sequence in running:
                sequence.shareable = False
            return len(running)
        if policy is SwapPolicy.ABORT:
            for sequence in running:
                self._finish(sequence, FinishReason.ABORT)
            return 0
        for sequence in running:
            self._put_back(sequence)
        if policy is SwapPolicy.RECOMPUTE:
            self._admit(running)
        return len(running)

    def step(self, now: float) -> None:
        """Expire, admit, and one token for each running sequence."""
        self.expire(now)
        if len(self.running) < self.slots:
            self._admit(sorted(self._admissible(), key=self._rank))
        self.steps += 1
        for sequence in list(self.running):
            if sequence.computed and self._grow(sequence, evict=True):  # not put back by one before it
                self._advance(sequence)

    def _admissible(self) -> list[Sequence]:
        return [each for each in self.waiting if each.started or not self.holding]

    def _rank(self, sequence: Sequence) -> tuple[bool, float, int]:
        aged = sequence.request.priority + (self.steps - sequence.queued_at) // _AGEING_STEPS
        return not sequence.resumes, -aged, sequence.arrival

    def _admit(self, candidates: Iterable[Sequence]) -> None:
        """In this order, until one does not fit: whoever is first in line is not overtaken."""
        for sequence in candidates:
            if len(self.running) >= self.slots or not self._place(sequence):
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)

    def _place(self, sequence: Sequence) -> bool:
        """Give a sequence its KV: what can be shared, and blocks for the rest, which is computed."""
        assert self.weights is not None, "nothing is admitted before there are weights"
        namespace = (self.weights.version, sequence.request.tenant)
        if not sequence.computed:
            sequence.blocks = self.book.match(namespace, sequence.tokens, (len(sequence.tokens) - 1) // BLOCK)
            sequence.computed = BLOCK * len(sequence.blocks)
        if not self._grow(sequence, evict=False):
            self._strip(sequence)
            return False
        if not sequence.started:
            sequence.cached = sequence.computed
            self.shared += sequence.computed
            if sequence.request.prompt_logprobs:
                sequence.prompt = prompt_logprobs(
                    sequence.tokens, sequence.own_start, self.weights.fingerprint, self.vocab
                )
        sequence.started, sequence.shareable, sequence.oldest = True, True, self.weights.version
        self.prefilled += len(sequence.tokens) - sequence.computed
        sequence.prefilled = Spans()
        sequence.prefilled.extend(len(sequence.request.tokens), self.weights.version)
        self._compute(sequence)
        return True

    def _grow(self, sequence: Sequence, *, evict: bool) -> bool:
        """Blocks for every token; ``evict``: at the cost of running sequences, itself perhaps."""
        need = -(-len(sequence.tokens) // BLOCK)
        while len(sequence.blocks) < need:
            if self.book.available or self._make_room(sequence):
                sequence.blocks.append(self.book.take())
            elif not evict or not self._preempt(sequence):
                return False
        return True

    def _make_room(self, sequence: Sequence) -> bool:
        """Drop KV that nobody computes with now: of kept sequences, the oldest first, then of the queue's end."""
        queue = sorted(self.waiting, key=self._rank, reverse=True)
        for idle in [*self.kept.values(), *queue]:
            if idle.blocks and idle is not sequence:
                self._strip(idle)
                if self.book.available:
                    return True
        return False

    def _preempt(self, sequence: Sequence) -> bool:
        """Put back the newest of the lowest priority; False if that is the sequence itself."""
        victim = min(self.running, key=lambda each: (each.request.priority, -each.arrival))
        self.preemptions += 1
        self._put_back(victim)
        return victim is not sequence

    def _put_back(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._strip(sequence)
        sequence.queued_at = self.steps
        self.waiting.append(sequence)

    def _strip(self, sequence: Sequence) -> None:
        """Take a sequence's KV; its shared blocks stay for whoever finds them."""
        self.book.drop(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0

    def _compute(self, sequence: Sequence) -> None:
        """KV of every token; full blocks may be shared from here on."""
        assert self.weights is not None, "what runs was admitted under weights"
        namespace = (self.weights.version, sequence.request.tenant)
        first, sequence.computed = sequence.computed // BLOCK, len(sequence.tokens)
        if sequence.shareable:
            for index in range(first, sequence.computed // BLOCK):
                span = sequence.tokens[index * BLOCK : (index + 1) * BLOCK]
                self.book.publish(sequence.blocks, index, namespace, span)

    def _advance(self, sequence: Sequence) -> None:
        """Compute, draw, append, and finish if that was the last token."""
        assert self.weights is not None, "what runs was admitted under weights"
        self._compute(sequence)
        request, weights = sequence.request, self.weights
        forced = self._forced(sequence)
        logits = made_up_logits(sequence.tokens, len(sequence.tokens), weights.fingerprint, self.vocab)
        drawn = draw(logits, request, sequence.tokens, len(sequence.output), forced)
        sequence.output.append(drawn)
        sequence.tokens.append(drawn.token)
        sequence.versions.extend(1, weights.version)
        sequence.origins.extend(1, sequence.oldest)
        self.generated += 1
        top = (drawn.top,) if request.sampling.top_logprobs else ()
        self.emitted.append(
            Emitted(
                request.request_id, (drawn.token,), (drawn.raw,), (drawn.processed,), top, weights.version
            )
        )
        if drawn.token in request.sampling.stop_token_ids and forced != -1:
            self._finish(sequence, FinishReason.STOP)
        elif len(sequence.output) >= sequence.limit:
            self._finish(sequence, FinishReason.LENGTH)

    def _forced(self, sequence: Sequence) -> int | None:
        """With drawn lengths: the stop token at the end, none before it."""
        stops = sequence.request.sampling.stop_token_ids
        if self._lengths is None or not stops:
            return None
        return stops[0] if len(sequence.output) + 1 >= self._lengths.draw(sequence.request) else -1

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.finished.append(sequence.complete(reason))
        if not sequence.request.keep or reason not in (FinishReason.STOP, FinishReason.LENGTH):
            self._strip(sequence)
            return
        if not sequence.shareable:
            self._strip(sequence)  # KV of two versions: a later request may not read it
        self.kept[sequence.request.request_id] = sequence
