"""Materialize, Step, Finish: environments in real worker processes, sandboxes of the fake backend."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.unit.sandbox.worlds import MANIFEST, SUM, World

from temper.api.common.v1 import common_pb2
from temper.api.sandbox.v1 import sandbox_pb2 as pb
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Rejected, Stale


@pytest_asyncio.fixture
async def made(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path, SystemClock())
    yield made
    await made.close()


def step(
    env: common_pb2.EnvRef, code: str, *, session: str = "s", turn: int = 0, tool: str = "python"
) -> pb.StepRequest:
    call = pb.ToolCall(name=tool, arguments_json=json.dumps({"code": code}))
    return pb.StepRequest(
        session_id=session, command_id=f"{session}#{turn}", env=env, split="train", task_index=3, call=call
    )


def finish(env: common_pb2.EnvRef, answer: str | None, *, session: str = "s") -> pb.FinishRequest:
    return pb.FinishRequest(session_id=session, env=env, split="train", task_index=3, answer=answer)


async def test_a_task_comes_with_its_tools_and_oracle_but_not_its_answer(made: World) -> None:
    env = made.bundles.add(params={"offset": 4})
    request = pb.MaterializeRequest(env=env, split="train", task_indices=[3], oracle_styles=["tool"])
    reply = await made.episodes.materialize(request)
    (task,) = reply.tasks
    assert (task.task_index, task.prompt, task.tags["split"]) == (3, "3 + 4", "train")
    assert task.oracle[0].call.name == "python"
    assert json.loads(task.oracle[0].call.arguments_json) == {"code": "3 + 4"}
    assert task.oracle[1].answer == "7"
    assert json.loads(reply.tools[0].parameters_schema_json)["required"] == ["code"]
    assert (reply.reward_min, reply.reward_max, reply.host) == (0.0, 1.0, "host-1")
    assert made.fake.created == 0


async def test_no_style_no_oracle(made: World) -> None:
    request = pb.MaterializeRequest(env=made.bundles.add(), split="train", task_indices=[3])
    assert not (await made.episodes.materialize(request)).tasks[0].oracle


async def test_styles_must_match_tasks(made: World) -> None:
    request = pb.MaterializeRequest(
        env=made.bundles.add(), split="train", task_indices=[1, 2], oracle_styles=["tool"]
    )
    with pytest.raises(Rejected, match="oracle_styles"):
        await made.episodes.materialize(request)


async def test_an_episode_acquires_at_its_first_step_and_releases_at_its_finish(made: World) -> None:
    env = made.bundles.add(params={"offset": 4})
    first = await made.episodes.step(step(env, "x = 3"))
    assert (first.host, first.observation, first.is_error) == ("host-1", "", False)
    second = await made.episodes.step(step(env, "x + 4", turn=1))
    assert (second.observation, second.result.outcome) == ("7", pb.OUTCOME_OK)
    assert len(made.fake.live) == 1
    verdict = await made.episodes.finish(finish(env, second.observation))
    assert (verdict.reward, verdict.solved, verdict.infra_error) == (1.0, True, "")
    assert made.fake.live == set()
    assert made.records[0].commands == 2


async def test_a_single_turn_episode_needs_no_sandbox(made: World) -> None:
    verdict = await made.episodes.finish(finish(made.bundles.add(), "3"))
    assert verdict.reward == 1.0
    assert made.fake.created == 0


async def test_a_repeated_step_is_answered_from_the_log(made: World) -> None:
    env = made.bundles.add()
    await made.episodes.step(step(env, "x = 1"))
    once = await made.episodes.step(step(env, "x = x + 1", turn=1))
    assert await made.episodes.step(step(env, "x = x + 1", turn=1)) == once
    assert (await made.episodes.step(step(env, "x", turn=2))).observation == "2"


async def test_a_repeated_finish_gives_the_same_verdict_and_verifies_once(
    made: World, tmp_path: Path
) -> None:
    source = SUM.replace(
        "        return 1.0 if",
        "        open(os.environ['HOME'] + '/mark', 'a').write('x')\n        return 1.0 if",
    ).replace("class Env", "import os\nclass Env")
    env = made.bundles.add(source)
    replies = await asyncio.gather(*(made.episodes.finish(finish(env, "3")) for _ in range(3)))
    again = await made.episodes.finish(finish(env, "3"))
    assert all(reply == again for reply in replies)
    (mark,) = (tmp_path / "bundles").glob("home-*/mark")
    assert mark.read_text() == "x"


async def test_a_step_after_the_finish_is_stale(made: World) -> None:
    env = made.bundles.add()
    await made.episodes.step(step(env, "1"))
    await made.episodes.finish(finish(env, "3"))
    with pytest.raises(Stale):
        await made.episodes.step(step(env, "1", turn=1))


async def test_no_answer_is_the_floor(made: World) -> None:
    verdict = await made.episodes.finish(finish(made.bundles.add(), None))
    assert verdict.HasField("reward")
    assert (verdict.reward, verdict.solved) == (0.0, False)


async def test_an_abandoned_episode_has_no_reward(made: World) -> None:
    env = made.bundles.add()
    await made.episodes.step(step(env, "1"))
    request = finish(env, "3")
    request.abandon = True
    verdict = await made.episodes.finish(request)
    assert not verdict.HasField("reward")
    assert verdict.infra_error == "abandoned"
    assert made.fake.live == set()


async def test_a_failing_verifier_gives_no_reward_and_says_why(made: World) -> None:
    env = made.bundles.add(SUM.replace("return 1.0 if", "return 1 / 0 if"))
    verdict = await made.episodes.finish(finish(env, "3"))
    assert not verdict.HasField("reward")
    assert verdict.infra_error.startswith("verifier_error: ZeroDivisionError")


async def test_a_verifier_that_died_gives_no_reward_and_may_be_asked_again(
    made: World, tmp_path: Path
) -> None:
    (tmp_path / "for-all").mkdir()
    (tmp_path / "for-all").chmod(0o777)
    died = tmp_path / "for-all" / "died"
    source = "import os\n" + SUM.replace(
        "        return 1.0 if",
        f"        if not os.path.exists({str(died)!r}):\n            open({str(died)!r}, 'w').close(); os._exit(1)\n        return 1.0 if",
    )
    env = made.bundles.add(source)
    first = await made.episodes.finish(finish(env, "3"))
    assert not first.HasField("reward")
    assert first.infra_error.startswith("verifier_timeout")
    assert (await made.episodes.finish(finish(env, "3"))).reward == 1.0


async def test_the_agents_processes_are_gone_before_the_verifier_runs(made: World) -> None:
    env = made.bundles.add()
    await made.episodes.step(step(env, "1"))
    order: list[str] = []
    (sandbox,) = made.fake.live
    episodes: Any = made.episodes
    destroy, score = sandbox.destroy, episodes._score

    async def noted_destroy() -> None:
        order.append("destroyed")
        await destroy()

    async def noted_score(*arguments: Any) -> float:
        order.append("scored")
        return await score(*arguments)

    sandbox.destroy = noted_destroy
    episodes._score = noted_score
    await made.episodes.finish(finish(env, "3"))
    assert order == ["destroyed", "scored"]


async def test_the_verifier_sees_the_transcript(made: World) -> None:
    env = made.bundles.add(
        SUM.replace("return 1.0 if answer", "return 1.0 if transcript[0]['call']['arguments']['code']")
    )
    request = finish(env, "x")
    call = pb.ToolCall(name="python", arguments_json='{"code": "3"}')
    request.transcript.append(pb.TranscriptEntry(call=call, observation="3"))
    assert (await made.episodes.finish(request)).reward == 1.0


async def test_a_tool_that_is_not_offered_is_an_observation_and_costs_no_sandbox(made: World) -> None:
    reply = await made.episodes.step(step(made.bundles.add(), "1", tool="shell"))
    assert (reply.is_error, reply.refused) == (True, "unknown_tool")
    assert reply.observation == "error: no tool 'shell'; known: python"
    assert made.fake.created == 0


@pytest.mark.parametrize("text", ["[1]", '{"x": 1, "y": 2}', "[" * 5000])
async def test_hud_python_480_malformed_arguments_are_an_observation_and_the_episode_goes_on(
    made: World, text: str
) -> None:
    env = made.bundles.add(params={"offset": 4})
    request = step(env, "1")
    request.call.arguments_json = text
    reply = await made.episodes.step(request)
    assert reply.is_error
    assert reply.refused in {"malformed", "invalid_args"}
    assert (await made.episodes.step(step(env, "2 + 3", turn=1))).observation == "5"
    last = finish(env, "7")
    last.transcript.append(pb.TranscriptEntry(call=request.call, observation=reply.observation))
    assert (await made.episodes.finish(last)).reward == 1.0


async def test_a_repaired_call_runs_and_says_so(made: World) -> None:
    request = step(made.bundles.add(), "1")
    request.call.arguments_json = '{"code": 5} and so'
    reply = await made.episodes.step(request)
    assert reply.observation == "5\n[call repaired: trailing_text, type]"
    assert list(reply.repairs) == ["trailing_text", "type"]


async def test_an_answer_can_be_submitted_as_a_call_once(made: World) -> None:
    env = made.bundles.add(manifest=MANIFEST + '[[tools]]\nname = "submit"\n', params={"offset": 4})
    request = step(env, "", tool="submit")
    request.call.arguments_json = '{"answer": "7"}'
    reply = await made.episodes.step(request)
    assert (reply.submitted, reply.is_error, reply.observation) == (True, False, "submitted")
    assert (await made.episodes.step(request)).observation == "submitted"  # redelivered
    request.call.arguments_json = '{"answer": "8"}'
    assert (await made.episodes.step(request)).is_error
    assert (await made.episodes.step(step(env, "1", turn=2))).refused == "submitted"
    assert (await made.episodes.finish(finish(env, None))).reward == 1.0


async def test_weak_isolation_is_refused_unless_the_host_or_the_environment_says_so(tmp_path: Path) -> None:
    made = World(tmp_path, SystemClock(), allow_weak=False)
    with pytest.raises(Rejected, match="not trusted"):
        await made.episodes.step(step(made.bundles.add(), "1"))
    trusted = MANIFEST.replace("[reward]", "[runtime]\ntrusted = true\n[reward]")
    assert (await made.episodes.step(step(made.bundles.add(manifest=trusted), "1"))).observation == "1"
    await made.close()


async def test_an_agents_mistake_is_an_observation(made: World) -> None:
    reply = await made.episodes.step(step(made.bundles.add(), "nothing"))
    assert reply.is_error
    assert reply.observation == "NameError: name 'nothing' is not defined"
