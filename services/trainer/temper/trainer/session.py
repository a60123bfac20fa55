"""One job's training from its first policy to its last: open, step after step, finish.

    open     read the policy record, restore the newest whole snapshot, list the steps announced since (to be made again)
    step     wait for groups -> fetch -> train (worker thread) -> publish -> snapshot (in the background)
    finish   last record says FINISHED

Order of a step's effects: weights and manifest, StepRecord, PolicyRecord, snapshot. A crash between any two is harmless: the step
is made again from the same groups, gives the same weights bit for bit, and writes under the same names and ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StartTraining, TrainingState
from temper.runtime.telemetry import get_logger
from temper.trainer.book import BUCKET, PolicyBook
from temper.trainer.compute import train
from temper.trainer.engine.base import Engine, StepOutcome
from temper.trainer.feed import Feed
from temper.trainer.keeper import Keeper
from temper.trainer.mismatch import MismatchWatch
from temper.trainer.notices import Notices
from temper.trainer.origin import Origin, weights_among
from temper.trainer.patience import Patience
from temper.trainer.plan import PhasePlan, plan
from temper.trainer.recovery import STEPS, Recovered, recover
from temper.trainer.reports import Standing, StepFacts, Timing, policy_record, step_record
from temper.trainer.reward_models import publish_reward_model
from temper.trainer.snapshot import Snapshot, Snapshots
from temper.trainer.state import Arrival
from temper.trainer.surroundings import Surroundings
from temper.trainer.weights import Publisher

T = TypeVar("T")

OVER = (TrainingState.TRAINING_STATE_FINISHED, TrainingState.TRAINING_STATE_FAILED)


class Session:
    """Trains one job. Attributes set in ``_open`` are valid from then on."""

    def __init__(self, command: StartTraining, around: Surroundings, engine: Engine) -> None:
        self._command = command
        self._job = command.job_id
        self._around = around
        self._clock = around.clock
        self._engine = engine
        self._phases: Sequence[PhasePlan] = plan(command.spec)
        self._patience = Patience(around.clock, around.config.worker.patience_s)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"train-{self._job}")
        self._snapshots = Snapshots(around.blobs, self._job, keep=around.config.snapshots.keep)
        self._keeper = Keeper(self._snapshots, around.metrics)
        self._mismatch = MismatchWatch()
        self._notices = Notices(around, self._job)
        self._news = asyncio.Event()
        self._stopping = False
        self._started = around.clock.monotonic()
        self._waited = 0.0
        self._log = get_logger().bind(job=self._job)

    # ------------------------------------------------------------- life

    async def run(self) -> bool:
        """Train; False when it was stopped before the end, to go on elsewhere. Raises TemperError when it cannot go on."""
        try:
            if not await self._open():
                return True
            self._reading = asyncio.create_task(self._feed.run())
            self._reading.add_done_callback(lambda _: self._news.set())
            try:
                while not (self._ledger.finished or self._stopping):
                    await self._step()
            finally:
                self._reading.cancel()
                await asyncio.wait({self._reading})
            return await self._finish()
        finally:
            await self._keeper.close()
            self._engine.close()
            self._thread.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Ask for a stop at the next step edge, with a snapshot."""
        self._stopping = True
        self._news.set()

    async def _finish(self) -> bool:
        if not self._ledger.finished:
            await self._keeper.settle(self._cut)
            return False
        await self._keeper.idle()
        self._standing.state = TrainingState.TRAINING_STATE_FINISHED
        await self._tell()
        await self._snapshots.clear()
        self._log.info("trainer.finished", steps=self._ledger.step, version=self._ledger.version)
        return True

    # ------------------------------------------------------------- open

    async def _open(self) -> bool:
        """Get ready for the next step. False when there is nothing left to do."""
        around, patience = self._around, self._patience
        self._book = PolicyBook(await around.bus.kv(BUCKET), self._job, around.instance, patience)
        record = await self._book.open()
        if record is not None and record.state in OVER:
            return False
        spec = self._command.spec
        self._origin = await patience(lambda: Origin.prepare(around.blobs, self._job, spec), "initial policy")
        published = around.config.publication
        self._publisher = Publisher(around.blobs, self._job, self._origin.files, published)
        ledger_phases = [phase.ledger for phase in self._phases]
        recovered = await recover(self._snapshots, around.log, self._job, ledger_phases, patience)
        self._ledger = recovered.ledger
        self._steps_token = recovered.steps_token
        await self._in_thread(lambda: self._fill(recovered.snapshot))
        self._standing = await self._stand(record, recovered)
        self._standing.swap_policy = spec.rollout.swap_policy
        self._feed = Feed(
            around.bus,
            around.log,
            around.blobs,
            self._job,
            self._ledger,
            patience,
            self._news,
            poll_s=around.config.worker.poll_s,
        )
        await self._tell()
        return True

    def _fill(self, snapshot: Snapshot | None) -> None:
        """Put the policy into the engine."""
        if snapshot is None:
            self._origin.fill(self._engine, self._command.spec.seed)
        else:
            self._engine.restore(snapshot.config, snapshot.engine)

    async def _stand(self, record: PolicyRecord | None, recovered: Recovered) -> Standing:
        """What the policy record says from here on; a job that was never trained gets its version 0 first."""
        for problem in recovered.problems:
            await self._notices.warn("snapshot_broken", f"{problem}; the one before it is used", key=problem)
        if record is None:
            return Standing(await self._publish_weights())
        self._around.metrics.recoveries.inc()
        self._log.warning("trainer.recovered", step=self._ledger.step, redo=self._ledger.redoing)
        return Standing(
            record.manifest,
            reward_model=record.reward_model if record.HasField("reward_model") else None,
            group_ids=list(record.step_group_ids),
            trained_tokens=recovered.trained_tokens,
            recoveries=record.recoveries + 1,
        )

    # ------------------------------------------------------------- step

    async def _step(self) -> None:
        """One optimizer step, or nothing when there was nothing to train on."""
        begun = self._clock.monotonic()
        taken = await self._wait()
        waited = self._clock.monotonic()
        self._waited += waited - begun
        if not taken:
            return
        number = self._ledger.phase
        phase = self._phases[number]
        samples = await self._feed.samples(taken, needs_reward=phase.algorithm.needs_reward)
        if samples is None:
            return
        fetched = self._clock.monotonic()
        await self._begin(phase)
        outcome = await self._watched(
            await self._in_thread(lambda: train(self._engine, phase, samples, self._ledger.phase_step))
        )
        computed = self._clock.monotonic()
        groups = [self._feed.group(arrival) for arrival in taken]
        staleness = [self._ledger.staleness(arrival) for arrival in taken]
        facts = StepFacts(groups, staleness, samples, outcome, number)
        await self._commit(taken, facts, phase, (waited - begun, fetched - waited, computed - fetched))

    async def _wait(self) -> list[Arrival]:
        """The groups of the next step; none on a stop. Says what it waits for when nothing comes for long."""
        while not self._stopping:
            self._news.clear()
            if self._reading.done():
                await self._reading  # raises why it ended
            if taken := self._ledger.take():
                return taken
            await self._tell_drops()
            try:
                async with self._clock.timeout(self._around.config.worker.stall_s):
                    await self._news.wait()
            except TimeoutError:
                self._complain()
        return []

    def _complain(self) -> None:
        self._around.metrics.alarms.labels("stalled").inc()
        self._log.warning(
            "trainer.stalled",
            pending=len(self._ledger.pending),
            wanted=self._ledger.current.groups_per_step,
            redoing=self._ledger.redoing,
            hint="no new group on log topic trajectories: look at the scheduler's credits and the rollout workers",
        )

    async def _begin(self, phase: PhasePlan) -> None:
        """Before the first step of a phase: its teacher is fetched, the engine gets ready."""
        if self._ledger.phase_step:
            return
        blobs = self._around.blobs
        teacher = await self._patience(lambda: weights_among(blobs, phase.teacher), "teacher")
        await self._in_thread(lambda: self._engine.begin(phase.start(teacher)))

    async def _watched(self, outcome: StepOutcome) -> StepOutcome:
        """The outcome with the trend of the mismatch; says what should not have happened."""
        trend = self._mismatch.add(outcome.metrics)
        if problem := self._mismatch.alarm():
            await self._notices.warn("mismatch", f"{problem}: rollout and trainer disagree", key="mismatch")
        if outcome.metrics.get("rm_weight") == 0.0:
            share = outcome.metrics["rm_disagreement"]
            await self._notices.warn(
                "reward_model",
                f"reward model and verifier disagree on {share:.0%} of pairs: the model has no say",
                key=str(self._ledger.step + 1),
            )
        if outcome.skipped:
            step = self._ledger.step + 1
            await self._notices.warn("step_skipped", f"step {step}: {outcome.skipped}", key=str(step))
        return replace(outcome, metrics={**outcome.metrics, **trend})

    async def _commit(
        self, taken: Sequence[Arrival], facts: StepFacts, phase: PhasePlan, spent: tuple[float, float, float]
    ) -> None:
        """Book the step and tell everybody, in the order that makes a crash harmless."""
        begun = self._clock.monotonic()
        publishes = phase.publishes(self._ledger.phase_step + 1)
        self._ledger.commit(taken, published=publishes)
        self._feed.forget_settled()
        self._standing.trained_tokens += facts.outcome.tokens
        self._standing.group_ids = [group.group_id for group in facts.groups]
        if publishes and not self._announced:
            self._standing.manifest = await self._publish_weights()
        if phase.leaves_judge(self._ledger.phase_step or phase.steps) and not self._announced:
            self._standing.reward_model = await self._publish_judge()
        timing = Timing(*spent, self._clock.monotonic() - begun)
        await self._append(facts, phase, timing)
        if not self._announced:
            await self._tell()
        self._around.metrics.count_step(facts, timing)
        await self._keeper.after_step(phase.snapshot_every, self._cut)

    @property
    def _announced(self) -> bool:
        """Whether this step's policy record was written before a crash."""
        return self._book.last is not None and self._book.last.step >= self._ledger.step

    async def _append(self, facts: StepFacts, phase: PhasePlan, timing: Timing) -> None:
        now, name = self._clock.now(), self._around.instance
        record = step_record(self._job, facts, phase, self._ledger, timing, now=now, trainer=name)
        record_id = f"{self._job}/step/{self._ledger.step}"
        log = self._around.log
        token = await self._patience(
            lambda: log.append(STEPS, self._job, record, id=record_id), "step record"
        )
        self._steps_token = str(token)

    async def _publish_weights(self) -> BlobRef:
        """Weights and manifest of the ledger's version."""
        tensors = await self._in_thread(lambda: list(self._engine.export()))
        version, now = self._ledger.version, self._clock.now()
        last = self._ledger.finished  # what a job leaves behind is whole: others take it up as a checkpoint
        manifest = await self._patience(
            lambda: self._publisher.publish(version, tensors, now=now, full=last), "weights"
        )
        await self._patience(lambda: self._publisher.forget(version), "old weights")
        return manifest

    async def _publish_judge(self) -> BlobRef:
        tensors = await self._in_thread(lambda: list(self._engine.export_judge()))
        step, now = self._ledger.step, self._clock.now()
        return await self._patience(
            lambda: publish_reward_model(self._around.blobs, self._job, self._origin, step, tensors, now=now),
            "reward model",
        )

    async def _tell(self) -> None:
        """Write the policy record; never one that is behind what was announced before a crash."""
        last = self._book.last
        if last is not None and self._ledger.step < last.step:
            return
        elapsed = self._clock.monotonic() - self._started
        self._standing.idle_share = min(1.0, self._waited / elapsed) if elapsed > 0 else 0.0
        fence, name = self._command.fence, self._around.instance
        record = policy_record(
            self._job, self._ledger, self._standing, now=self._clock.now(), fence=fence, trainer=name
        )
        await self._book.write(record)

    async def _tell_drops(self) -> None:
        """Groups that were dropped while nothing else happens hold credits until they are named."""
        last = self._book.last
        if last is not None and sum(last.dropped_groups.values()) != self._ledger.dropped.total():
            await self._tell()

    # ------------------------------------------------------------- small things

    async def _cut(self) -> Snapshot:
        """The atomic cut: taken between two steps, on the loop and the worker thread that nothing else uses."""
        step = self._ledger.step
        facts = {
            "ledger": self._ledger.facts(),
            "steps_token": self._steps_token,
            "trained_tokens": self._standing.trained_tokens,
        }
        state = await self._in_thread(self._engine.snapshot)
        return Snapshot(step, state, self._origin.config, facts)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
