"""One group: tasks materialised, episodes run, one table and one record made. No bus of commands, no weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import (
    EngineIdentity,
    GroupCommand,
    GroupRecord,
    GroupTable,
    SampleSummary,
    SampleTokens,
    UsedSampling,
)
from temper.api.sandbox.v1.sandbox_pb2 import MaterializeResponse, TaskView
from temper.rollout.calls import ToolBox, tool_box
from temper.rollout.codec import Codec
from temper.rollout.engine.base import Engine, Sampling
from temper.rollout.episode import Episode, Player, Rules
from temper.rollout.partials import Journal, Partials, Spot
from temper.rollout.permits import Permits
from temper.rollout.players import Age, Draw, OraclePlayer, PolicyPlayer, ResumingPlayer
from temper.rollout.sandbox import Sandboxes, Session, TaskRef
from temper.rollout.trajectory import Trajectory
from temper.runtime.clock import Clock

Sample = tuple[Trajectory, SampleSummary]


@dataclass(frozen=True, slots=True)
class Policy:
    """What plays a group."""

    codec: Codec
    """Its tokens."""
    engine: Engine | None
    """What samples; None for demonstrations."""
    max_context: int
    """Most tokens of a sequence."""
    swap_policy: str = "keep"
    """What weight updates of the job do to its running sequences."""
    age: Callable[[GroupCommand], Age | None] = lambda _command: None
    """Tells when a group's tokens are past its staleness bound; None for a group without one."""


@dataclass(frozen=True, slots=True)
class Place:
    """One sample of a group. Implements :class:`temper.rollout.episode.Seat`."""

    group: Group
    task_number: int
    """Position in the command's list of tasks."""
    sample_index: int
    """Position among the task's samples."""
    task: TaskView
    deadline: float
    """Monotonic seconds at which the sample's time is up."""

    @property
    def name(self) -> str:
        """Unique among samples of all groups, deliveries of the command and makings in one delivery included."""
        group = self.group
        making = f"-{group.making}" if group.making else ""
        return f"{group.command.group_id}/{self.task_number}/{self.sample_index}/{group.attempt}{making}"

    def player(self, attempt: int) -> Player:
        """The policy, or the oracle of a demonstration."""
        return self.group.player(self, attempt)

    def session(self, attempt: int) -> Session:
        """A sandbox session; a restart is another one."""
        command = self.group.command
        ref = TaskRef(command.env, command.split, self.task.task_index, command.job_id)
        return self.group.sandboxes.session(f"{self.name}.{attempt}", ref)


class Group:
    """Runs the episodes of one command. ``permits`` bounds episodes over all groups of the worker."""

    def __init__(
        self,
        command: GroupCommand,
        attempt: int,
        policy: Policy,
        sandboxes: Sandboxes,
        clock: Clock,
        permits: Permits,
        partials: Partials | None = None,
        *,
        making: int = 0,
    ) -> None:
        self.command, self.attempt, self.sandboxes = command, attempt, sandboxes
        self._policy, self._clock, self._permits = policy, clock, permits
        self._partials, self.making = partials, making
        self._recorded: Mapping[Spot, SampleTokens] = {}
        self._tools = ToolBox([], policy.codec.call_syntax)
        self.reward_range = (0.0, 0.0)
        """Lowest and highest reward that the environment declares, once it has answered."""

    async def run(self) -> list[Sample]:
        """All samples, task-major. Raises only what fails the whole group."""
        command = self.command
        materialized = await self.sandboxes.materialize(
            command.env, command.split, command.task_indices, command.oracle_styles, self._time_is_up()
        )
        self.reward_range = materialized.reward_min, materialized.reward_max
        specs = tuple((tool.name, tool.parameters_schema_json) for tool in materialized.tools)
        self._tools = tool_box(specs, self._policy.codec.call_syntax)
        again = self.attempt > 1 or self.making > 0
        if again and self._partials is not None and self._policy.engine is not None:
            self._recorded = await self._partials.read(command)
        rules = self._rules(materialized)
        episodes = [
            asyncio.create_task(self._sample(rules, number, sample, task))
            for number, task in enumerate(materialized.tasks)
            for sample in range(command.samples_per_task)
        ]
        try:
            return await asyncio.gather(*episodes)
        finally:
            await _end(episodes)

    def player(self, place: Place, attempt: int) -> Player:
        """Who plays a sample."""
        command, policy = self.command, self._policy
        if policy.engine is None:
            return OraclePlayer(place.task.oracle, policy.codec, self._tools, command.min_version)
        draw = Draw(
            sampling_of(command, policy.codec),
            command.seed,
            place.task_number * command.samples_per_task + place.sample_index,
            place.deadline,
            command.group_id,
            command.job_id,
            self.attempt,
        )
        age = policy.age(command)
        spot = place.task_number, place.sample_index
        journal = self._partials and Journal(self._partials, command, spot, place.task.task_index)
        acting = PolicyPlayer(policy.engine, f"{place.name}.{attempt}", draw, journal, age)
        recorded = self._recorded.get(spot)
        if recorded is None or attempt > 0 or (age is not None and age.too_old(_oldest(recorded))):
            return acting
        return ResumingPlayer(recorded, acting)

    async def _sample(self, rules: Rules, number: int, sample: int, task: TaskView) -> Sample:
        """Its time begins with its permit: that a worker takes more than it plays at once is no sample's fault."""
        async with self._permits.one(self.command.published_at.ToNanoseconds()):
            place = Place(self, number, sample, task, self._time_is_up())
            trajectory, summary = await Episode(rules, place, task.prompt, self._clock).run()
        summary.task_index, summary.sample_index = task.task_index, sample
        if self.command.purpose == common.PURPOSE_DEMO:
            _judge_demonstration(trajectory, summary)
        return trajectory, summary

    def _time_is_up(self) -> float:
        """When what begins now must have ended."""
        return self._clock.monotonic() + self.command.limits.group_deadline_s

    def _rules(self, materialized: MaterializeResponse) -> Rules:
        limits = self.command.limits
        longest = min(limits.max_tokens, self._policy.max_context)
        bounded = type(limits)()
        bounded.CopyFrom(limits)
        bounded.max_tokens = longest
        return Rules(
            codec=self._policy.codec,
            tools=self._tools,
            limits=bounded,
            max_tokens_per_turn=self.command.sampling.max_tokens_per_turn or longest,
            floor=materialized.reward_min,
        )


