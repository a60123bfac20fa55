"""One job's training from its first policy to its last: open, step after step, finish.

    open     read the policy record, restore the newest whole snapshot, list the steps announced since (to be made again)
    step     wait for groups -> fetch -> train (worker thread) -> copy what is published or kept -> tell (in the background)
    finish   last record says FINISHED

While a step is told, the next one is computed, and the groups of the one after it are fetched. Nothing of a step is told before all of
the step before it was (``teller``), so a crash at any instant is harmless: what was announced is made again from the same groups, gives
the same weights bit for bit, and writes under the same names and ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StartTraining, TrainingState
from temper.runtime.telemetry import get_logger
from temper.trainer.advantage.scaling import RewardScale
from temper.trainer.book import BUCKET, PolicyBook
from temper.trainer.compute import train
from temper.trainer.engine.base import Engine, NamedTensor, StepOutcome
from temper.trainer.feed import Feed
from temper.trainer.keeper import Keeper
from temper.trainer.levels import clear, levels
from temper.trainer.milestones import Milestones, milestones_every
from temper.trainer.notices import Notices
from temper.trainer.origin import Origin
from temper.trainer.oversight import Oversight
from temper.trainer.patience import Patience
from temper.trainer.plan import PhasePlan, plan
from temper.trainer.recovery import Job, Recovered, Restoration, recover
from temper.trainer.reports import Standing, StepFacts, Timing
from temper.trainer.samples import Sample
from temper.trainer.snapshot import Snapshot
from temper.trainer.state import Arrival, Ledger
from temper.trainer.surroundings import Surroundings
from temper.trainer.teachers import check_teachers, fetch_teacher, told_of
from temper.trainer.teller import Teller, Told

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
        self._notices = Notices(around, self._job)
        self._levels, self._absent = levels(around.blobs, self._job, around.config.snapshots)
        self._keeper = Keeper(self._levels, around.metrics, self._not_kept)
        self._milestones = Milestones(around.blobs, self._job, milestones_every(command.spec))
        self._restorations: Mapping[int, Restoration] = {}
        self._oversight = Oversight(self._notices, engine.name)
        self._telling: asyncio.Task[None] | None = None
        self._scale = RewardScale()
        self._news = asyncio.Event()
        self._stopping = False
        self._started = around.clock.monotonic()
        self._computed = 0.0
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
                await self._told()
            finally:
                await _ended(self._reading, self._telling)
            return await self._finish()
        finally:
            await self._keeper.close()
            await self._milestones.close()
            self._engine.close()
            self._thread.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Ask for a stop at the next step edge, with a snapshot."""
        self._stopping = True
        self._news.set()

    async def forget(self) -> None:
        """Delete the job's snapshots: nobody needs its training any more."""
        await clear(self._levels)
        await self._milestones.clear()

    async def _finish(self) -> bool:
        if not self._ledger.finished:
            await self._keeper.settle(self._cut)
            return False
        await self._keeper.idle()
        self._teller.standing.state = TrainingState.TRAINING_STATE_FINISHED
        await self._tell()
        await self.forget()
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
        job = Job(self._job, [phase.ledger for phase in self._phases], self._origin.config, record)
        recovered = await recover(self._levels, self._take_up, around.log, job, patience)
        if not recovered.restored:
            await self._begin_anew()
        to_come = self._phases[recovered.ledger.phase :]
        await patience(lambda: check_teachers(around.blobs, to_come, self._engine), "teachers")
        self._ledger = recovered.ledger
        self._go_on(recovered)
        self._teller = Teller(around, self._command, self._book, self._ledger, self._origin, patience)
        self._teller.steps_token = recovered.steps_token
        self._teller.standing = await self._stand(record, recovered)
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

    async def _begin_anew(self) -> None:
        """Put the initial policy into the engine."""
        seed = self._command.spec.seed
        await self._in_thread(lambda: self._origin.fill(self._engine, seed))

    async def _take_up(self, snapshot: Snapshot) -> None:
        """Put a snapshot into the engine. Raises Rejected when it does not fit."""
        await self._in_thread(lambda: self._engine.restore(snapshot.config, snapshot.engine))

    def _go_on(self, recovered: Recovered) -> None:
        """What the session itself remembers of the steps before the snapshot."""
        facts = recovered.facts
        self._restorations = recovered.restorations
        self._scale = RewardScale.from_facts(facts.get("reward_scale", {}))
        self._oversight.resume(facts, recovered.announced)

    async def _stand(self, record: PolicyRecord | None, recovered: Recovered) -> Standing:
        """What the policy record says from here on; a job that was never trained gets its version 0 first."""
        for problem in (*self._absent, *recovered.problems):
            await self._notices.warn("snapshot_broken", f"{problem}; what is next to it is used", key=problem)
        swap_policy = self._command.spec.rollout.swap_policy
        if record is None:
            weights = await self._in_thread(lambda: list(self._engine.export()))
            return Standing(await self._teller.publish(weights), swap_policy=swap_policy)
        self._around.metrics.recoveries.inc()
        self._log.warning(
            "trainer.recovered", step=self._ledger.step, level=recovered.level, redo=self._ledger.redoing
        )
        return Standing(
            record.manifest,
            reward_model=record.reward_model if record.HasField("reward_model") else None,
            group_ids=list(record.step_group_ids),
            restored=record.restored_step if record.HasField("restored_step") else None,
            trained_tokens=int(recovered.facts.get("trained_tokens", 0)),
            recoveries=record.recoveries + 1,
            swap_policy=swap_policy,
        )

    # ------------------------------------------------------------- step

    async def _step(self) -> None:
        """One optimizer step, or nothing when there was nothing to train on."""
        if (order := self._order()) is not None:
            await self._go_back(order)
            return
        begun = self._clock.monotonic()
        taken = await self._wait()
        waited = self._clock.monotonic()
        if not taken:
            return
        number = self._ledger.phase
        phase = replace(self._phases[number], slowed=self._slowed)
        samples = await self._feed.samples(
            taken,
            needs_reward=phase.algorithm.needs_reward,
            vocabulary=self._origin.config.get("vocab_size"),
        )
        if samples is None:
            return
        await self._oversight.samples(self._ledger.step + 1, samples)
        fetched = self._clock.monotonic()
        self._feed.fetch_ahead(taken)
        await self._begin(phase)
        outcome = await self._in_thread(lambda: self._train(phase, samples))
        engines = {self._feed.group(arrival).engine for arrival in taken}
        outcome = await self._oversight.outcome(self._ledger.step + 1, outcome, engines)
        computed = self._clock.monotonic()
        self._computed += computed - fetched
        groups = [self._feed.group(arrival) for arrival in taken]
        staleness = [self._ledger.staleness(arrival) for arrival in taken]
        facts = StepFacts(groups, staleness, samples, outcome, number)
        await self._commit(taken, facts, phase, (waited - begun, fetched - waited, computed - fetched))

    @property
    def _slowed(self) -> float:
        return (self._command.spec.gates.lr_factor or 1.0) ** self._ledger.rollbacks

    def _train(self, phase: PhasePlan, samples: Sequence[Sample]) -> StepOutcome:
        ledger = self._ledger
        return train(
            self._engine, phase, samples, ledger.phase_step, version=ledger.version, scale=self._scale
        )

    def _order(self) -> Restoration | None:
        """The rollback that takes the place of the next step: one that is made again, or one that was ordered."""
        ledger = self._ledger
        if ledger.redoing:
            return self._restorations.get(ledger.step + 1)
        order = self._feed.orders.rollback(ledger.rollbacks)
        return None if order is None else Restoration(order.rollback_step, order.rollbacks)

    async def _go_back(self, order: Restoration) -> None:
        """Restore an earlier state as the next version, and tell of it as of a step."""
        begun = self._clock.monotonic()
        await self._told()
        found = await self._patience(lambda: self._milestones.at(order.step), "the state to go back to")
        ledger, number = self._ledger, self._ledger.phase
        old, self._scale = Ledger(ledger.phases), RewardScale()
        if found is None:
            await self._begin_anew()
        else:
            await self._take_up(found)
            old = Ledger.from_facts(ledger.phases, found.facts["ledger"])
            self._scale = RewardScale.from_facts(found.facts.get("reward_scale", {}))
        ledger.roll_back(order.rollbacks)
        if ledger.phase == number and (old.phase, old.phase_step > 0) != (number, True):
            await self._ready(self._phases[number])  # the state is that of an earlier phase
        self._oversight.forget()
        why = f"went back to the state of step {old.step} as version {ledger.version}"
        self._log.warning("trainer.rolled_back", step=ledger.step, version=ledger.version, to=old.step)
        outcome = StepOutcome({}, 0, 0, skipped=why)
        facts = StepFacts([], [], [], outcome, number, restored=old.step)
        await self._book_step(facts, self._phases[number], begun, (0.0, 0.0, 0.0))

    async def _wait(self) -> list[Arrival]:
        """The groups of the next step; none on a stop. Says what it waits for when nothing comes for long."""
        while not self._stopping:
            self._news.clear()
            if self._reading.done():
                await self._reading  # raises why it ended
            if self._telling is not None and self._telling.done():
                await self._told()  # raises why the last step could not be told
            if self._order() is not None:
                return []
            if taken := self._ledger.take():
                return taken
            await self._told()
            await self._tell_drops()
            try:
                async with self._clock.timeout(self._around.config.worker.stall_s):
                    await self._news.wait()
            except TimeoutError:
                self._complain()
        return []

    def _complain(self) -> None:
        self._show_idle()
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
        if not self._ledger.phase_step:
            await self._ready(phase)

    async def _ready(self, phase: PhasePlan) -> None:
        if warning := phase.warning:
            await self._notices.warn("unusual_setting", f"phase {phase.name}: {warning}", key=phase.name)
        blobs = self._around.blobs
        teacher = await self._patience(lambda: fetch_teacher(blobs, phase), "teacher")
        with told_of(phase):
            await self._in_thread(lambda: self._engine.begin(phase.start(teacher)))

    async def _commit(
        self, taken: Sequence[Arrival], facts: StepFacts, phase: PhasePlan, spent: tuple[float, float, float]
    ) -> None:
        """Book the step and copy what is told of it; the telling goes on beside the next step."""
        begun = self._clock.monotonic()
        await self._told()
        publishes = phase.publishes(self._ledger.phase_step + 1)
        self._ledger.commit(taken, published=publishes)
        await self._book_step(facts, phase, begun, spent, publishes=publishes)

    async def _book_step(
        self,
        facts: StepFacts,
        phase: PhasePlan,
        begun: float,
        spent: tuple[float, float, float],
        *,
        publishes: bool = True,
    ) -> None:
        """Copy what is told of a step that the ledger has booked."""
        self._teller.count(facts)
        self._teller.needed = self._feed.orders.held_versions
        self._feed.forget_settled()
        judged = phase.leaves_judge(self._ledger.phase_step or phase.steps)
        told = Told(
            facts,
            phase,
            announced=self._teller.announced,
            weights=await self._copied(self._engine.export, wanted=publishes),
            judge=await self._copied(self._engine.export_judge, wanted=judged),
        )
        # at once after a rollback: what was restored must not be restored again
        every = phase.snapshot_every if facts.restored is None else 1
        kept, marked = self._keeper.after_step(every), self._milestones.due(self._ledger.step)
        cut = await self._cut() if kept or marked else None
        timing = Timing(*spent, self._clock.monotonic() - begun)
        self._telling = asyncio.create_task(self._tell_step(told, timing, cut, every if kept else 0))
        self._telling.add_done_callback(lambda _: self._news.set())

    async def _copied(
        self, export: Callable[[], Iterable[NamedTensor]], *, wanted: bool
    ) -> Sequence[NamedTensor] | None:
        """Weights as they are now; None where nobody needs them or they were announced before a crash."""
        return (
            await self._in_thread(lambda: list(export())) if wanted and not self._teller.announced else None
        )

    async def _tell_step(self, told: Told, timing: Timing, cut: Snapshot | None, every: int) -> None:
        """Everything that others learn of a step; then its snapshot may be found. ``every``: 0 when only a rollback wants it."""
        self._show_idle()
        await self._teller.step(told, timing)
        self._around.metrics.count_step(told.facts, timing)
        if cut is not None:
            facts = {**cut.facts, "steps_token": self._teller.steps_token}
            cut = replace(cut, facts=facts)
            if every:
                self._keeper.keep(cut, every)
            if self._milestones.due(cut.step):
                await self._milestones.keep(cut, self._feed.orders.accepted_step)

    async def _told(self) -> None:
        """Wait until the last step is told. Raises what went wrong with it."""
        if self._telling is not None:
            await asyncio.shield(self._telling)

    async def _tell(self) -> None:
        """Write the policy record."""
        self._show_idle()
        if not self._ledger.balanced:
            settled, dropped = len(self._ledger.settled), self._ledger.dropped.total()
            books = f"{settled} groups settled, {self._ledger.consumed} trained on, {dropped} dropped"
            await self._notices.warn("unbalanced", books, key=books)
        await self._teller.tell()

    async def _tell_drops(self) -> None:
        """Groups that were dropped while nothing else happens hold credits until they are named."""
        last = self._book.last
        if last is not None and sum(last.dropped_groups.values()) != self._ledger.dropped.total():
            await self._tell()

    def _show_idle(self) -> None:
        """The share of time since the start in which the engine computed no step."""
        elapsed = self._clock.monotonic() - self._started
        share = max(0.0, 1.0 - self._computed / elapsed) if elapsed > 0 else 0.0
        self._teller.standing.idle_share = share
        self._around.metrics.idle_share.set(share)

    # ------------------------------------------------------------- small things

    async def _cut(self) -> Snapshot:
        """The atomic cut: taken between two steps, on the loop and the worker thread that nothing else uses."""
        facts = {
            "ledger": self._ledger.facts(),
            "steps_token": self._teller.steps_token,
            "trained_tokens": self._teller.standing.trained_tokens,
            "reward_scale": self._scale.facts(),
            **self._oversight.facts(),
        }
        step = self._ledger.step
        state = await self._in_thread(self._engine.snapshot)
        return Snapshot(step, state, self._origin.config, facts)

    async def _not_kept(self, key: str, problem: str) -> None:
        await self._notices.warn("snapshot_failed", problem, key=key)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def _ended(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait for their ends."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
