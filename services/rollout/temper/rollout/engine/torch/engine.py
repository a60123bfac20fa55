"""The engine's thread, and the futures through which the event loop sees it.

The event loop never touches the sequences: it drops closures into an inbox, the thread runs them at a step edge. So a swap,
a cancel or a new request lands between two steps by construction, and the loop of steps needs no lock.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

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
from temper.rollout.engine.torch.fast import Fast
from temper.rollout.engine.torch.inbox import Inbox, settle
from temper.rollout.engine.torch.loop import Loop
from temper.rollout.engine.torch.memory import Budget, longest_context
from temper.rollout.engine.torch.model import Model
from temper.rollout.engine.torch.roster import Limits
from temper.rollout.engine.torch.staging import stage
from temper.rollout.engine.torch.watch import Watch
from temper.rollout.engine.torch.weights import Weights
from temper.runtime.errors import Rejected, Unavailable

# The interpreter's switch interval while stepping, in seconds. A step is some hundred short torch calls, each of which
# gives up the interpreter lock; at the default of 5 ms a busy event loop would make every one of them wait that long.
_SWITCH_INTERVAL = 0.0002


@dataclass(slots=True)
class _Swap:
    """A swap that waits for what runs."""

    weights: Weights
    """What becomes current."""
    done: asyncio.Future[int]
    """Gets the number of sequences that go on."""


class TorchEngine:
    """One policy on CPU. See :class:`temper.rollout.engine.base.Engine`."""

    def __init__(
        self,
        *,
        slots: int = 128,
        max_context: int = 2048,
        prefill_tokens: int = 1024,
        kv_tokens: int = 131_072,
        memory_mib: int = 0,
        threads: int = 1,
        batch_invariant: bool = True,
        swap_wait_seconds: float = 600.0,
        step_limit_s: float = 120.0,
        fast: Fast | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = Budget(kv_tokens, memory_mib)
        self._limits = Limits(slots, prefill_tokens, longest_context(kv_tokens, max_context), batch_invariant)
        self._fast = fast or Fast()
        self._fast.check(batch_invariant=batch_invariant)
        self._threads, self._monotonic, self._swap_wait = threads, monotonic, swap_wait_seconds
        self._staged: dict[int, Weights] = {}
        self._model: Model | None = None
        self._steps: Loop | None = None  # belongs to the thread once it exists
        self._pending: _Swap | None = None  # the thread's too
        self._desk = Desk(self._limits.max_context)
        self._inbox = Inbox(edge_s=2 * step_limit_s)
        self._watch = Watch(step_limit_s)
        self._guard: asyncio.Task[None] | None = None
        self._given_up = ""  # why nothing comes from the thread any more
        self._over, self._hung = asyncio.Event(), False
        self._swapping = asyncio.Lock()
        self._busy_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="rollout-engine", daemon=True)

    @property
    def info(self) -> EngineInfo:
        """Identity and numeric mode."""
        return EngineInfo(
            "torch",
            str(torch.__version__),
            "w8a8" if self._fast.quantised else "fp32",
            batch_invariant=self._limits.exact,
            max_context=self._desk.max_context,
        )

    @property
    def alive(self) -> bool:
        """Whether the step thread runs, and its steps end."""
        return self._thread.is_alive() and not self._given_up

    async def start(self) -> None:
        """Start the step thread."""
        self._inbox.loop = asyncio.get_running_loop()
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._thread.start()
        self._guard = asyncio.create_task(self._give_up_a_hung_thread(), name="rollout-engine-watch")

    async def close(self) -> None:
        """Abort what runs and end the thread; one that hangs is left behind."""
        self._inbox.close()
        if self._guard is not None:
            await self._over.wait()  # said by the thread, or by the watch
            self._guard.cancel()
            if not self._hung:
                await asyncio.to_thread(self._thread.join)

    async def load(self, files: PolicyFiles) -> None:
        """Parse, check and probe on another thread, beside the running version."""
        held = [
            *self._staged.values(),
            *([self._steps.weights] if self._steps and self._steps.weights else []),
        ]
        model, weights = await asyncio.to_thread(
            stage,
            files,
            self._model,
            held,
            self._budget,
            self._threads,
            batch_invariant=self._limits.exact,
            quantised=self._fast.quantised,
        )
        if self._model is None:
            self._model = model
            limits = Limits(
                self._limits.slots,
                self._limits.prefill_tokens,
                min(self._limits.max_context, model.shape.max_context),
                self._limits.exact,
            )
            self._desk.open(limits.max_context, model.shape.vocab)
            steps = Loop(model, limits, self._budget.units, self._fast)
            self._inbox.post(lambda: self._build(steps))
        self._staged[files.version] = weights

    async def swap(self, version: int, policy: SwapPolicy = SwapPolicy.KEEP) -> SwapReport:
        """Replace the weights between two steps."""
        begun = time.perf_counter()
        async with self._swapping:
            if not self.alive:
                raise Unavailable(self._given_up or "engine: it is not started")
            if version == self._desk.version:
                return SwapReport(version, self.stats().running, policy)
            weights = self._staged.get(version)
            if weights is None:
                raise Rejected(f"engine: version {version} is not loaded; staged are {sorted(self._staged)}")
            running = await self._apply(weights, policy)
            self._desk.version = version
            self._staged = {staged: kept for staged, kept in self._staged.items() if staged > version}
            return SwapReport(version, running, policy, time.perf_counter() - begun)

    async def pause(self) -> None:
        """Stop stepping at the next step edge."""
        await self._inbox.at_edge(lambda: self._set_paused(True), "not paused")

    async def resume(self) -> None:
        """Step again."""
        await self._inbox.at_edge(lambda: self._set_paused(False), "not resumed")

    def submit(self, request: Request, sink: Sink | None = None) -> asyncio.Future[Completion]:
        """Queue a request."""
        loop = self._inbox.loop
        if loop is None or self._model is None or not self.alive:
            raise Unavailable(self._given_up or "engine: no policy is loaded, or the engine has stopped")
        future = self._desk.register(request, loop, self.cancel, sink)
        self._inbox.post(lambda: self._existing.add(request, watched=sink is not None))
        return future

    def cancel(self, request_id: str) -> None:
        """Finish with reason ``abort``."""
        if self._desk.is_open(request_id):
            self._inbox.post(lambda: self._existing.cancel(request_id))

    def release(self, request_id: str) -> None:
        """Drop a kept sequence."""
        if self._desk.forget(request_id):
            self._inbox.post(lambda: self._existing.schedule.release(request_id))

    def stats(self) -> Stats:
        """Counters, read without a lock: each is one integer, and a step's worth of skew is harmless."""
        steps = self._steps
        if steps is None:
            return Stats(self._desk.version, 0, 0, 0, self._limits.slots, 0, 0, 0, 0, 0.0)
        return Stats(
            version=self._desk.version,
            running=steps.running,
            waiting=len(steps.schedule.waiting),
            kept=len(steps.schedule.kept),
            slots=self._limits.slots,
            kv_tokens=steps.kv_tokens,
            generated_tokens=steps.generated,
            prefill_tokens=steps.prefilled,
            steps=steps.steps,
            busy_seconds=self._busy_seconds,
            cached_prompt_tokens=steps.schedule.hits,
            preemptions=steps.schedule.preemptions,
            drafts_proposed=steps.proposed,
            drafts_accepted=steps.accepted,
            paused=steps.paused,
            blocks=steps.pool.book(),
        )

    @property
    def _existing(self) -> Loop:
        assert self._steps is not None, "closures are posted after the one that builds the loop"
        return self._steps

    def _build(self, steps: Loop) -> None:
        self._steps = steps

    def _set_paused(self, paused: bool) -> None:
        if self._steps is not None:
            self._steps.paused = paused

    async def _apply(self, weights: Weights, policy: SwapPolicy) -> int:
        """Have the thread swap; returns how many sequences go on."""
        if policy is not SwapPolicy.WAIT:
            return await self._inbox.at_edge(
                lambda: self._existing.swap(weights, policy), f"version {weights.version} is not current"
            )
        swap = _Swap(weights, asyncio.get_running_loop().create_future())
        self._inbox.post(lambda: self._hold_for(swap))
        late = f"sequences run for over {self._swap_wait:g} s, version {weights.version} is not current"
        try:
            return await self._inbox.wait_for(swap.done, self._swap_wait, late)
        except Unavailable:
            await self._inbox.at_edge(lambda: self._give_up(swap), late)
            if swap.done.done():  # it came through at the last moment
                return swap.done.result()
            raise

    def _hold_for(self, swap: _Swap) -> None:
        self._pending, self._existing.schedule.held_back = swap, True

    def _give_up(self, swap: _Swap) -> None:
        if self._pending is swap:
            self._pending, self._existing.schedule.held_back = None, False

    def _swap_if_drained(self, steps: Loop) -> bool:
        """Apply a swap that waits, once nothing runs; says whether it did."""
        swap = self._pending
        if swap is None or steps.unfinished:
            return False
        self._give_up(swap)
        running = steps.swap(swap.weights, SwapPolicy.WAIT)
        self._inbox.tell(lambda: settle(swap.done, running))
        return True

    def _run(self) -> None:
        """The thread: setup, running, teardown."""
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while not self._inbox.closing:
                    self._turn()
                self._inbox.run()
                if self._steps is not None:
                    self._steps.cancel_all()
                    self._deliver(self._steps)
        finally:
            # Reached by a failure too: whoever waits learns it at once, the traceback goes to threading.excepthook.
            failure = sys.exc_info()[1]
            why = "engine: stopped" if failure is None else f"engine: a step failed: {failure!r}"
            self._watch.leave()
            self._inbox.tell(lambda: self._fail_all(why))

    def _turn(self) -> None:
        """What was posted, one step, what came out."""
        self._watch.enter()
        self._inbox.run()
        steps = self._steps
        begun = time.perf_counter()
        stepped = swapped = False
        if steps is not None:
            stepped = steps.step()
            steps.expire(self._monotonic())
            swapped = self._swap_if_drained(steps)
            self._deliver(steps)
        if stepped:
            self._busy_seconds += time.perf_counter() - begun
        if stepped or swapped:
            return
        self._watch.leave()
        self._inbox.sleep(self._patience())

    async def _give_up_a_hung_thread(self) -> None:
        await self._watch.until_overdue()
        steps = self._steps
        running = [] if steps is None else [one.request.request_id for one in steps.schedule.admitted]
        self._hung = True
        self._inbox.close()  # should the thread come back, it ends
        self._fail_all(f"engine: {self._watch.culprit(self._thread, running)}")

    def _fail_all(self, why: str) -> None:
        """On the event loop: nothing comes from the thread any more."""
        self._given_up = self._given_up or why
        self._inbox.fail(why)
        self._desk.fail_all(why)
        self._over.set()

    def _patience(self) -> float | None:
        """Seconds to wait for work: until the next deadline, if anyone waits."""
        if self._steps is None or self._steps.next_deadline == float("inf"):
            return None
        return max(0.0, self._steps.next_deadline - self._monotonic())

    def _deliver(self, steps: Loop) -> None:
        emitted, finished = steps.drain()
        if emitted or finished:
            self._inbox.tell(lambda: (self._desk.emit(emitted), self._desk.resolve(finished)))
