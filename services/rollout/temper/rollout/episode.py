"""One episode: prompt, turns, tool calls, verdict. The same loop for training, evaluation and demonstrations.

    prompt -> player acts -> answer  -> Finish -> reward
                          -> call    -> Step -> observation -> player acts ...
                          -> nothing -> a budget ran out

A *player* acts: the policy through the engine, or an environment's oracle. What goes wrong has one of three names:
the agent's budget or words (``AGENT_FAILED``: scored at the floor), the platform (``INFRA_FAILED``: no reward, after
two restarts elsewhere), or an error of the engine, which is raised and fails the group. A sample that has become too old to
be trained on while it was played is stopped at the edge of a turn (``STALE``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import EpisodeLimits, SampleSummary, ToolUse
from temper.api.sandbox.v1.sandbox_pb2 import Outcome, ToolCall, TranscriptEntry
from temper.rollout.calls import BadCall, ToolBox
from temper.rollout.codec import Answer, Codec, clip
from temper.rollout.engine.base import FinishReason
from temper.rollout.players import Diverged, TooOld
from temper.rollout.sandbox import Session
from temper.rollout.trajectory import FINISH, Trajectory
from temper.runtime.clock import Clock
from temper.runtime.errors import Unavailable

MAX_NAME = 64
"""Characters kept of what a policy calls a tool."""
NO_CALL = frozenset({"malformed", "unknown_tool", "invalid_args"})
"""Refusals of what was no call at all: a verifier does not see it."""
MAX_RESTARTS = 2  # of an episode whose sandbox was lost or whose turn was aborted


class SandboxLost(Unavailable):
    """The sandbox went away under the episode, which then restarts elsewhere."""


class TurnAborted(Unavailable):
    """The engine gave a turn up, as a weight swap may ask it to; the episode restarts under the new weights."""


class Player(Protocol):
    """Whoever acts."""

    async def act(self, trajectory: Trajectory, context: Sequence[int], budget: int) -> FinishReason:
        """Append ``context`` and one turn of at most ``budget`` tokens to the trajectory; says how the turn ended."""
        ...

    def leave(self) -> None:
        """Give back what the turns hold."""
        ...


class Seat(Protocol):
    """What an episode needs: its time, and for each attempt a player and a sandbox session, both fresh."""

    @property
    def deadline(self) -> float:
        """Monotonic seconds at which the episode's time is up, restarts included."""
        ...

    def player(self, attempt: int) -> Player:
        """A player at the start of the task."""
        ...

    def session(self, attempt: int) -> Session:
        """A session of its own for each attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What all episodes of a group share."""

    codec: Codec
    """Tokens of the policy."""
    tools: ToolBox
    """What may be called."""
    limits: EpisodeLimits
    """Budgets."""
    max_tokens_per_turn: int
    """Most tokens of one turn."""
    floor: float
    """Reward of an agent that failed."""


@dataclass(slots=True)
class Verdict:
    """How an episode ended."""

    sample_class: common.SampleClass
    """Terminal class."""
    finish: common.FinishReason
    """How the last generation ended."""
    reward: float | None = None
    """None is not zero."""
    solved: bool = False
    """Reward reached the environment's maximum."""
    detail: str = ""
    """Why, for classes other than scored."""
    components: Mapping[str, common.RewardComponent] | None = None
    """What the reward is made of, where the environment says so."""


@dataclass(slots=True)
class Attempt:
    """What one attempt left behind."""

    trajectory: Trajectory = field(default_factory=Trajectory)
    """Tokens."""
    tools: list[ToolUse] = field(default_factory=list)
    """Calls in order."""
    transcript: list[TranscriptEntry] = field(default_factory=list)
    """Calls with observations, for the verifier."""
    sandbox_s: float = 0.0
    """Seconds waited for the sandbox."""
    number: int = 0
    """How many attempts came before."""


