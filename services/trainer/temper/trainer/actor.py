"""The trainer actor: a StartTraining command in, a trained policy out, then the ack.

    delivery -> session (one job, one engine) -> FINISHED or FAILED in the policy record -> ack
                   |
                   +-- trouble that may pass -> nak: any trainer goes on from the last snapshot

The command is kept in progress while it trains. A trainer that dies leaves it unacked; a trainer that lost the race for the policy
record (Stale) lets go. A cancelled job ends the session without a further word.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from temper.api.job.v1.job_pb2 import Job, JobState
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StartTraining, TrainingState
from temper.runtime import topology
from temper.runtime.bus.base import Delivery, Entry, kept_alive
from temper.runtime.errors import Rejected, Stale, TemperError, Unavailable
from temper.runtime.telemetry import get_logger
from temper.runtime.tracing import span
from temper.trainer.book import BUCKET, PolicyBook
from temper.trainer.engine import make_engine
from temper.trainer.engine.base import Engine
from temper.trainer.levels import sweep
from temper.trainer.patience import Patience
from temper.trainer.reports import timestamp
from temper.trainer.session import Session
from temper.trainer.surroundings import Surroundings

SERVICE, JOBS = "trainer", "jobs"
OVER = (JobState.JOB_STATE_CANCELLED, JobState.JOB_STATE_FAILED, JobState.JOB_STATE_SUCCEEDED)
RETRY_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0


class TrainerActor:
    """Serves training commands, at most ``worker.jobs`` at a time."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._beat_s = topology.load().consumer(SERVICE).ack_wait_s / 3
        self._sessions: dict[str, Session] = {}
        self._serving: dict[str, asyncio.Task[bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._log = get_logger()

    async def run(self) -> None:
        """Take commands until ``drain``."""
        deliveries = self._around.bus.commands(SERVICE, concurrency=self._around.config.worker.jobs)
        stopping = asyncio.create_task(self._stopping.wait())
        coming = asyncio.ensure_future(anext(deliveries))
        sweeping = asyncio.create_task(self._sweep())
        try:
            while not self._stopping.is_set():
                await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    self._begin(coming.result())
                    coming = asyncio.ensure_future(anext(deliveries))
        finally:
            for task in (stopping, sweeping, coming):
                task.cancel()
            await asyncio.wait({coming, sweeping})  # a generator that still runs cannot be closed
            await deliveries.aclose()

    async def drain(self) -> None:
        """Stop at the next step edge with a snapshot, and hand the commands back."""
        self._stopping.set()
        for session in self._sessions.values():
            session.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> dict[str, object]:
        """Facts for presence."""
        return {
            "jobs": len(self._sessions),
            "slots": self._around.config.worker.jobs,
            "training": ",".join(self._sessions),
        }

    def _begin(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._deliver(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # Not one of ours: the delivery stays unacked, is handed out again, and counts towards poison.
            self._log.error("trainer.crashed", exc_info=bug)

    async def _deliver(self, delivery: Delivery) -> None:
        """From a delivery to its end."""
        try:
            command = delivery.message(StartTraining)
        except Rejected as error:
            await delivery.term(str(error))
            return
        try:
            with span("trainer.job", traceparent=delivery.envelope.traceparent, job=command.job_id):
                async with kept_alive(delivery, self._beat_s, self._around.clock):
                    over = await self._serve(command)
            await (delivery.ack() if over else delivery.nak())
        except Stale as error:
            self._log.warning("trainer.superseded", job=command.job_id, error=str(error))
            await delivery.nak(
                RETRY_DELAY_S
            )  # the other one finishes it; then there is nothing left to do here
        except TemperError as error:
            self._log.error(
                "trainer.failed", job=command.job_id, attempt=delivery.delivered, error=str(error)
            )
            with suppress(Unavailable):  # the broker is away: silence hands it out again as well
                await delivery.nak(min(RETRY_DELAY_S * delivery.delivered, LONGEST_DELAY_S))

    async def _serve(self, command: StartTraining) -> bool:
        """Train a job; a second delivery of one that is trained here already shares its outcome."""
        work = self._serving.get(command.job_id)
        if work is None:
            work = asyncio.create_task(self._train(command), name=command.job_id)
            self._serving[command.job_id] = work
            work.add_done_callback(lambda _: self._serving.pop(command.job_id))
        return await asyncio.shield(work)

    async def _train(self, command: StartTraining) -> bool:
        """Run a session until it is over, or the job is. Whether the command is done with."""
        try:
            # on a thread: importing an engine's vendor takes seconds, and heartbeats must go on
            engine = await asyncio.to_thread(self._engine, command)
            session = Session(command, self._around, engine)
        except Rejected as error:
            await self._fail(command, error)
            return True
        self._sessions[command.job_id] = session
        self._around.metrics.jobs.set(len(self._sessions))
        training = asyncio.create_task(session.run())
        watching = asyncio.create_task(self._job_over(command.job_id))
        try:
            await asyncio.wait({training, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not training.done():
                self._log.info("trainer.job_over", job=command.job_id)
                training.cancel()
                await asyncio.wait({training})
                await session.forget()
                return True
            return await training
        except Rejected as error:
            await self._fail(command, error)
            return True
        finally:
            for task in (training, watching):
                task.cancel()
            await asyncio.wait({training, watching})
            del self._sessions[command.job_id]
            self._around.metrics.jobs.set(len(self._sessions))

    def _engine(self, command: StartTraining) -> Engine:
        """The engine that the job asks for. Raises Rejected when there is no such one here."""
        settings, asked = self._around.config.engine, command.spec.trainer
        layout = {field.name: value for field, value in asked.megatron.ListFields()}
        return make_engine(
            asked.engine or "torch",
            megatron=layout if asked.HasField("megatron") else None,
            micro_batch_tokens=asked.micro_batch_tokens or settings.micro_batch_tokens,
            threads=settings.threads,
        )

    async def _sweep(self) -> None:
        """Delete snapshots that jobs left on this machine and ended elsewhere."""
        with suppress(TemperError):  # the broker is away: the next start sweeps as well
            jobs = await self._around.bus.kv(JOBS)

            async def over(job_id: str) -> bool:
                entry = await jobs.get(job_id)
                return entry is not None and Job.FromString(entry.value).state in OVER

            swept = await sweep(self._around.config.snapshots, over)
            if swept:
                self._log.info("trainer.swept", jobs=swept)

    async def _job_over(self, job_id: str) -> None:
        """Return when the job's record says that nobody needs its training any more."""
        jobs = await self._around.bus.kv(JOBS)
        async for item in jobs.watch(job_id):
            if isinstance(item, Entry) and item.key == job_id and Job.FromString(item.value).state in OVER:
                return

    async def _fail(self, command: StartTraining, error: Rejected) -> None:
        """Say in the policy record that the job cannot be trained, and why."""
        around = self._around
        self._log.error("trainer.rejected", job=command.job_id, error=str(error))
        patience = Patience(around.clock, around.config.worker.patience_s)
        book = PolicyBook(await around.bus.kv(BUCKET), command.job_id, around.instance, patience)
        record = PolicyRecord(job_id=command.job_id)
        if (last := await book.open()) is not None:
            record.CopyFrom(last)
        record.state = TrainingState.TRAINING_STATE_FAILED
        record.message = str(error)
        record.fence, record.trainer = command.fence, around.instance
        record.published_at.CopyFrom(timestamp(around.clock.now()))
        await book.write(record)
