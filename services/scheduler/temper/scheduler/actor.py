"""One live activation of one job: reads the world, asks the state machine, does what it says.

    KV policies.<job> ─┐                                  ┌─> books (write-ahead)
    log trajectories  ─┼─> mailbox ─> JobMachine.handle ──┼─> commands to rollout and trainer
    a beat a second   ─┘                                  ├─> events and log `jobs`
                                                          └─> KV jobs.<job>

Effects are performed in that order. A crash between any two of them is repaired by `recover`: books are saved before
the groups that they promise are published, and everything published carries a deterministic id. While the platform
is out of reach an effect is tried again for as long as the lease holds; without a lease the actor is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from temper.api.job.v1.platform_pb2 import Presence
from temper.api.qa.v1.qa_pb2 import (
    EnvironmentWish,
    ResolveEnvironmentsRequest,
    ResolveEnvironmentsResponse,
)
from temper.api.rollout.v1.rollout_pb2 import GroupRecord
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.runtime.actor import Actor, ActorRef, handles
from temper.runtime.errors import Rejected, Stale, TemperError, Unavailable
from temper.runtime.telemetry import get_logger
from temper.runtime.topology import rpc
from temper.scheduler import transitions
from temper.scheduler.alarm import Alarm
from temper.scheduler.facts import JobFacts
from temper.scheduler.feeds import POLICIES, TRAJECTORIES, Feeds
from temper.scheduler.holding import hold
from temper.scheduler.letters import Letters
from temper.scheduler.progress import Meter, compose
from temper.scheduler.publication import Publication
from temper.scheduler.signals import (
    Announce,
    Effect,
    EnvironmentSeen,
    GroupSeen,
    Hold,
    Issue,
    JobSeen,
    Order,
    PolicySeen,
    Refused,
    Resolve,
    Resolved,
    Revoke,
    Signal,
    StartTrainer,
    Tick,
)
from temper.scheduler.state import JobMachine
from temper.scheduler.store import Books, merge, persistently, readable
from temper.scheduler.surroundings import Surroundings, presences

WRITTEN_AHEAD = (Issue, StartTrainer, Order, Hold)  # effects that the books must hold before they happen
RESOLVE_AGAIN_S = 2.0  # pause before qa is asked again


@dataclass(frozen=True, slots=True)
class Batch:
    """Signals that came together; their effects are performed together. Example: `Batch((Tick(),))`."""

    signals: tuple[Signal, ...]
    """In order."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A second has passed."""


