"""The deterministic twin: every rule of an engine, no torch, time on a clock.

Its "model" hashes the context and the weights' bytes into a distribution over the vocabulary, so outputs depend on
exactly what a real engine's depend on. A step takes ``step_seconds`` of the clock for all running sequences together;
with ``lengths`` the outputs get long tails, which is what benchmarks of asynchrony need.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass, field

from temper.rollout.engine.admission import Desk
from temper.rollout.engine.base import (
    Completion,
    EngineInfo,
    FinishReason,
    PolicyFiles,
    Request,
    Stats,
    SwapReport,
)
from temper.rollout.engine.made_up import Lengths, draw, made_up_logits
from temper.rollout.engine.spans import Spans
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, Unavailable


@dataclass(slots=True, eq=False)
class _Sequence:
    request: Request
    context: list[int]
    cached: int
    limit: int
    output: list[tuple[int, float, float, float]] = field(default_factory=list)
    versions: Spans = field(default_factory=Spans)
    prefilled: Spans = field(default_factory=Spans)


@dataclass(frozen=True, slots=True)
class _Weights:
    version: int
    fingerprint: int


class FakeEngine:
    """See :class:`temper.rollout.engine.base.Engine`."""

    def __init__(
        self,
        clock: Clock,
        *,
        slots: int = 128,
        max_context: int = 2048,
        step_seconds: float = 0.0,
        lengths: Lengths | None = None,
    ) -> None:
        self._clock, self._slots = clock, slots
        self._step_seconds, self._lengths = step_seconds, lengths
        self._desk = Desk(max_context)
        self._vocab = 0
        self._staged: dict[int, _Weights] = {}
        self._current: _Weights | None = None
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._kept: dict[str, list[int]] = {}
        self._generated = self._prefilled = self._steps = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """Identity."""
        return EngineInfo("fake", "1", "hash", batch_invariant=True, max_context=self._desk.max_context)

    @property
    def alive(self) -> bool:
        """Whether the step task runs."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Start stepping."""
        self._task = asyncio.create_task(self._run(), name="fake-engine")

    async def close(self) -> None:
        """Abort what runs."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        for sequence in [*self._running, *self._waiting]:
            self._finish(sequence, FinishReason.ABORT)
        self._running, self._waiting, self._task = [], deque(), None

    async def load(self, files: PolicyFiles) -> None:
        """Stage a version: a fingerprint of its bytes."""
        vocab = files.config.get("vocab_size")
        if not isinstance(vocab, int) or vocab < 1 or (self._vocab and vocab != self._vocab):
            raise Rejected(
                f"config.json: vocab_size {vocab!r} does not fit the loaded policy of {self._vocab}"
            )
        if not files.shards:
            raise Rejected(f"weights of version {files.version}: no shards")
        digest = hashlib.sha256(b"".join(files.shards)).digest()
        limit = files.config.get("max_position_embeddings", self._desk.max_context)
        self._vocab = vocab
        self._desk.open(min(self._desk.max_context, int(limit)), vocab)
        self._staged[files.version] = _Weights(files.version, int.from_bytes(digest[:8], "big"))

    async def swap(self, version: int) -> SwapReport:
        """Replace the fingerprint; the loop is between two steps whenever this runs."""
        weights = self._staged.pop(version, None)
        if weights is not None:
            self._current, self._desk.version = weights, version
            self._staged = {staged: kept for staged, kept in self._staged.items() if staged > version}
            self._wake.set()
        elif version != self._desk.version:
            raise Rejected(f"engine: version {version} is not loaded; staged are {sorted(self._staged)}")
        return SwapReport(version, len(self._running), "keep")

    def submit(self, request: Request) -> asyncio.Future[Completion]:
        """Queue a request."""
        if self._task is None or not self._vocab:
            raise Unavailable("engine: no policy is loaded, or the engine has stopped")
        future = self._desk.register(request, asyncio.get_running_loop(), self.cancel)
        before = self._kept.pop(request.continues or "", [])
        context = [*before, *request.tokens]
        limit = min(request.sampling.max_tokens, self._desk.max_context - len(context))
        sequence = _Sequence(request, context, max(0, len(before) - 1), limit)
        if before:
            self._waiting.appendleft(sequence)
        else:
            self._waiting.append(sequence)
        self._wake.set()
        return future

    def cancel(self, request_id: str) -> None:
        """Finish with reason ``abort``."""
        for sequence in [*self._running, *self._waiting]:
            if sequence.request.request_id == request_id:
                self._remove(sequence)
                self._finish(sequence, FinishReason.ABORT)

    def release(self, request_id: str) -> None:
        """Drop a kept sequence."""
        if self._desk.forget(request_id):
            del self._kept[request_id]

    def stats(self) -> Stats:
        """Counters."""
        held = sum(len(s.context) + len(s.output) for s in self._running) + sum(map(len, self._kept.values()))
        return Stats(
            version=self._desk.version,
            running=len(self._running),
            waiting=len(self._waiting),
            kept=len(self._kept),
            slots=self._slots,
            kv_tokens=held,
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            steps=self._steps,
            busy_seconds=self._steps * self._step_seconds,
        )

    async def _run(self) -> None:
        while True:
            if self._current is None or not (self._running or self._waiting):
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._clock.sleep(self._step_seconds)
            self._step(self._current)

    def _step(self, weights: _Weights) -> None:
        while self._waiting and len(self._running) < self._slots:
            sequence = self._waiting.popleft()
            sequence.prefilled.extend(len(sequence.request.tokens), weights.version)
            self._prefilled += len(sequence.context) - sequence.cached
            self._running.append(sequence)
        self._steps += 1
        now = self._clock.monotonic()
        for sequence in list(self._running):
            deadline = sequence.request.deadline
            reason = (
                FinishReason.DEADLINE
                if deadline is not None and deadline <= now
                else self._advance(sequence, weights)
            )
            if reason is not None:
                self._running.remove(sequence)
                self._finish(sequence, reason)

    def _advance(self, sequence: _Sequence, weights: _Weights) -> FinishReason | None:
        request = sequence.request
        tokens = [*sequence.context, *(token for token, *_ in sequence.output)]
        forced = None
        if self._lengths is not None and request.sampling.stop_token_ids:
            ends = len(sequence.output) + 1 >= self._lengths.draw(request)
            forced = request.sampling.stop_token_ids[0] if ends else -1
        drawn = draw(made_up_logits(tokens, weights.fingerprint, self._vocab), request, len(tokens), forced)
        sequence.output.append(drawn)
        sequence.versions.extend(1, weights.version)
        self._generated += 1
        if drawn[0] in request.sampling.stop_token_ids and forced != -1:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.output) >= sequence.limit else None

    def _remove(self, sequence: _Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def _finish(self, sequence: _Sequence, reason: FinishReason) -> None:
        tokens, raw, processed, surviving = tuple(zip(*sequence.output, strict=True)) or ((), (), (), ())
        if sequence.request.keep and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._kept[sequence.request.request_id] = [*sequence.context, *tokens]
        completion = Completion(
            request_id=sequence.request.request_id,
            tokens=tokens,
            logprobs_raw=raw,
            logprobs=processed,
            log_surviving_mass=surviving,
            weight_versions=sequence.versions.frozen(),
            prefill_versions=sequence.prefilled.frozen(),
            finish=reason,
            cached_tokens=sequence.cached,
        )
        self._desk.resolve([completion])
