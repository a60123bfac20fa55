"""The rollout actor: a group command in, one blob and one record out, then the ack.

    delivery -> admitted (version here?) -> episodes -> table to object storage -> record to the log -> ack
                     |                         |                   |
                     +-- nak with delay <------+-------------------+   (heartbeats all the while)

Every effect has a deterministic id: the record's is the group's, the blob's key carries its content's digest. So a
redelivery, or two workers that finish the same group, leave one record, and it names a blob that no one overwrites.
A group whose job has ended is acked without an effect, before it begins or while it plays. A worker whose weights are past the
staleness bound fetches nothing. The actor owns nothing durable; what it has stored of unfinished samples may save a redelivery work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import GroupCommand, GroupRecord
from temper.rollout.config import RolloutConfig
from temper.rollout.group import Group, Policy, Sample, record_of, table_of
from temper.rollout.jobs import Jobs
from temper.rollout.metrics import RolloutMetrics
from temper.rollout.outbox import Outbox, now
from temper.rollout.partials import Partials
from temper.rollout.permits import Permits
from temper.rollout.policies import Policies
from temper.rollout.sandbox import Sandboxes
from temper.rollout.state import Offer, Worker
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import Bus, Delivery, kept_alive
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.runtime.log.base import EventLog
from temper.runtime.telemetry import get_logger
from temper.runtime.tracing import span

SERVICE = "rollout"


class RolloutActor:
    """Serves group commands of all jobs, at most ``worker.groups`` at a time."""

    def __init__(
        self,
        config: RolloutConfig,
        bus: Bus,
        log: EventLog,
        blobs: BlobStore,
        clock: Clock,
        worker: Worker,
        policies: Policies,
        sandboxes: Sandboxes,
        permits: Permits,
        metrics: RolloutMetrics,
        instance: str,
    ) -> None:
        self._config, self._bus, self._clock = config, bus, clock
        self._outbox = Outbox(blobs, log, clock, patience_s=config.worker.publish_wait_s)
        self._worker, self._policies, self._sandboxes = worker, policies, sandboxes
        self._metrics, self._instance = metrics, instance
        self._jobs = Jobs(bus, clock)
        self._permits, self._partials = permits, Partials(blobs, flush_tokens=config.worker.flush_tokens)
        self._beat_s = topology.load().consumer(SERVICE).ack_wait_s / 3
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[str, asyncio.Task[bool]] = {}
        self._playing: Counter[str] = Counter()
        self._admitting: set[asyncio.Task[Policy]] = set()
        self._sweeping: dict[str, asyncio.Task[None]] = {}
        policies.on_over = self._sweep
        self._stopping = asyncio.Event()
        self._log = get_logger()

    async def run(self) -> None:
        """Take commands until :meth:`drain`."""
        deliveries = self._bus.commands(SERVICE, concurrency=self._config.worker.groups)
        stopping = asyncio.create_task(self._stopping.wait())
        coming: asyncio.Future[Delivery] | None = None
        try:
            while not self._stopping.is_set():
                coming = asyncio.ensure_future(self._next(deliveries))
                await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    self._begin(coming.result())
        finally:
            stopping.cancel()
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait({coming})  # a generator can be closed only when nobody waits in it
            await deliveries.aclose()

    async def _next(self, deliveries: AsyncIterator[Delivery]) -> Delivery:
        await self._policies.ready()
        return await anext(deliveries)

    async def drain(self) -> None:
        """Stop fetching, hand back what has not begun to play, and see the rest to its end.

        A caller that cancels this hands back the rest as well.
        """
        self._stopping.set()
        for admission in self._admitting:
            admission.cancel()
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *self._serving.values(), *self._sweeping.values()]
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for task in tasks:
                task.cancel()

    def _begin(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._deliver(delivery))
        self._tasks.add(task)
        self._metrics.running.set(len(self._tasks))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._metrics.running.set(len(self._tasks))
        if not task.cancelled() and (bug := task.exception()) is not None:
            # Not one of ours: the delivery stays unacked, is handed out again, and counts towards poison.
            self._log.error("group.crashed", exc_info=bug)

    async def _deliver(self, delivery: Delivery) -> None:
        """From a delivery to its end. Nothing is terminated but what cannot be read: see :meth:`_hand_back`."""
        try:
            command = delivery.message(GroupCommand)
        except Rejected as error:
            await delivery.term(str(error))
            return
        purpose = common.Purpose.Name(command.purpose).removeprefix("PURPOSE_").lower()
        begun = self._clock.monotonic()
        try:
            with span("rollout.group", traceparent=delivery.envelope.traceparent, group=command.group_id):
                async with kept_alive(delivery, self._beat_s, self._clock):
                    made = await self._serve(command, delivery.delivered)
                await self._outbox.insist(delivery.ack)
        except TemperError as error:
            self._metrics.groups.labels(purpose, type(error).__name__).inc()
            await self._hand_back(delivery, command, error)
            return
        except asyncio.CancelledError:
            with suppress(Unavailable):  # as in _hand_back
                await delivery.nak()
            raise
        self._metrics.groups.labels(purpose, "done" if made else "unwanted").inc()
        self._metrics.group_seconds.observe(self._clock.monotonic() - begun)

    async def _hand_back(self, delivery: Delivery, command: GroupCommand, error: TemperError) -> None:
        """Nak, whatever the error: only the limit of deliveries makes a group poison, so that it is settled once."""
        delay = self._config.worker.retry_delay_s * delivery.delivered
        self._log.warning(
            "group.failed", group=command.group_id, attempt=delivery.delivered, error=str(error)
        )
        with suppress(Unavailable):  # the broker is away: silence hands it out again as well
            await delivery.nak(delay)

    async def _serve(self, command: GroupCommand, attempt: int) -> bool:
        """Run a group; a second delivery of one that runs here already shares its outcome."""
        work = self._serving.get(command.group_id)
        if work is None:
            work = asyncio.create_task(self._run_group(command, attempt), name=command.group_id)
            self._serving[command.group_id] = work
            work.add_done_callback(lambda _: self._serving.pop(command.group_id))
        return await asyncio.shield(work)

    async def _run_group(self, command: GroupCommand, attempt: int) -> bool:
        """Make the group unless its job has ended, or ends meanwhile; says whether it was made.

        While the job rests, so does the group: it keeps its delivery, gives up its sandboxes, and is made again afterwards.
        """
        job_id, making = command.job_id, 0
        self._playing[job_id] += 1
        try:
            while not await self._jobs.ended(job_id):
                if self._rests(job_id):
                    if self._stopping.is_set():
                        raise Unavailable(f"{job_id} is paused, and this worker goes away")
                    await self._policies.pause(job_id)
                    await self._jobs.rest()
                    continue
                await self._policies.resume(job_id)
                if await self._made(command, attempt, making):
                    return True
                making += 1
        finally:
            self._playing[job_id] -= 1
        self._log.info("group.unwanted", group=command.group_id, job=job_id)
        self._sweep(job_id)
        return False

    def _rests(self, job_id: str) -> bool:
        """Whether a paused job's groups are held back.

        They take no more than half of the slots: other jobs need the rest. Where there are more, they are played to their end.
        """
        return self._jobs.paused(job_id) and self._playing[job_id] <= max(1, self._worker.slots // 2)

    async def _made(self, command: GroupCommand, attempt: int, number: int) -> bool:
        """Make the group for the ``number``-th time; False when its job ends or comes to rest first."""
        making = asyncio.create_task(self._make_group(command, attempt, number))
        unwanted = asyncio.create_task(self._until_unwanted(command.job_id))
        try:
            await asyncio.wait({making, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                await making  # raises why it could not be made
                return True
            await unwanted
            return False
        finally:
            for task in (making, unwanted):
                task.cancel()
            await asyncio.wait({making, unwanted})

    async def _until_unwanted(self, job_id: str) -> None:
        while not (await self._jobs.ended(job_id) or self._rests(job_id)):
            await self._jobs.rest()

    async def _make_group(self, command: GroupCommand, attempt: int, number: int) -> None:
        """Admit, play, publish. ``number``: how often it was begun in this delivery before."""
        started = now(self._clock)
        needs_weights = command.purpose != common.PURPOSE_DEMO
        bound = command.max_staleness if command.HasField("max_staleness") else None
        offer = Offer(command.group_id, command.job_id, command.min_version, needs_weights, bound)
        try:
            policy = await self._admit(offer)
            line = self._worker.line_start(command.job_id)
            await self._policies.make_room()
            samples, declared = await self._play(command, attempt, policy, number)
        finally:
            self._worker.finish(command.group_id)
        record = record_of(command, samples, policy)
        record.reward_min, record.reward_max = declared
        record.worker, record.attempt = self._instance, attempt
        record.engine = _engine_name(policy)
        if self._worker.line_start(command.job_id) > line and _given_up(record):
            record.drop_reason = common.DROP_REASON_ROLLED_BACK
        record.started_at.CopyFrom(started)
        await self._outbox.put(table_of(command, samples, policy, attempt), record)
        await self._partials.clear(command, attempt=attempt)
        self._count(record)

    async def _admit(self, offer: Offer) -> Policy:
        admission = asyncio.create_task(self._policies.admit(offer, self._config.worker.version_wait_s))
        self._admitting.add(admission)
        try:
            return await admission
        finally:
            self._admitting.discard(admission)
            admission.cancel()

    async def _play(
        self, command: GroupCommand, attempt: int, policy: Policy, number: int
    ) -> tuple[list[Sample], tuple[float, float]]:
        """A group's samples, and the range of rewards that its environment declares."""
        around = self._sandboxes, self._clock, self._permits, self._partials
        group = Group(command, attempt, policy, *around, making=number)
        try:
            return await group.run(), group.reward_range
        except Unavailable:
            if policy.engine is not None and not policy.engine.alive:
                await self._policies.forget_engine(command.job_id)
            raise

    def _sweep(self, job_id: str) -> None:
        """Clear away what unfinished groups of a job that is over have left."""
        under_way = self._sweeping.get(job_id)
        if under_way is None or under_way.done():
            self._sweeping[job_id] = asyncio.create_task(
                self._partials.clear_job(job_id), name=f"sweep-{job_id}"
            )

    def _count(self, record: GroupRecord) -> None:
        for sample in record.samples:
            name = common.SampleClass.Name(sample.sample_class).removeprefix("SAMPLE_CLASS_").lower()
            self._metrics.samples.labels(name).inc()
            self._metrics.tokens.inc(sample.action_tokens - sample.resumed_tokens)
            self._metrics.resumed.inc(sample.resumed_tokens)
            for use in sample.tools:
                self._metrics.tool_calls.labels(use.outcome).inc()


def _given_up(record: GroupRecord) -> bool:
    return any(sample.sample_class == common.SAMPLE_CLASS_STALE for sample in record.samples)


def _engine_name(policy: Policy) -> str:
    if policy.engine is None:
        return "oracle"
    info = policy.engine.info
    return f"{info.name}/{info.build} {info.numeric}"