class JobActor(Actor):
    """Drives one job. `ended` is set when there is nothing more to do."""

    def __init__(self, job_id: str, fence: int, around: Surroundings, ended: asyncio.Event) -> None:
        self._id, self._fence, self._around, self._ended = job_id, fence, around, ended
        self._publication = Publication(around, job_id, fence)
        self._letters = Letters(around, job_id)
        self._feeds = Feeds(around, job_id, self._post)
        self._alarm = Alarm(around.config.jobs, around.clock.monotonic())
        self._meter = Meter()
        self._present: Sequence[Presence] = ()  # as of the last beat
        self._revision = 0  # of the newest job seen
        self._log = get_logger(job=job_id, fence=fence)

    # ------------------------------------------------------------ life
    async def run(self, ref: ActorRef) -> None:
        """Setup, running with the feeds beside, teardown. Returns only if a newer activation drives the job."""
        self._ref = ref
        try:
            await self._open()
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._beat_for_ever())
                for feed in self._feeds.all(self._machine.facts.log_token):
                    self._tasks.create_task(feed)
                await super().run(ref)
        except* Stale as replaced:
            self._log.warning("job.replaced", reason=str(replaced.exceptions[0]))
            self._ended.set()

    async def _open(self) -> None:
        """Load, catch up, fence off older activations, publish again what is owed."""
        clock = self._around.clock
        job = await persistently(clock, lambda: self._around.store.get(self._id))
        self._revision = int(job.etag)
        self._books = Books(await persistently(clock, self._around.store.kv), self._id)
        facts = JobFacts(job, self._fence, self._around.config.jobs.eval_samples_per_group)
        saved = await persistently(clock, self._books.load)
        if saved is not None:
            facts.restore(saved)
        self._machine = JobMachine(facts)
        policies = await persistently(clock, lambda: self._around.bus.kv(POLICIES))
        entry = await persistently(clock, lambda: policies.get(self._id))
        if entry is not None and (policy := readable(PolicyRecord, entry)) is not None:
            facts.take_policy(policy)
        await self._catch_up()
        await self._save()
        await self._perform(self._machine.recover(clock.now()))
        self._around.metrics.activations.inc()
        self._log.info(
            "job.activated", state=transitions.name_of(facts.job.state), groups=facts.ledger.published
        )

    async def _catch_up(self) -> None:
        """Read what was logged while nobody drove the job, so that finished groups are not published again."""
        facts = self._machine.facts
        end = await persistently(self._around.clock, lambda: self._around.log.end(TRAJECTORIES, self._id))
        while end is not None and facts.log_token != end:
            records = await self._feeds.read(facts.log_token)
            if not records:
                return
            for record in records:
                facts.take_group(record.message(GroupRecord), record.token)

    async def _beat_for_ever(self) -> None:
        await self._post(Tick())
        while True:
            await self._around.clock.sleep(self._around.config.jobs.beat_s)
            await self._ref.post(Beat())

    async def _post(self, *signals: Signal) -> None:
        """Into the mailbox, and wait until it is done: a slow platform slows the feeds, it fills no queue."""
        await self._ref.post(Batch(signals))

    # ------------------------------------------------------------ mailbox
    @handles(Batch)
    async def take(self, batch: Batch) -> None:
        """Facts came in."""
        now = self._around.clock.now()
        for signal in batch.signals:
            if isinstance(signal, GroupSeen):
                self._meter.observe(signal.record, self._version, now)
            elif isinstance(signal, PolicySeen):
                self._meter.observe_step(signal.record.step, now)
        if not all(isinstance(signal, EnvironmentSeen) for signal in batch.signals):
            self._alarm.progress(self._around.clock.monotonic())
        await self._decide(batch.signals)

    @handles(Beat)
    async def beat(self, _: Beat) -> None:
        """A second has passed: look at what nobody tells, and tell what people watch."""
        try:
            job = await self._around.store.get(self._id)
            told, lost = await self._letters.look(self._machine.facts)
            self._present = await presences(self._around.bus)
        except Unavailable as away:
            self._log.warning("job.platform_away", error=str(away))
            return
        signals: list[Signal] = [Tick() if lost is None else lost]
        if int(job.etag) > self._revision:
            self._revision = int(job.etag)
            signals.insert(0, JobSeen(job))
        await self._perform(told)
        await self._decide(tuple(signals))
        await self._watch_silence()
        await self._tell_progress()

    @property
    def _version(self) -> int:
        policy = self._machine.facts.policy
        return policy.version if policy else 0

    async def _watch_silence(self) -> None:
        now = self._around.clock.monotonic()
        if not self._alarm.is_due(now):
            return
        sounded = self._alarm.sound(self._machine.facts, self._present, now)
        if sounded is None:
            return
        stall, announcement = sounded
        self._log.warning("job.stalled", message=stall.message)
        self._around.metrics.stalls.labels(stall.waiting_for).inc()
        await self._perform([announcement])
        if self._alarm.wants_reissue(self._machine.facts, stall, now):
            owed = self._machine.facts.owed(self._around.clock.now())
            self._log.warning("job.reissued", groups=len(owed))
            self._around.metrics.reissued.inc(len(owed))
            await self._publication.groups(owed, again=self._alarm.reissues)

    async def _tell_progress(self) -> None:
        if self._machine.facts.job.state == transitions.RUNNING:
            self._meter.observe_rollout(self._present)
        if self._machine.facts.changed:
            await self._save()
        await self._write_job()
        progress = self._machine.facts.job.progress
        await persistently(self._around.clock, lambda: self._around.announcer.progress(self._id, progress))

    # ------------------------------------------------------------ effects
    async def _decide(self, signals: Sequence[Signal]) -> None:
        now = self._around.clock.now()
        with self._around.metrics.decision_s.time():
            effects = [effect for signal in signals for effect in self._machine.handle(signal, now)]
        await self._perform(effects)

    async def _perform(self, effects: Sequence[Effect]) -> None:
        if any(isinstance(effect, WRITTEN_AHEAD) for effect in effects) or self._machine.over:
            await self._save()
        for effect in effects:
            match effect:
                case Resolve():
                    self._tasks.create_task(self._resolve())
                case StartTrainer():
                    await self._publication.training(self._machine.facts.job)
                case Issue(commands):
                    await self._publication.groups(commands)
                case Revoke(commands):
                    await self._publication.revocations(commands)
                case Order():
                    await self._publication.orders(self._machine.facts.gate_record())
                case Hold(key, reason):
                    await hold(self._around, self._id, key, reason)
                case Announce(key, payload):
                    await persistently(
                        self._around.clock,
                        lambda key=key, payload=payload: self._around.announcer.announce(
                            self._id, key, payload
                        ),
                    )
        if any(isinstance(effect, Announce) for effect in effects):
            await self._write_job()
        if self._machine.over and not self._ended.is_set():
            await self._finish()

    async def _finish(self) -> None:
        """The job has ended: the last word is written, then this activation is of no use."""
        await self._write_job()
        self._log.info("job.ended", state=transitions.name_of(self._machine.facts.job.state))
        self._ended.set()

    async def _save(self) -> None:
        ledger = self._machine.facts.save()
        await persistently(self._around.clock, lambda: self._books.save(ledger))

    async def _write_job(self) -> None:
        facts = self._machine.facts
        progress = compose(facts, self._meter, self._present, self._around.clock.now())
        facts.job.progress.CopyFrom(progress)
        written = await persistently(
            self._around.clock, lambda: self._around.store.change(self._id, lambda job: merge(job, facts.job))
        )
        self._revision = max(self._revision, int(written.etag))
        facts.saved()
        if facts.lacks(written):
            await self._decide((JobSeen(written),))

    async def _resolve(self) -> None:
        """Ask qa until it says yes or no."""
        spec = self._machine.facts.job.spec
        wishes = [EnvironmentWish(name=each.env, params_json=each.params_json) for each in spec.domains]
        request = ResolveEnvironmentsRequest(wishes=wishes)
        while True:
            try:
                answer = await self._around.bus.request(
                    rpc("qa", "ResolveEnvironments"),
                    request,
                    ResolveEnvironmentsResponse,
                    timeout_s=self._around.config.jobs.resolve_timeout_s,
                    fence=self._fence,
                )
                return await self._post(Resolved(tuple(answer.envs)))
            except Rejected as refused:
                return await self._post(Refused(str(refused)))
            except TemperError as error:
                self._machine.facts.job.reason = f"waiting for qa: {error.message}"
                await self._around.clock.sleep(RESOLVE_AGAIN_S)
