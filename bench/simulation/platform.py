"""Scheduler, rollout worker and trainer of one job on the in-memory platform, each device on simulated time.

Everything that decides is the real thing: the API that admits the job, the job actor with its credits, the rollout actor with
groups, episodes and hot swaps, the trainer with its ledger, staleness filter and publications. Simulated are the two devices (their
twins sleep on the clock) and what lies outside: qa says yes, the sandbox has no tools and scores in no time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.simulation.pace import Pace
from bench.simulation.workload import Outcome, Workload
from temper.api.common.v1.common_pb2 import BlobRef, EnvRef
from temper.api.job.v1 import job_pb2
from temper.api.qa.v1.qa_pb2 import ResolveEnvironmentsRequest, ResolveEnvironmentsResponse
from temper.api.sandbox.v1 import sandbox_pb2 as sandbox
from temper.api.trainer.v1.trainer_pb2 import StartTraining, StepRecord
from temper.rollout.actor import RolloutActor
from temper.rollout.chat import byte_chat, byte_tokenizer
from temper.rollout.config import RolloutConfig
from temper.rollout.engine.fake import FakeEngine as Sampler
from temper.rollout.engine.made_up import Lengths
from temper.rollout.metrics import RolloutMetrics
from temper.rollout.permits import Permits
from temper.rollout.policies import Policies
from temper.rollout.sandbox import Sandboxes
from temper.rollout.state import Worker
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.log.memory import MemoryLog
from temper.runtime.telemetry import new_registry
from temper.scheduler.admission import Admission
from temper.scheduler.announcements import Announcer
from temper.scheduler.config import JobsConfig, NamesConfig, SchedulerConfig
from temper.scheduler.metrics import Metrics
from temper.scheduler.service import JobService
from temper.scheduler.steward import Steward
from temper.scheduler.store import JobStore
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.transitions import SUCCEEDED, TERMINAL
from temper.scheduler.watch import Watch
from temper.trainer.actor import TrainerActor
from temper.trainer.algorithms.base import Algorithm, Settings
from temper.trainer.config import TrainerConfig, WorkerConfig
from temper.trainer.engine.base import Engine, OptimizerSettings, StepOutcome
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.metrics import TrainerMetrics
from temper.trainer.samples import Batch
from temper.trainer.session import Surroundings as TrainerSurroundings

NEVER_S = 1e9
HOST = "simulated"
LOOK_S = 0.25


class SlowEngine(FakeEngine):
    """The trainer's twin on a device that takes its time."""

    def __init__(self, clock: Pace, seconds: float) -> None:
        super().__init__()
        self._clock, self._seconds = clock, seconds

    def step(
        self, batch: Batch, algorithm: Algorithm, settings: Settings, optimizer: OptimizerSettings
    ) -> StepOutcome:
        self._clock.charge(self._seconds)
        return super().step(batch, algorithm, settings, optimizer)


class SlowTrainer(TrainerActor):
    """The trainer's actor on such a device."""

    def __init__(self, around: TrainerSurroundings, clock: Pace, seconds: float) -> None:
        super().__init__(around)
        self._make = lambda: SlowEngine(clock, seconds)

    def _engine(self, command: StartTraining) -> Engine:
        return self._make()