def sampling_of(command: GroupCommand, codec: Codec) -> Sampling:
    """How a group's tokens are drawn."""
    wish = command.sampling
    return Sampling(
        max_tokens=wish.max_tokens_per_turn,
        temperature=wish.temperature,
        top_k=wish.top_k,
        top_p=wish.top_p,
        stop_token_ids=codec.stops,
    )


def table_of(command: GroupCommand, samples: Sequence[Sample], policy: Policy, attempt: int) -> GroupTable:
    """The group's blob."""
    table = GroupTable(group_id=command.group_id)
    for stream, (trajectory, summary) in enumerate(samples):
        row = trajectory.table_row(summary.task_index, summary.sample_index)
        row.seed, row.stream, row.attempt = command.seed, stream, attempt
        table.samples.append(row)
    if policy.engine is not None:
        table.sampling.CopyFrom(_used(sampling_of(command, policy.codec)))
        table.engine.CopyFrom(_identity(policy.engine))
    return table


def record_of(command: GroupCommand, samples: Sequence[Sample], policy: Policy) -> GroupRecord:
    """The group's record, but for what the worker adds: blob, times, names."""
    return GroupRecord(
        engine_identity=_identity(policy.engine) if policy.engine is not None else None,
        swap_policy=policy.swap_policy if policy.engine is not None else "",
        job_id=command.job_id,
        group_id=command.group_id,
        index=command.index,
        purpose=command.purpose,
        phase=command.phase,
        domain=command.domain,
        env=command.env,
        split=command.split,
        samples=[summary for _, summary in samples],
        published_at=command.published_at,
        eval_point=command.eval_point,
        seed=command.seed,
        samples_per_task=command.samples_per_task,
    )


def _oldest(row: SampleTokens) -> int:
    return min((span.version for span in row.weight_versions), default=0)


def _identity(engine: Engine) -> EngineIdentity:
    info = engine.info
    return EngineIdentity(
        name=info.name, build=info.build, numeric=info.numeric, batch_invariant=info.batch_invariant
    )


def _used(sampling: Sampling) -> UsedSampling:
    return UsedSampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        max_tokens_per_turn=sampling.max_tokens,
        stop_token_ids=sampling.stop_token_ids,
    )


def _judge_demonstration(trajectory: Trajectory, summary: SampleSummary) -> None:
    """A demonstration that does not solve its task is the oracle's failure: kept on record, never trained on."""
    if summary.sample_class == common.SAMPLE_CLASS_SCORED and summary.solved:
        return
    trajectory.disown()
    if summary.sample_class == common.SAMPLE_CLASS_SCORED:
        summary.sample_class = common.SAMPLE_CLASS_AGENT_FAILED
        summary.detail = "the oracle's answer is not a solution"


async def _end(tasks: Sequence[asyncio.Task[Sample]]) -> None:
    """Cancel what still runs, after a failure of one or of the caller, and see it end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
