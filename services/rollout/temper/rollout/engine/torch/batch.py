"""Which sequence is where, and one step of all of them.

A sequence is *waiting* (not admitted), in *prefill* (its buffer is being filled, chunk by chunk), *running* (a row of a
slab), or *kept* (finished; its KV waits on a shelf to be continued). Requests with the same fresh prompt that are
admitted together fill one buffer. A step is: admit, one budget of prefill, one decode, one draw per row.

Everything here is synchronous and owns no thread; :mod:`.engine` calls it from one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.rollout.engine.base import Completion, FinishReason, Request
from temper.rollout.engine.torch.cache import Slab, new_buffer, size_classes
from temper.rollout.engine.torch.kept import Shelf
from temper.rollout.engine.torch.model import Model, Piece, Rows
from temper.rollout.engine.torch.sample import draw
from temper.rollout.engine.torch.sequence import Kept, Sequence
from temper.rollout.engine.torch.weights import Weights

CHUNK = (
    256  # tokens; chunks end at multiples of it, so that a prompt's numbers do not depend on its neighbours
)


@dataclass(slots=True, eq=False)
class Prefill:
    """A buffer being filled for one sequence, or for several that share a prompt."""

    members: list[Sequence]
    buffer: Tensor
    """``[layers, 2, kv_heads, context, head_dim]``"""
    done: int
    """Context tokens whose KV is there."""

    @property
    def context(self) -> list[int]:
        """Tokens to compute, the same for all members."""
        return self.members[0].tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a batch."""

    slots: int
    """Most sequences in prefill and decode."""
    prefill_tokens: int
    """Most context tokens computed in one step, give or take a chunk."""
    kept_tokens: int
    """Most context tokens whose KV is kept for sequences between turns."""
    max_context: int
    """Most tokens of a sequence."""