class Simulation:
    """One platform for one job."""

    def __init__(self, clock: Pace, directory: Path, work: Workload) -> None:
        self._clock, self._work = clock, work
        self._bus, self._log = MemoryBus(clock, name="bench"), MemoryLog(clock)
        self._blobs = BlobStore(directory.as_uri())
        self._samplers: list[Sampler] = []
        self._played = new_registry()

    async def run(self) -> Outcome:
        """The job from its creation to its end."""
        async with AsyncExitStack() as self._stack:
            await self._bus.connect()
            await self._serve_outside()
            self._start_rollout()
            self._start_trainer()
            store, api = self._start_scheduler()
            training = self._start(self._train(store, api))
            await self._clock.run_until(training.done)
            return await self._sum_up(training.result())

    def _start(self, body: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(body)
        self._stack.push_async_callback(_end, task)
        return task

    def _start_actor(self, actor: RolloutActor | TrainerActor) -> None:
        running = asyncio.create_task(actor.run())

        async def stop() -> None:
            await actor.drain()
            await running

        self._stack.push_async_callback(stop)

    async def _train(self, store: JobStore, api: JobService) -> job_pb2.Job:
        """Create the job and see it end."""
        made = {"tokenizer.json": byte_tokenizer(), "temper_chat.json": byte_chat()}
        files: dict[str, BlobRef] = {}
        for name, content in made.items():
            files[name] = await self._blobs.put(f"uploads/{name}", content)
        request = job_pb2.CreateJobRequest(spec=self._work.spec(files), request_id="bench")
        job = (await api.CreateJob(request, None)).job
        while job.state not in TERMINAL:
            await self._clock.sleep(LOOK_S)
            job = await store.get(job.id)
        return job

    # ------------------------------------------------------------ parts
    def _start_scheduler(self) -> tuple[JobStore, JobService]:
        config = SchedulerConfig(
            jobs=JobsConfig(stall_s=NEVER_S, reissue_after_s=NEVER_S), names=NamesConfig(engines=["fake"])
        )
        bus = self._bus.client("scheduler-1")
        around = Surroundings(
            bus=bus,
            log=self._log,
            clock=self._clock,
            config=config,
            metrics=Metrics(new_registry()),
            store=JobStore(bus),
            announcer=Announcer(bus, self._log, self._clock),
        )
        steward = Steward(around)
        self._start(steward.run())
        self._stack.push_async_callback(steward.drain)
        return around.store, JobService(around, Admission(around, self._blobs), Watch(around), steward.nudge)

    def _start_rollout(self) -> None:
        clock = self._clock
        config = RolloutConfig.model_validate({"worker": {"groups": 256, "episodes": 4096}})
        bus, worker = self._bus.client("rollout-1"), Worker(slots=config.worker.groups, policies=1)
        policies = Policies(bus, self._blobs, clock, worker, self._sampler, "rollout-1")
        sandboxes = Sandboxes(bus, clock, call_timeout_s=60, lease_s=60, host_wait_s=60)
        metrics = RolloutMetrics(self._played)
        permits = Permits(
            config.worker.episodes, lambda: [engine.stats() for engine in policies.engines().values()]
        )
        actor = RolloutActor(
            *(config, bus, self._log, self._blobs, clock, worker, policies, sandboxes, permits, metrics),
            "rollout-1",
        )
        self._stack.push_async_callback(policies.close)
        self._start(policies.watch())
        self._start_actor(actor)

    def _sampler(self) -> Sampler:
        work = self._work
        sampler = Sampler(
            self._clock,
            slots=work.slots,
            max_context=2 * work.longest_tokens,
            step_seconds=work.token_s,
            lengths=Lengths(work.median_tokens, work.sigma),
        )
        self._samplers.append(sampler)
        return sampler

    def _start_trainer(self) -> None:
        around = TrainerSurroundings(
            config=TrainerConfig(worker=WorkerConfig(stall_s=NEVER_S)),
            bus=self._bus.client("trainer-1"),
            log=self._log,
            blobs=self._blobs,
            clock=self._clock,
            metrics=TrainerMetrics(new_registry()),
            instance="trainer-1",
        )
        actor = SlowTrainer(around, self._clock, self._work.train_s)
        self._start_actor(actor)

    async def _serve_outside(self) -> None:
        for where in ("any", HOST):
            subject = topology.rpc("sandbox", where, "Materialize")
            await self._bus.serve(subject, sandbox.MaterializeRequest, _materialize)
            await self._bus.serve(topology.rpc("sandbox", where, "Step"), sandbox.StepRequest, _step)
            await self._bus.serve(topology.rpc("sandbox", where, "Finish"), sandbox.FinishRequest, _finish)
        await self._bus.serve(topology.rpc("qa", "ResolveEnvironments"), ResolveEnvironmentsRequest, _resolve)

    # ------------------------------------------------------------ result
    async def _sum_up(self, job: job_pb2.Job) -> Outcome:
        if job.state != SUCCEEDED:
            raise RuntimeError(f"the simulated job did not succeed: {job.reason}")
        if lost := self._count("temper_rollout_samples_total", sample_class="infra_failed"):
            # They are waited for and played again: the job gets to its end, and its time says nothing about schedules.
            raise RuntimeError(f"the simulated platform lost {lost} samples: something outside is not served")
        work = self._work
        found = await self._log.read("steps", key=job.id, max_records=work.steps + 1, timeout_s=0)
        steps = [each.message(StepRecord) for each in found]
        wall = (steps[-1].finished_at.ToNanoseconds() - job.started_at.ToNanoseconds()) / 1e9
        tokens = sum(sampler.stats().generated_tokens for sampler in self._samplers)
        ages = [(age, count) for step in steps for age, count in step.staleness.items()]
        work_s = tokens * work.token_s / work.slots
        return Outcome(
            wall_s=wall,
            work_s=work_s,
            train_s=len(steps) * work.train_s,
            trainer_wait=sum(step.wait_s for step in steps) / wall,
            trainer_idle=job.progress.trainer_idle,
            rollout_idle=1 - work_s / wall,
            dropped=sum(job.progress.groups_dropped.values()),
            staleness=sum(age * count for age, count in ages) / sum(count for _, count in ages),
            calls=self._count("temper_rollout_tool_calls_total", outcome="unknown_tool"),
        )

    def _count(self, series: str, **labels: str) -> int:
        return int(self._played.get_sample_value(series, labels) or 0)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _resolve(request: ResolveEnvironmentsRequest, _: object) -> ResolveEnvironmentsResponse:
    bundle = BlobRef(key="none", sha256="0" * 64, size=1)
    names = [wish.name for wish in request.wishes]
    return ResolveEnvironmentsResponse(
        envs=[EnvRef(name=name, version="1.0.0", digest="0" * 64, bundle=bundle) for name in names]
    )


async def _materialize(request: sandbox.MaterializeRequest, _: object) -> sandbox.MaterializeResponse:
    tasks = [sandbox.TaskView(task_index=index, prompt=f"{index}+1=") for index in request.task_indices]
    return sandbox.MaterializeResponse(tasks=tasks, reward_min=0, reward_max=1, host=HOST)


async def _step(request: sandbox.StepRequest, _: object) -> sandbox.StepResponse:
    """A made-up output may begin like a call; the environment has no tools, and its gateway says so."""
    said = f"error: no tool {request.call.name[:64]!r}; there are no tools here"
    return sandbox.StepResponse(observation=said, is_error=True, refused="unknown_tool", host=HOST)


async def _finish(request: sandbox.FinishRequest, _: object) -> sandbox.FinishResponse:
    """A coin that the answer tosses: rewards differ within a group, as a policy that learns needs."""
    solved = hashlib.sha256(request.answer.encode()).digest()[0] % 2 == 0
    return sandbox.FinishResponse(reward=float(solved), solved=solved, host=HOST)
