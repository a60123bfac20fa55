import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests.unit.rollout.world import PYTHON_SCHEMA, byte_codec

from temper.api.common.v1 import common_pb2 as common
from temper.api.rollout.v1.rollout_pb2 import EpisodeLimits, SampleSummary
from temper.api.sandbox.v1 import sandbox_pb2 as sandbox
from temper.rollout.calls import Said, Tool, ToolBox
from temper.rollout.engine.base import Completion, FinishReason, Span
from temper.rollout.episode import Episode, Rules
from temper.rollout.trajectory import Trajectory
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Unavailable

CODEC = byte_codec()
TOOLS = ToolBox([Tool("python", PYTHON_SCHEMA)], "compact")


def said(
    tokens: Sequence[int], context: int, *, version=1, finish=FinishReason.STOP, logprob=-0.5
) -> Completion:
    size = len(tokens)
    return Completion(
        request_id="r",
        tokens=tuple(tokens),
        logprobs_raw=(logprob,) * size,
        logprobs=(logprob,) * size,
        log_surviving_mass=(0.0,) * size,
        weight_versions=(Span(0, size, version),) if size else (),
        prefill_versions=(Span(0, context, version),),
        finish=finish,
        cached_tokens=0,
    )


@dataclass
class Script:
    """A player that says prepared turns, and a sandbox that does prepared things."""

    turns: list[list[int]]
    observations: list[str] = field(default_factory=list)
    reward: float | None = 1.0
    losses: int = 0
    finish: FinishReason = FinishReason.STOP
    logprob: float = -0.5
    versions: list[int] = field(default_factory=list)
    outcome: sandbox.Outcome = sandbox.OUTCOME_OK
    log: list[str] = field(default_factory=list)
    host: str = "h1"
    refused: str = ""
    submits: bool = False
    components: dict[str, common.RewardComponent] = field(default_factory=dict)

    def player(self, attempt: int) -> "Script":
        self.log.append(f"player {attempt}")
        self.left = list(self.turns)
        return self

    def session(self, attempt: int) -> "Script":
        return self

    async def act(self, trajectory: Trajectory, context: Sequence[int], budget: int) -> FinishReason:
        tokens = self.left.pop(0)[:budget]
        version = self.versions.pop(0) if self.versions else 1
        done = said(tokens, len(context), version=version, finish=self.finish, logprob=self.logprob)
        trajectory.add_turn(context, done)
        return self.finish

    def leave(self) -> None:
        self.log.append("leave")

    async def step(self, turn: int, call: Said, deadline: float) -> sandbox.StepResponse:
        if self.losses:
            self.losses -= 1
            raise Unavailable("nobody serves it")
        self.log.append(f"step {turn} {call.arguments_json}")
        result = sandbox.CommandResult(outcome=self.outcome)
        return sandbox.StepResponse(
            observation=self.observations.pop(0),
            result=result,
            refused=self.refused,
            submitted=self.submits,
        )

    async def finish_(self) -> sandbox.FinishResponse:
        if self.reward is None:
            return sandbox.FinishResponse(infra_error="verifier_timeout")
        return sandbox.FinishResponse(reward=self.reward, solved=self.reward == 1, components=self.components)

    async def abandon(self) -> None:
        self.log.append("abandon")


