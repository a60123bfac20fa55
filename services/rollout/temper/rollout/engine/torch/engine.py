"""The engine's thread, and the futures through which the event loop sees it.

The event loop never touches the batch: it drops closures into an inbox, the thread runs them at a step edge. So a swap,
a cancel or a new request lands between two steps by construction, and the batch needs no lock.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

from temper.rollout.engine.admission import Desk
from temper.rollout.engine.base import Completion, EngineInfo, PolicyFiles, Request, Stats, SwapReport
from temper.rollout.engine.torch.architecture import read_architecture
from temper.rollout.engine.torch.batch import Batch, Limits
from temper.rollout.engine.torch.cache import new_buffer
from temper.rollout.engine.torch.model import Model, Piece
from temper.rollout.engine.torch.weights import Weights, read_weights
from temper.runtime.errors import Rejected, Unavailable

# The interpreter's switch interval while stepping, in seconds. A step is some hundred short torch calls, each of which
# gives up the interpreter lock; at the default of 5 ms a busy event loop would make every one of them wait that long.
_SWITCH_INTERVAL = 0.0002

_SWAP_S = 60.0  # far longer than any step; passes only when the step thread has died


class TorchEngine:
    """One policy on CPU. See :class:`temper.rollout.engine.base.Engine`."""

    def __init__(
        self,
        *,
        slots: int = 128,
        max_context: int = 2048,
        prefill_tokens: int = 1024,
        kept_tokens: int = 262_144,
        threads: int = 1,
        batch_invariant: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = Limits(slots, prefill_tokens, kept_tokens, max_context)
        self._threads, self._batch_invariant, self._monotonic = threads, batch_invariant, monotonic
        self._staged: dict[int, Weights] = {}
        self._model: Model | None = None
        self._batch: Batch | None = None  # belongs to the thread once it exists
        self._desk = Desk(max_context)
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._busy_seconds = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="rollout-engine", daemon=True)

    @property
    def info(self) -> EngineInfo:
        """Identity and numeric mode."""
        return EngineInfo(
            "torch",
            str(torch.__version__),
            "fp32",
            batch_invariant=self._batch_invariant,
            max_context=self._desk.max_context,
        )

    @property
    def alive(self) -> bool:
        """Whether the step thread runs."""
        return self._thread.is_alive()

    async def start(self) -> None:
        """Start the step thread."""
        self._loop = asyncio.get_running_loop()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._thread.start()

    async def close(self) -> None:
        """Abort what runs and end the thread."""
        self._closing = True
        with self._wake:
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    async def load(self, files: PolicyFiles) -> None:
        """Parse, check and probe on another thread, beside the running version."""
        model, weights = await asyncio.to_thread(self._stage, files)
        if self._model is None:
            self._model = model
            limits = Limits(
                self._limits.slots,
                self._limits.prefill_tokens,
                self._limits.kept_tokens,
                min(self._limits.max_context, model.shape.max_context),
            )
            self._desk.open(limits.max_context, model.shape.vocab)
            self._post(lambda: self._build(Batch(model, limits)))
        self._staged[files.version] = weights

    async def swap(self, version: int) -> SwapReport:
        """Replace the weights between two steps; running sequences go on."""
        weights = self._staged.pop(version, None)
        if weights is None and version != self._desk.version:
            raise Rejected(f"engine: version {version} is not loaded; staged are {sorted(self._staged)}")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[SwapReport] = loop.create_future()

        def apply() -> None:
            batch = self._batch
            assert batch is not None
            if weights is not None:
                batch.weights = weights
            report = SwapReport(version, batch.running, "keep")
            loop.call_soon_threadsafe(_settle, done, report)

        self._post(apply)
        try:
            async with asyncio.timeout(_SWAP_S):
                report = await done
        except TimeoutError:
            raise Unavailable(
                f"engine: no step edge within {_SWAP_S:g} s, version {version} is not current"
            ) from None
        self._desk.version = version
        self._staged = {staged: kept for staged, kept in self._staged.items() if staged > version}
        return report

    def submit(self, request: Request) -> asyncio.Future[Completion]:
        """Queue a request."""
        if self._loop is None or self._model is None or not self._thread.is_alive():
            raise Unavailable("engine: no policy is loaded, or the engine has stopped")
        future = self._desk.register(request, self._loop, self.cancel)
        self._post(lambda: self._existing.add(request))
        return future

    def cancel(self, request_id: str) -> None:
        """Finish with reason ``abort``."""
        if self._desk.is_open(request_id):
            self._post(lambda: self._existing.cancel(request_id))

    def release(self, request_id: str) -> None:
        """Drop a kept sequence."""
        if self._desk.forget(request_id):
            self._post(lambda: self._existing.shelf.drop(request_id))

    def stats(self) -> Stats:
        """Counters, read without a lock: each is one integer, and a step's worth of skew is harmless."""
        batch = self._batch
        return Stats(
            version=self._desk.version,
            running=batch.running if batch else 0,
            waiting=batch.waiting if batch else 0,
            kept=len(batch.shelf) if batch else 0,
            slots=self._limits.slots,
            kv_tokens=batch.kv_tokens if batch else 0,
            generated_tokens=batch.generated if batch else 0,
            prefill_tokens=batch.prefilled if batch else 0,
            steps=batch.steps if batch else 0,
            busy_seconds=self._busy_seconds,
        )

    @property
    def _existing(self) -> Batch:
        assert self._batch is not None, "closures are posted after the one that builds the batch"
        return self._batch

    def _build(self, batch: Batch) -> None:
        self._batch = batch

    def _stage(self, files: PolicyFiles) -> tuple[Model, Weights]:
        with torch.inference_mode():
            torch.set_num_threads(self._threads)
            shape = read_architecture(files.config)
            if self._model is not None and shape != self._model.shape:
                raise Rejected(
                    f"config.json of version {files.version} describes another architecture than the loaded one"
                )
            model = self._model or Model(shape, batch_invariant=self._batch_invariant)
            weights = read_weights(shape, files.shards, files.version)
            _probe(model, weights)
            return model, weights

    def _post(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(work)
            self._wake.notify()

    def _run(self) -> None:
        """The thread: setup, running, teardown."""
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while not self._closing:
                    self._turn()
                self._do_posted()
                if self._batch is not None:
                    self._batch.cancel_all()
                    self._deliver(self._batch.drain())
        finally:
            # Reached by a failure too: whoever waits learns it at once, the traceback goes to threading.excepthook.
            self._tell(self._desk.fail_all)

    def _turn(self) -> None:
        """What was posted, one step, what finished."""
        self._do_posted()
        batch = self._batch
        begun = time.perf_counter()
        stepped = batch is not None and batch.step()
        if batch is not None:
            batch.expire(self._monotonic())
            self._deliver(batch.drain())
        if stepped:
            self._busy_seconds += time.perf_counter() - begun
            return
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._closing, timeout=self._patience())

    def _do_posted(self) -> None:
        with self._wake:
            posted, self._inbox = self._inbox, deque()
        for work in posted:
            work()

    def _patience(self) -> float | None:
        """Seconds to wait for work: until the next deadline, if anyone waits."""
        if self._batch is None or self._batch.next_deadline == float("inf"):
            return None
        return max(0.0, self._batch.next_deadline - self._monotonic())

    def _deliver(self, finished: Sequence[Completion]) -> None:
        if finished:
            self._tell(lambda: self._desk.resolve(finished))

    def _tell(self, work: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)


def _settle(future: asyncio.Future[SwapReport], report: SwapReport) -> None:
    if not future.done():
        future.set_result(report)


def _probe(model: Model, weights: Weights) -> None:
    """A forward on a few tokens: what is not finite now would poison every sample later."""
    tokens = list(range(min(8, model.shape.vocab, model.shape.max_context)))
    logits = model.prefill(weights, [Piece(tokens, 0, new_buffer(model.shape, len(tokens)))])
    if not bool(torch.isfinite(logits).all()):
        raise Rejected(
            f"weights of version {weights.version}: the probe forward gives numbers that are not finite"
        )
