"""The engine: submissions to the vendor, swaps between them, and the futures through which the service sees it.

The vendor drains before it updates weights, and it says nothing of versions. So no update runs while a submission is in
flight: the gate shuts, what runs finishes or is aborted (and sent again, with the tokens it has, under the new version),
the workers take the tensors, the gate opens. Every submission is of one version, and the spans are exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import torch

from temper.rollout.engine.admission import Desk
from temper.rollout.engine.base import (
    Completion,
    EngineInfo,
    FinishReason,
    PolicyFiles,
    Request,
    Sink,
    Stats,
    SwapPolicy,
    SwapReport,
)
from temper.rollout.engine.tensorrt_llm import sampling as words
from temper.rollout.engine.tensorrt_llm.capabilities import refuse_policy, refuse_request
from temper.rollout.engine.tensorrt_llm.gate import Gate
from temper.rollout.engine.tensorrt_llm.names import Library, find_library
from temper.rollout.engine.tensorrt_llm.play import Play
from temper.rollout.engine.tensorrt_llm.weights import Share, read_tensors, share_by_cuda_ipc
from temper.rollout.engine.tensorrt_llm.workers import Options, Workers
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, TemperError, Unavailable

_LAST = (FinishReason.STOP, FinishReason.LENGTH)


class TensorRtEngine:
    """See :class:`temper.rollout.engine.base.Engine`."""

    def __init__(self, clock: Clock, options: Options, *, share: Share = share_by_cuda_ipc) -> None:
        self._clock, self._options, self._share = clock, options, share
        self._desk = Desk(options.max_context)
        self._gate = Gate(options.slots, clock.monotonic)
        self._library: Library | None = None
        self._workers: Workers | None = None
        self._vocab = 0
        self._shapes: Mapping[str, torch.Size] | None = None
        self._staged: dict[int, dict[str, torch.Tensor]] = {}
        self._plays: dict[str, Play] = {}
        self._kept: dict[str, list[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._swapping = asyncio.Lock()
        self._paused = self._closed = False
        self._torn = ""  # why the workers' weights are of no version
        self._generated = self._prefilled = self._reused = 0

    @property
    def info(self) -> EngineInfo:
        """Identity and numeric mode; the vendor's kernels make no promise about neighbours."""
        version = self._library.version if self._library else "not started"
        numeric = f"{self._options.dtype}, kv {self._options.kv_dtype}"
        return EngineInfo(
            "tensorrt_llm", version, numeric, batch_invariant=False, max_context=self._desk.max_context
        )

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._library is not None and not self._closed and not self._torn

    async def start(self) -> None:
        """Find the vendor's package. Raises ``Rejected`` that names what is missing."""
        self._library = await asyncio.to_thread(find_library)

    async def close(self) -> None:
        """Abort what runs and shut the vendor down."""
        if self._closed:
            return
        self._closed = True
        self._gate.shut()
        for play in list(self._plays.values()):
            self._finish(play, FinishReason.ABORT)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._workers is not None:
            await self._workers.shutdown()

    async def load(self, files: PolicyFiles) -> None:
        """Check a version's tensors and keep them in host memory; the first one launches the vendor's workers."""
        if self._library is None or self._closed:
            raise Unavailable("engine: not started, or closed")
        vocab = files.config.get("vocab_size")
        if not isinstance(vocab, int) or vocab < 1 or (self._vocab and vocab != self._vocab):
            raise Rejected(
                f"config.json: vocab_size {vocab!r} does not fit the loaded policy of {self._vocab}"
            )
        tensors = await asyncio.to_thread(read_tensors, files, self._shapes)
        if self._workers is None:
            limit = min(self._options.max_context, int(files.config.get("max_position_embeddings", 1 << 31)))
            self._workers = await Workers.launch(self._library, self._options, files.config, limit)
            self._vocab, self._shapes = vocab, {name: tensor.shape for name, tensor in tensors.items()}
            self._desk.open(limit, vocab)
        self._staged[files.version] = tensors

    async def swap(self, version: int, policy: SwapPolicy = SwapPolicy.KEEP) -> SwapReport:
        """Give the workers a staged version while nothing is in flight."""
        begun = self._clock.monotonic()
        async with self._swapping:
            if self._closed:
                raise Unavailable("engine: closed")
            if version == self._desk.version and not self._torn:
                return SwapReport(version, self._gate.inside, policy)
            if version not in self._staged:
                raise Rejected(f"engine: version {version} is not loaded; staged are {sorted(self._staged)}")
            refuse_policy(policy, self._gate.inside)
            self._gate.shut()
            try:
                going_on = self._clear(policy)
                await self._drain(f"version {version} is not current")
                await self._install(version)
            finally:
                self._reopen()
            return SwapReport(version, going_on, policy, self._clock.monotonic() - begun)

    async def pause(self) -> None:
        """Abort what runs in the vendor; it waits here with the tokens it has."""
        self._paused = True
        self._gate.shut()
        self._interrupt()
        await self._drain("it is not paused yet")

    async def resume(self) -> None:
        """Send it again."""
        self._paused = False
        if not self._swapping.locked():
            self._reopen()

    def submit(self, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        """Queue a request."""
        if not self.alive or not self._vocab:
            raise Unavailable(f"engine: {self._torn or 'no policy is loaded, or the engine has stopped'}")
        refuse_request(request)
        words.refuse_logits(request, self._vocab, self._options.logits_bytes)
        future = self._desk.register(request, asyncio.get_running_loop(), self.cancel, sink)
        prompt = [*self._kept.pop(request.continues or "", []), *request.tokens]
        limit = min(request.sampling.max_tokens, self._desk.max_context - len(prompt))
        play = Play(request, prompt, limit)
        self._plays[request.request_id] = play
        self._spawn(play, self._perform(play))
        if request.deadline is not None:
            play.timer = self._spawn(play, self._expire(play, request.deadline))
        return future

    def cancel(self, request_id: str) -> None:
        """Finish with reason ``abort``; what the vendor still says is ignored."""
        play = self._plays.get(request_id)
        if play is not None:
            self._finish(play, FinishReason.ABORT)

    def release(self, request_id: str) -> None:
        """Forget the ids of a finished sequence."""
        if self._desk.forget(request_id):
            del self._kept[request_id]

    def stats(self) -> Stats:
        """Counters. The vendor's steps and pool are its own: 0 steps, no blocks."""
        running = [play for play in self._plays.values() if play.running is not None]
        return Stats(
            version=self._desk.version,
            running=self._gate.inside,
            waiting=len(self._plays) - len(running),
            kept=len(self._kept),
            slots=self._options.slots,
            kv_tokens=sum(len(play.prompt) + len(play.output) for play in running),
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            steps=0,
            busy_seconds=self._gate.busy_seconds,
            cached_prompt_tokens=self._reused,
            paused=self._paused,
        )

    async def _perform(self, play: Play) -> None:
        """Submissions until it has ended."""
        while not play.done:
            await self._gate.enter(play.request.priority)
            try:
                if not play.done:
                    await self._submission(play)
            finally:
                play.running = None
                self._gate.leave()

    async def _submission(self, play: Play) -> None:
        """One request of the vendor's, to its end."""
        request, first, start = play.request, play.version < 0, len(play.output)
        sent = play.context()
        streaming = not words.needs_logits(request.sampling)  # logits come whole, at the end
        play.version = self._desk.version
        play.interrupted = False
        play.running = self._existing.generate(
            request, sent, start, play.limit - start, play.version, streaming=streaming
        )
        if streaming:
            async for result in play.running:
                self._take(play, result, start)
        else:
            self._take(play, await play.running.aresult(), start)
        reused = int(getattr(play.running, "cached_tokens", 0))  # 0 where the release does not tell
        play.cached = reused if first else play.cached
        self._reused += reused
        self._prefilled += len(sent) - reused
        reason = play.ended() or words.finish_reason(play.running.outputs[0])
        if reason is None and not play.interrupted:
            reason = FinishReason.ABORT  # by the vendor's own decision
        if reason is not None:
            self._finish(play, reason)

    def _take(self, play: Play, result: Any, start: int) -> None:
        """What is new since the last look; ``start`` output tokens are of earlier submissions."""
        if play.done:
            return
        drawn = words.drawn_tokens(play.request.sampling, result.outputs[0], len(play.output) - start)
        if drawn:
            self._generated += len(drawn)
            self._desk.emit([play.take(drawn)])

    def _finish(self, play: Play, reason: FinishReason) -> None:
        """Once; whatever is in flight is aborted and no longer listened to."""
        if play.done:
            return
        self._drop(play)
        if play.running is not None and reason not in _LAST:
            play.running.abort()
        if play.request.keep and reason in _LAST:
            self._kept[play.request.request_id] = play.context()
        for_training = self._options.kv_dtype == "auto"
        self._desk.resolve([play.complete(reason, for_training=for_training)])

    def _clear(self, policy: SwapPolicy) -> int:
        """Make what runs leave the vendor in the policy's way. Says how many go on after the swap."""
        running = [play for play in self._plays.values() if play.running is not None]
        if policy is SwapPolicy.ABORT:
            for play in running:
                self._finish(play, FinishReason.ABORT)
        if policy in (SwapPolicy.RECOMPUTE, SwapPolicy.REQUEUE):
            self._interrupt()
            return len(running)
        return 0

    def _interrupt(self) -> None:
        """Abort in the vendor only: its end is no end here, so the request is sent again when the gate opens."""
        for play in self._plays.values():
            if play.running is not None:
                play.interrupted = True
                play.running.abort()

    async def _drain(self, otherwise: str) -> None:
        """Wait until nothing is in flight."""
        try:
            async with self._clock.timeout(self._options.swap_wait_s):
                await self._gate.empty()
        except TimeoutError:
            raise Unavailable(
                f"engine: requests run for over {self._options.swap_wait_s:g} s, {otherwise}"
            ) from None

    async def _install(self, version: int) -> None:
        """Until all of it is done the workers' weights are of no version, and nobody is served."""
        tensors = self._staged.pop(version)
        self._torn = f"the update to version {version} did not come to its end; load and swap a version again"
        try:
            await self._existing.install(tensors, version, self._share, self._options.tensor_parallel)
            self._torn = ""
        finally:
            if self._torn:
                for play in list(self._plays.values()):
                    self._fail(play, Unavailable(f"engine: {self._torn}"))
        self._desk.version = version
        self._staged = {staged: kept for staged, kept in self._staged.items() if staged > version}

    @property
    def _existing(self) -> Workers:
        assert self._workers is not None, (
            "launched by the first load, which every swap and request comes after"
        )
        return self._workers

    def _reopen(self) -> None:
        if not self._paused and not self._closed and not self._torn and self._desk.version >= 0:
            self._gate.open()

    async def _expire(self, play: Play, deadline: float) -> None:
        await self._clock.sleep(deadline - self._clock.monotonic())
        self._finish(play, FinishReason.DEADLINE)

    def _spawn(self, play: Play, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"play-{play.request.request_id}")
        self._tasks.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._fail(play, error)

        task.add_done_callback(ended)
        return task

    def _fail(self, play: Play, error: BaseException) -> None:
        """The vendor refused or broke a submission: the caller learns it, the engine goes on."""
        if play.done:
            return
        self._drop(play)
        name = play.request.request_id
        known = isinstance(error, TemperError)
        self._desk.fail(
            name, error if known else Unavailable(f"request {name}: tensorrt_llm failed: {error}")
        )

    def _drop(self, play: Play) -> None:
        play.done = True
        del self._plays[play.request.request_id]
        if play.timer is not None and play.timer is not asyncio.current_task():
            play.timer.cancel()