class Episode:
    """Runs one sample to its verdict."""

    def __init__(self, rules: Rules, seat: Seat, prompt: str, clock: Clock) -> None:
        self._rules, self._seat, self._prompt, self._clock = rules, seat, prompt, clock

    async def run(self) -> tuple[Trajectory, SampleSummary]:
        """Play, restart elsewhere when a sandbox is lost, and sum up."""
        begun = self._clock.monotonic()
        attempt, verdict, host = (
            Attempt(),
            Verdict(common.SAMPLE_CLASS_INFRA_FAILED, common.FINISH_REASON_ERROR),
            "",
        )
        for number in range(1 + MAX_RESTARTS):
            attempt = Attempt(number=number)
            session, player = self._seat.session(number), self._seat.player(number)
            try:
                verdict = await self._play(attempt, session, player)
                host = session.host
                break
            except (SandboxLost, TurnAborted, Diverged) as lost:
                verdict.detail = str(lost)
                await session.abandon()
            except TooOld as stale:
                await session.abandon()
                verdict = Verdict(common.SAMPLE_CLASS_STALE, common.FINISH_REASON_ABORT, detail=str(stale))
                break
            except asyncio.CancelledError:  # nobody wants the sample any more: its sandbox goes with it
                await session.abandon()
                raise
            finally:
                player.leave()
        problem = attempt.trajectory.problem()
        if problem is not None:
            verdict = Verdict(
                common.SAMPLE_CLASS_INVALID_TOKENS, verdict.finish, verdict.reward, detail=problem
            )
        return attempt.trajectory, self._sum_up(attempt, verdict, host, self._clock.monotonic() - begun)

    async def _play(self, attempt: Attempt, session: Session, player: Player) -> Verdict:
        """Turns until an answer or the end of a budget. A session that needs no verdict is abandoned."""
        context = self._rules.codec.prompt(self._prompt)
        for turn in range(self._rules.limits.max_turns):
            budget = self._budget(attempt, context)
            if budget <= 0 and turn == 0:
                return _no_fault(
                    common.FINISH_REASON_LENGTH, f"a prompt of {len(context)} tokens leaves no room to act"
                )
            if budget <= 0:
                return await self._fail(session, common.FINISH_REASON_LENGTH, "token budget used up")
            start = len(attempt.trajectory) + len(context)
            finish = await player.act(attempt.trajectory, context, budget)
            said = self._rules.codec.read_turn(attempt.trajectory.tokens[start:])
            if finish is FinishReason.ABORT:
                raise TurnAborted("the engine aborted a turn")
            if finish is FinishReason.DEADLINE:
                await session.abandon()
                return _no_fault(FINISH[finish], f"turn ended by {finish}")
            if said is None:
                return await self._fail(session, FINISH[finish], "a turn has no end within its budget")
            if isinstance(said, Answer):
                return await self._score(attempt, session, said.text)
            observation, submitted = await self._use_tool(attempt, session, turn, said.text)
            if submitted:
                return await self._score(attempt, session, None)
            context = self._rules.codec.observation(observation)
        return await self._fail(session, common.FINISH_REASON_TOOL_LIMIT, "turn budget used up")

    def _budget(self, attempt: Attempt, context: Sequence[int]) -> int:
        left = self._rules.limits.max_tokens - len(attempt.trajectory) - len(context)
        return min(left, self._rules.max_tokens_per_turn)

    async def _use_tool(self, attempt: Attempt, session: Session, turn: int, text: str) -> tuple[str, bool]:
        """What the policy is shown of a call, good or bad, and whether the call has given the answer."""
        limit = self._rules.limits.max_observation_bytes
        call = self._rules.tools.parse(text)
        if isinstance(call, BadCall):
            attempt.tools.append(ToolUse(name=call.name, outcome=call.outcome))
            return clip(call.observation, limit), False
        begun = self._clock.monotonic()
        try:
            response = await session.step(turn, call, self._seat.deadline)
        except Unavailable as lost:
            raise SandboxLost(f"step: {lost}") from lost
        finally:
            attempt.sandbox_s += self._clock.monotonic() - begun
        outcome = response.refused or Outcome.Name(response.result.outcome).removeprefix("OUTCOME_").lower()
        if response.result.outcome == Outcome.OUTCOME_SANDBOX_DIED:
            raise SandboxLost("step: the sandbox died under the command")
        attempt.tools.append(
            ToolUse(name=call.name[:MAX_NAME], outcome=outcome, wall_s=response.result.wall_s)
        )
        shown = clip(response.observation.rstrip("\n"), limit)  # what print() ends with says nothing
        if response.refused not in NO_CALL:
            made = ToolCall(name=call.name, arguments_json=call.arguments_json)
            attempt.transcript.append(TranscriptEntry(call=made, observation=shown))
        return shown, response.submitted

    async def _score(self, attempt: Attempt, session: Session, answer: str | None) -> Verdict:
        begun = self._clock.monotonic()
        try:
            response = await session.finish(answer, attempt.transcript, self._seat.deadline)
        except Unavailable as lost:
            raise SandboxLost(f"finish: {lost}") from lost
        finally:
            attempt.sandbox_s += self._clock.monotonic() - begun
        if not response.HasField("reward"):
            why = response.infra_error or "the verifier gave no reward"
            return Verdict(common.SAMPLE_CLASS_INFRA_FAILED, common.FINISH_REASON_STOP, detail=why)
        return Verdict(
            common.SAMPLE_CLASS_SCORED,
            common.FINISH_REASON_STOP,
            response.reward,
            response.solved,
            components=response.components,
        )

    async def _fail(self, session: Session, finish: common.FinishReason, detail: str) -> Verdict:
        await session.abandon()
        return Verdict(common.SAMPLE_CLASS_AGENT_FAILED, finish, self._rules.floor, detail=detail)

    def _sum_up(self, attempt: Attempt, verdict: Verdict, host: str, wall_s: float) -> SampleSummary:
        trajectory = attempt.trajectory
        oldest, newest = trajectory.version_range
        return SampleSummary(
            kv_origin_lag=trajectory.kv_origin_lag,
            cached_tokens=trajectory.cached_tokens,
            stop_token=trajectory.stop_token,
            attention=trajectory.attention,
            for_training=trajectory.for_training,
            resumed_tokens=trajectory.resumed_tokens,
            restarts=attempt.number,
            sample_class=verdict.sample_class,
            reward=verdict.reward,
            components=verdict.components,
            solved=verdict.solved,
            prompt_tokens=trajectory.prompt_tokens,
            action_tokens=trajectory.action_tokens,
            total_tokens=len(trajectory),
            turns=trajectory.turns,
            tools=attempt.tools,
            finish_reason=verdict.finish,
            min_version=oldest,
            max_version=newest,
            wall_s=wall_s,
            sandbox_s=attempt.sandbox_s,
            sandbox_host=host,
            detail=verdict.detail[:500],
        )


def _no_fault(finish: common.FinishReason, detail: str) -> Verdict:
    """Neither the agent's success nor its failure: how fast a machine is must not become a reward."""
    return Verdict(common.SAMPLE_CLASS_INFRA_FAILED, finish, detail=detail)
