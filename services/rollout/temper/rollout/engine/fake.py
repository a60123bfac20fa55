"""The deterministic twin: every rule of an engine, no torch, time on a clock.

Its "model" hashes the context and the weights' bytes into a distribution over the vocabulary, so outputs depend on
exactly what a real engine's depend on. Its KV pool is a book without KV: blocks are shared, evicted and run out as in a
real one. A step takes ``step_seconds`` of the clock for all running sequences together; with ``lengths`` the outputs
get long tails, which is what benchmarks of asynchrony need.
"""

from __future__ import annotations

import asyncio
import hashlib
import math

from temper.rollout.engine.admission import Desk
from temper.rollout.engine.base import (
    Completion,
    EngineInfo,
    PolicyFiles,
    Request,
    Sink,
    Stats,
    SwapPolicy,
    SwapReport,
)
from temper.rollout.engine.book import BLOCK
from temper.rollout.engine.fake_batch import Batch, Weights
from temper.rollout.engine.made_up import Lengths
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, Unavailable


class FakeEngine:
    """See :class:`temper.rollout.engine.base.Engine`."""

    def __init__(
        self,
        clock: Clock,
        *,
        slots: int = 128,
        max_context: int = 2048,
        kv_tokens: int = 1 << 24,
        step_seconds: float = 0.0,
        swap_wait_seconds: float = 600.0,
        lengths: Lengths | None = None,
    ) -> None:
        self._clock, self._step_seconds, self._swap_wait = clock, step_seconds, swap_wait_seconds
        self._batch = Batch(slots=slots, kv_tokens=kv_tokens, lengths=lengths)
        self._desk = Desk(min(max_context, kv_tokens // BLOCK * BLOCK))
        self._staged: dict[int, Weights] = {}
        self._paused = self._delivering = False
        self._swapping = asyncio.Lock()
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """Identity."""
        return EngineInfo("fake", "2", "hash", batch_invariant=True, max_context=self._desk.max_context)

    @property
    def alive(self) -> bool:
        """Whether the step task runs."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Start stepping."""
        self._task = asyncio.create_task(self._run(), name="fake-engine")
        self._task.add_done_callback(self._stopped)

    async def close(self) -> None:
        """Abort what runs."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._batch.cancel_all()
        self._deliver()
        self._drained.set()
        task.cancel()
        await asyncio.wait([task])

    async def load(self, files: PolicyFiles) -> None:
        """Stage a version: a fingerprint of its bytes."""
        vocab, known = files.config.get("vocab_size"), self._batch.vocab
        if not isinstance(vocab, int) or vocab < 1 or (known and vocab != known):
            raise Rejected(f"config.json: vocab_size {vocab!r} does not fit the loaded policy of {known}")
        if not files.shards:
            raise Rejected(f"weights of version {files.version}: no shards")
        digest = hashlib.sha256(b"".join(files.shards)).digest()
        limit = files.config.get("max_position_embeddings", self._desk.max_context)
        self._batch.vocab = vocab
        self._desk.open(min(self._desk.max_context, int(limit)), vocab)
        self._staged[files.version] = Weights(files.version, int.from_bytes(digest[:8], "big"))

    async def swap(self, version: int, policy: SwapPolicy = SwapPolicy.KEEP) -> SwapReport:
        """Replace the fingerprint; the loop is between two steps whenever this runs."""
        begun = self._clock.monotonic()
        async with self._swapping:
            if not self.alive:
                raise Unavailable("engine: it is not started, or has stopped")
            if version == self._desk.version:
                return SwapReport(version, len(self._batch.running), policy)
            if version not in self._staged:
                raise Rejected(f"engine: version {version} is not loaded; staged are {sorted(self._staged)}")
            if policy is SwapPolicy.WAIT:
                await self._drain(version)
            running = self._batch.swap(self._staged.pop(version), policy)
            self._desk.version = version
            self._staged = {staged: kept for staged, kept in self._staged.items() if staged > version}
            self._deliver()
            self._wake.set()
            return SwapReport(version, running, policy, self._clock.monotonic() - begun)

    async def pause(self) -> None:
        """Stop stepping; the loop is between two steps whenever this runs."""
        self._paused = True

    async def resume(self) -> None:
        """Step again."""
        self._paused = False
        self._wake.set()

    def submit(self, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        """Queue a request."""
        if not self.alive or not self._batch.vocab:
            raise Unavailable("engine: no policy is loaded, or the engine has stopped")
        future = self._desk.register(request, asyncio.get_running_loop(), self.cancel, sink)
        self._batch.add(request, self._desk.max_context)
        self._wake.set()
        return future

    def cancel(self, request_id: str) -> None:
        """Finish with reason ``abort``."""
        self._batch.cancel(request_id)
        self._deliver()

    def release(self, request_id: str) -> None:
        """Drop a kept sequence."""
        if self._desk.forget(request_id):
            self._batch.release(request_id)

    def stats(self) -> Stats:
        """Counters."""
        batch = self._batch
        return Stats(
            version=self._desk.version,
            running=len(batch.running),
            waiting=len(batch.waiting),
            kept=len(batch.kept),
            slots=batch.slots,
            kv_tokens=sum(each.computed for each in [*batch.running, *batch.kept.values()]),
            generated_tokens=batch.generated,
            prefill_tokens=batch.prefilled,
            steps=batch.steps,
            busy_seconds=batch.steps * self._step_seconds,
            cached_prompt_tokens=batch.shared,
            preemptions=batch.preemptions,
            paused=self._paused,
            blocks=batch.book.counts(),
        )

    async def _run(self) -> None:
        while True:
            if self._paused or not self._batch.has_work:
                await self._idle()
                continue
            await self._clock.sleep(self._step_seconds)
            if not self._paused:
                self._batch.step(self._clock.monotonic())
                self._deliver()

    async def _idle(self) -> None:
        """Wait for work or for the next deadline."""
        self._wake.clear()
        due = self._batch.next_deadline()
        patience = None if math.isinf(due) else due - self._clock.monotonic()
        try:
            async with self._clock.timeout(patience):
                await self._wake.wait()
        except TimeoutError:
            self._batch.expire(self._clock.monotonic())
            self._deliver()

    async def _drain(self, version: int) -> None:
        """Admit nothing and let what has started finish."""
        self._batch.holding = True
        self._drained.clear()
        try:
            async with self._clock.timeout(self._swap_wait):
                while not self._batch.drained:
                    await self._drained.wait()
                    self._drained.clear()
        except TimeoutError:
            raise Unavailable(
                f"engine: sequences run for over {self._swap_wait:g} s, version {version} is not current"
            ) from None
        finally:
            self._batch.holding = False
            self._wake.set()

    def _deliver(self) -> None:
        """Hand over what a step, a swap or a cancel brought. A sink may cancel: then the outer call goes on with it."""
        batch = self._batch
        if self._delivering:
            return
        self._delivering = True
        try:
            while batch.emitted or batch.finished:
                emitted, batch.emitted = batch.emitted, []
                finished, batch.finished = batch.finished, []
                self._desk.emit(emitted)
                self._desk.resolve(finished)
        finally:
            self._delivering = False
        if batch.drained:
            self._drained.set()

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Whoever waits learns at once that the loop has ended; a failure of it goes to the loop's handler."""
        self._desk.fail_all()
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler(
                {"message": "fake engine: step failed", "exception": error}
            )