class Batch:
    """All sequences of one model. Not thread-safe."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.weights: Weights | None = None
        self.generated = self.prefilled = self.steps = 0
        self.shelf = Shelf(limits.kept_tokens)
        self._model, self._limits = model, limits
        self._waiting: deque[Sequence] = deque()
        self._prefills: list[Prefill] = []
        self._slabs = [Slab[Sequence](model.shape, size) for size in size_classes(limits.max_context)]
        self._finished: list[Completion] = []
        self.next_deadline = math.inf

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return sum(len(slab.owners) for slab in self._slabs) + sum(len(p.members) for p in self._prefills)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a slot."""
        return len(self._waiting)

    @property
    def kv_tokens(self) -> int:
        """Context tokens held by running and kept sequences."""
        held = sum(len(sequence.tokens) for slab in self._slabs for sequence in slab.owners)
        return held + self.shelf.tokens + sum(prefill.done for prefill in self._prefills)

    def add(self, request: Request) -> None:
        """Queue a request; one that continues goes first, for its episode holds memory already."""
        resumes = self.shelf.take(request.continues) if request.continues else None
        sequence = Sequence.of(request, resumes, self._limits.max_context)
        if resumes is None:
            self._waiting.append(sequence)
        else:
            self._waiting.appendleft(sequence)
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

    def drain(self) -> list[Completion]:
        """Completions since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def step(self) -> bool:
        """Advance every sequence once; says whether there was anything to do."""
        if self.weights is None or not (self._waiting or self.running):
            return False
        self._admit()
        if self._prefills:
            self._fill(self.weights)
        if any(slab.owners for slab in self._slabs):
            self._decode(self.weights)
        return True

    def _admit(self) -> None:
        free = self._limits.slots - self.running
        shared = {tuple(p.context): p for p in self._prefills if p.done == 0}
        while self._waiting and free > 0:
            sequence = self._waiting.popleft()
            free -= 1
            key = tuple(sequence.tokens)
            if sequence.resumes is None and key in shared:
                sequence.cached = len(key)
                shared[key].members.append(sequence)
                continue
            prefill = self._begin(sequence)
            self._prefills.append(prefill)
            if prefill.done == 0:
                shared[key] = prefill

    def _begin(self, sequence: Sequence) -> Prefill:
        buffer = new_buffer(self._model.shape, len(sequence.tokens))
        kept, sequence.resumes = sequence.resumes, None
        if kept is None or kept.buffer is None:
            return Prefill([sequence], buffer, 0)
        sequence.cached = kept.buffer.shape[3]
        buffer[:, :, :, : sequence.cached] = kept.buffer
        return Prefill([sequence], buffer, sequence.cached)

    def _fill(self, weights: Weights) -> None:
        """Compute up to a budget of context; sequences whose context is complete draw their first token."""
        chosen: list[Prefill] = []
        pieces: list[Piece] = []
        left = self._limits.prefill_tokens
        for prefill in self._prefills:
            if left <= 0:
                break
            stop = min(len(prefill.context), (prefill.done // CHUNK + 1) * CHUNK)
            pieces.append(Piece(prefill.context[prefill.done : stop], prefill.done, prefill.buffer))
            chosen.append(prefill)
            left -= stop - prefill.done
        logits = self._model.prefill(weights, pieces)
        ready: list[tuple[Sequence, Prefill]] = []
        rows: list[int] = []
        for row, (prefill, piece) in enumerate(zip(chosen, pieces, strict=True)):
            self._advance(prefill, len(piece.tokens), weights.version)
            if prefill.done == len(prefill.context):
                ready += [(member, prefill) for member in prefill.members]
                rows += [row] * len(prefill.members)
        if ready:
            self._prefills = [p for p in self._prefills if p.done < p.buffer.shape[3]]
            self._start(ready, logits[torch.tensor(rows)], weights.version)

    def _advance(self, prefill: Prefill, count: int, version: int) -> None:
        self.prefilled += count
        prefill.done += count
        for member in prefill.members:
            member.prefilled.extend(min(count, prefill.done - member.own_start), version)

    def _start(self, ready: list[tuple[Sequence, Prefill]], logits: Tensor, version: int) -> None:
        """First token of each; those that go on are copied into a slab."""
        reasons = self._draw([sequence for sequence, _ in ready], logits, version)
        for (sequence, prefill), reason in zip(ready, reasons, strict=True):
            if reason is None:
                self._place(sequence, prefill.buffer)
            else:
                self._finish(sequence, reason, prefill.buffer)

    def _decode(self, weights: Weights) -> None:
        self._promote()
        groups = [
            Rows(slab.kv, [s.tokens[-1] for s in slab.owners], [len(s.tokens) - 1 for s in slab.owners])
            for slab in self._slabs
            if slab.owners
        ]
        sequences = [sequence for slab in self._slabs for sequence in slab.owners]
        reasons = self._draw(sequences, self._model.decode(weights, groups), weights.version)
        self.steps += 1
        for sequence, reason in zip(sequences, reasons, strict=True):
            if reason is not None:
                self._leave(sequence, reason)

    def _draw(self, sequences: list[Sequence], logits: Tensor, version: int) -> list[FinishReason | None]:
        draws = draw(
            logits,
            [sequence.request.sampling for sequence in sequences],
            [sequence.key for sequence in sequences],
            [len(sequence.tokens) for sequence in sequences],
        )
        self.generated += len(sequences)
        return [
            sequence.take(token, raw, processed, surviving, version)
            for sequence, token, raw, processed, surviving in zip(
                sequences, draws.tokens, draws.raw, draws.processed, draws.surviving, strict=True
            )
        ]

    def _promote(self) -> None:
        """Move sequences that outgrew their class; the next token's KV goes to position ``len(tokens) - 1``."""
        for slab in self._slabs[:-1]:
            for sequence in [s for s in slab.owners if len(s.tokens) > slab.capacity]:
                self._vacate(sequence, lambda kv, sequence=sequence: self._place(sequence, kv))

    def _place(self, sequence: Sequence, buffer: Tensor) -> None:
        slab = next(slab for slab in self._slabs if slab.capacity >= len(sequence.tokens))
        sequence.slab, sequence.row = slab, slab.add(sequence, buffer)

    def _vacate(self, sequence: Sequence, rescue: Callable[[Tensor], None] | None = None) -> None:
        """Take a sequence out of its slab; ``rescue`` sees its KV, memory that is reused right after."""
        slab, row = sequence.slab, sequence.row
        assert slab is not None
        sequence.slab = None
        if rescue is not None:
            rescue(slab.view(row, len(sequence.tokens) - 1))
        mover = slab.remove(row)
        if mover is not None:
            mover.row = row

    def _leave(self, sequence: Sequence, reason: FinishReason) -> None:
        """Finish a running sequence."""
        if sequence.request.keep and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._vacate(sequence, lambda kv: self._finish(sequence, reason, kv.clone()))
        else:
            self._vacate(sequence)
            self._finish(sequence, reason, None)

    def _finish(self, sequence: Sequence, reason: FinishReason, buffer: Tensor | None) -> None:
        """Record a completion. What was aborted is not kept: its KV may be half written."""
        if sequence.request.keep and buffer is not None:
            self.shelf.put(sequence.request.request_id, Kept(sequence.tokens, buffer))
        self._finished.append(sequence.complete(reason))

    def _everyone(self) -> list[Sequence]:
        in_prefill = [member for prefill in self._prefills for member in prefill.members]
        return [*self._waiting, *in_prefill, *(s for slab in self._slabs for s in slab.owners)]

    def _finish_where(self, chosen: Callable[[Sequence], bool], reason: FinishReason) -> None:
        for sequence in [sequence for sequence in self._everyone() if chosen(sequence)]:
            if sequence.slab is not None:
                self._leave(sequence, reason)
                continue
            if sequence in self._waiting:
                self._waiting.remove(sequence)
            for prefill in self._prefills:
                if sequence in prefill.members:
                    prefill.members.remove(sequence)
            self._finish(sequence, reason, None)
        self._prefills = [prefill for prefill in self._prefills if prefill.members]


def _deadline(sequence: Sequence) -> float:
    return math.inf if sequence.request.deadline is None else sequence.request.deadline