class ScriptedSession:
    """The session side, whose ``finish`` would collide with the player's finish reason."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.host = "h1"
        self.step = script.step
        self.abandon = script.abandon

    async def finish(
        self, answer: str | None, transcript: Sequence[sandbox.TranscriptEntry], deadline: float
    ):
        self._script.log.append(f"finish {answer} after {len(transcript)}")
        return await self._script.finish_()


@dataclass
class Seat:
    script: Script
    deadline: float = math.inf

    def player(self, attempt: int) -> Script:
        return self.script.player(attempt)

    def session(self, attempt: int) -> ScriptedSession:
        return ScriptedSession(self.script)


async def play(script: Script, *, prompt="2+2=", **limits) -> tuple[Trajectory, SampleSummary]:
    bounds = {"max_turns": 3, "max_tokens": 100, "max_observation_bytes": 16, "group_deadline_s": 60} | limits
    rules = Rules(CODEC, TOOLS, EpisodeLimits(**bounds), max_tokens_per_turn=40, floor=-1.0)
    return await Episode(rules, Seat(script), prompt, FakeClock()).run()


async def test_an_answer_is_scored():
    script = Script([CODEC.answer("4")])
    trajectory, summary = await play(script)
    assert trajectory.tokens == CODEC.prompt("2+2=") + CODEC.answer("4")
    assert summary.sample_class == common.SAMPLE_CLASS_SCORED
    assert (summary.reward, summary.solved, summary.turns) == (1.0, True, 1)
    assert script.log == ["player 0", "finish 4 after 0", "leave"]


async def test_what_a_reward_is_made_of_stays_with_it():
    parts = {"correct": common.RewardComponent(value=1.0, weight=0.7)}
    _, summary = await play(Script([CODEC.answer("4")], components=parts))
    assert dict(summary.components) == parts


async def test_a_call_is_executed_and_its_observation_is_not_an_action():
    script = Script([CODEC.call("2+2"), CODEC.answer("4")], ["4\n"])
    trajectory, summary = await play(script)
    parts = [CODEC.prompt("2+2="), CODEC.call("2+2"), CODEC.observation("4"), CODEC.answer("4")]
    assert trajectory.tokens == [token for part in parts for token in part]
    assert list(trajectory.mask) == [i % 2 for i, part in enumerate(parts) for _ in part]
    assert summary.tools[0].outcome == "ok"
    assert script.log[1:3] == ['step 0 {"code":"2+2"}', "finish 4 after 1"]


async def played_with(tools: ToolBox, script: Script) -> tuple[Trajectory, SampleSummary]:
    limits = EpisodeLimits(max_turns=3, max_tokens=100, max_observation_bytes=64)
    rules = Rules(CODEC, tools, limits, 40, 0.0)
    return await Episode(rules, Seat(script), "2+2=", FakeClock()).run()


async def test_a_call_that_has_no_syntax_is_shown_to_the_policy_and_costs_a_turn():
    two = ToolBox([Tool("a", {"type": "object"}), Tool("b", {"type": "object"})], "hermes")
    script = Script([CODEC.call("zap"), CODEC.answer("4")])
    trajectory, summary = await played_with(two, script)
    assert summary.tools[0].outcome == "malformed"
    assert bytes(t for t in trajectory.tokens if t < 256).find(b"error: arguments") > 0
    assert summary.sample_class == common.SAMPLE_CLASS_SCORED
    assert script.log == ["player 0", "finish 4 after 0", "leave"]


async def test_a_call_that_the_service_refuses_is_shown_and_no_verifier_sees_it():
    two = ToolBox([Tool("a", {"type": "object"}), Tool("b", {"type": "object"})], "compact")
    script = Script(
        [CODEC.call("zap {"), CODEC.answer("4")], ["error: no tool 'zap'"], refused="unknown_tool"
    )
    trajectory, summary = await played_with(two, script)
    assert (summary.tools[0].name, summary.tools[0].outcome) == ("zap", "unknown_tool")
    assert bytes(t for t in trajectory.tokens if t < 256).find(b"error: no tool 'zap'") > 0
    assert script.log[1:3] == ["step 0 {", "finish 4 after 0"]


async def test_an_answer_given_as_a_call_ends_the_episode_and_is_scored():
    script = Script([CODEC.call("4")], ["submitted"], submits=True)
    _, summary = await play(script)
    assert summary.sample_class == common.SAMPLE_CLASS_SCORED
    assert script.log[1:3] == ['step 0 {"code":"4"}', "finish None after 1"]


async def test_observations_are_clipped():
    script = Script([CODEC.call("1"), CODEC.answer("4")], ["x" * 99])
    trajectory, _ = await play(script)
    assert bytes(t for t in trajectory.tokens if t < 256).count(b"x") == 13


async def test_turns_run_out():
    script = Script([CODEC.call("1")] * 3, ["1"] * 3)
    _, summary = await play(script)
    assert summary.sample_class == common.SAMPLE_CLASS_AGENT_FAILED
    assert summary.finish_reason == common.FINISH_REASON_TOOL_LIMIT
    assert (summary.reward, summary.solved) == (-1.0, False)
    assert script.log[-2:] == ["abandon", "leave"]


async def test_a_turn_without_end_fails_at_the_floor():
    _, summary = await play(Script([[49] * 60], finish=FinishReason.LENGTH))
    assert summary.sample_class == common.SAMPLE_CLASS_AGENT_FAILED
    assert summary.finish_reason == common.FINISH_REASON_LENGTH
    assert summary.action_tokens == 40


async def test_tokens_run_out_between_turns():
    _, summary = await play(Script([CODEC.call("1+1")] * 3, ["y" * 16] * 3), max_tokens=24)
    assert summary.sample_class == common.SAMPLE_CLASS_AGENT_FAILED
    assert summary.total_tokens <= 24


async def test_a_prompt_without_room_is_nobodys_failure():
    _, summary = await play(Script([]), max_tokens=5)
    assert summary.sample_class == common.SAMPLE_CLASS_INFRA_FAILED
    assert not summary.HasField("reward")
    assert "leaves no room" in summary.detail


async def test_time_that_runs_out_is_not_a_reward():
    _, summary = await play(Script([[49]], finish=FinishReason.DEADLINE))
    assert summary.sample_class == common.SAMPLE_CLASS_INFRA_FAILED
    assert summary.finish_reason == common.FINISH_REASON_DEADLINE
    assert not summary.HasField("reward")


@pytest.mark.parametrize(("losses", "survives"), [(1, True), (2, True), (3, False)])
async def test_a_lost_sandbox_restarts_the_episode_twice(losses: int, survives: bool):
    script = Script([CODEC.call("2+2"), CODEC.answer("4")], ["4"], losses=losses)
    trajectory, summary = await play(script)
    assert script.log.count("leave") == min(losses, 2) + 1
    if survives:
        assert summary.sample_class == common.SAMPLE_CLASS_SCORED
        assert summary.turns == 2
        assert trajectory.problem() is None
    else:
        assert summary.sample_class == common.SAMPLE_CLASS_INFRA_FAILED
        assert not summary.HasField("reward")


async def test_a_sandbox_that_dies_under_a_command_is_lost():
    script = Script([CODEC.call("1"), CODEC.answer("4")], ["", "", ""], outcome=sandbox.OUTCOME_SANDBOX_DIED)
    _, summary = await play(script)
    assert summary.sample_class == common.SAMPLE_CLASS_INFRA_FAILED
    assert "died" in summary.detail


async def test_a_command_that_times_out_is_a_result():
    script = Script([CODEC.call("1"), CODEC.answer("4")], ["timed out"], outcome=sandbox.OUTCOME_TIMED_OUT)
    _, summary = await play(script)
    assert summary.tools[0].outcome == "timed_out"
    assert summary.sample_class == common.SAMPLE_CLASS_SCORED


async def test_a_verifier_that_fails_gives_no_reward():
    _, summary = await play(Script([CODEC.answer("4")], reward=None))
    assert summary.sample_class == common.SAMPLE_CLASS_INFRA_FAILED
    assert not summary.HasField("reward")
    assert summary.detail == "verifier_timeout"


async def test_a_number_that_is_none_makes_the_tokens_invalid():
    _, summary = await play(Script([CODEC.answer("4")], logprob=math.nan))
    assert summary.sample_class == common.SAMPLE_CLASS_INVALID_TOKENS


async def test_versions_span_turns_and_name_oldest_and_newest():
    script = Script([CODEC.call("2+2"), CODEC.answer("4")], ["4"], versions=[3, 5])
    trajectory, summary = await play(script)
    row = trajectory.table_row(0, 0)
    first = len(CODEC.prompt("2+2=")) + len(CODEC.call("2+2"))
    assert [(span.start, span.end, span.version) for span in row.versions] == [
        (0, first, 3),
        (first, len(trajectory), 5),
    ]
    assert (summary.min_version, summary.max_version) == (3, 5)
