"""Episodes that admission plays: oracles, and agents that know nothing. Measured once, read by several checks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.sandbox.v1.sandbox_pb2 import (
    FinishRequest,
    MaterializeResponse,
    OracleAction,
    StepRequest,
    TaskView,
    TranscriptEntry,
)
from temper.qa.engine.base import Probe

T = TypeVar("T")

SPLIT = "train"
MORE_TASKS = 24  # of `Measurements.worked_answers`
LEASE_S = 30.0  # a sandbox of a check that died is gone after it
CANARY = "temper-canary-qzvx-kjwp-hgfd"  # no words, no digits: answers nothing; easy to find in data it should not be in
CONSONANTS = "bcdfghjklmnpqrstvwxz"  # random answers made of them are neither words nor numbers


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode and its verdict. Example: `Episode("oracle", 3, "tool", ("17",), False, 1.0, "")`."""

    agent: str
    """Who played."""
    task_index: int
    """Task of the split."""
    answer: str | None
    """Final answer; None for none."""
    observations: tuple[str, ...]
    """What the tools showed."""
    tool_error: bool
    """Whether a tool call failed."""
    reward: float | None
    """Verdict; None when there was none."""
    infra_error: str
    """Why there was none."""


class Player:
    """Plays episodes of one environment, at most `concurrency` at a time, each with a session id of its own."""

    def __init__(self, probe: Probe, env: EnvRef, *, run: str, concurrency: int) -> None:
        self._probe = probe
        self._env = env
        self._run = run
        self._count = 0
        self._slots = asyncio.Semaphore(concurrency)

    async def materialize(self, split: str, indices: Sequence[int], style: str = "") -> MaterializeResponse:
        """Tasks, and the oracle's actions for a `style`."""
        async with self._slots:
            return await self._probe.materialize(self._env, split, indices, style)

    async def answer(self, agent: str, index: int, answer: str | None) -> Episode:
        """An episode without tools."""
        actions = [] if answer is None else [OracleAction(answer=answer)]
        return await self.play(agent, TaskView(task_index=index, oracle=actions))

    async def play(self, agent: str, view: TaskView) -> Episode:
        """An episode that takes the actions in `view.oracle`."""
        self._count += 1
        session = f"qa-{self._run}/{agent}/{view.task_index}/{self._count}"
        async with self._slots:
            return await self._play(agent, view, session)

    async def _play(self, agent: str, view: TaskView, session: str) -> Episode:
        transcript: list[TranscriptEntry] = []
        answer: str | None = None
        failed = False
        for turn, action in enumerate(view.oracle):
            if action.HasField("answer"):
                answer = action.answer
                break
            reply = await self._probe.step(
                StepRequest(
                    session_id=session,
                    command_id=f"{session}#{turn}",
                    env=self._env,
                    split=SPLIT,
                    task_index=view.task_index,
                    call=action.call,
                    lease_s=LEASE_S,
                )
            )
            failed = failed or reply.is_error
            transcript.append(TranscriptEntry(call=action.call, observation=reply.observation))
        request = FinishRequest(
            session_id=session, env=self._env, split=SPLIT, task_index=view.task_index, transcript=transcript
        )
        if answer is not None:
            request.answer = answer
        verdict = await self._probe.finish(request)
        return Episode(
            agent=agent,
            task_index=view.task_index,
            answer=answer,
            observations=tuple(entry.observation for entry in transcript),
            tool_error=failed,
            reward=verdict.reward if verdict.HasField("reward") else None,
            infra_error=verdict.infra_error,
        )


class Once:
    """Runs each named measurement once, however many checks ask for it at the same time."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[object]] = {}

    async def get(self, name: str, measure: Callable[[], Awaitable[T]]) -> T:
        """The result of `measure`, from the first call that named it."""

        async def run() -> object:
            return await measure()

        if name not in self._running:
            self._running[name] = asyncio.create_task(run())
        return await asyncio.shield(self._running[name])  # type: ignore[return-value]  # one name, one type

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)


class Measurements:
    """What the checks look at. Each method is measured at most once."""

    def __init__(self, player: Player, *, styles: Sequence[str], tasks: int) -> None:
        self.player = player
        self.styles = tuple(styles)
        self.indices = tuple(range(tasks))
        self._once = Once()

    async def close(self) -> None:
        """Stop what still runs."""
        await self._once.close()

    async def views(self) -> MaterializeResponse:
        """Tasks as the policy sees them."""
        return await self._once.get("views", lambda: self.player.materialize(SPLIT, self.indices))

    async def solutions(self, style: str) -> list[TaskView]:
        """Tasks with the oracle's actions; tasks it cannot solve in that style are left out."""

        async def measure() -> list[TaskView]:
            reply = await self.player.materialize(SPLIT, self.indices, style)
            return [view for view in reply.tasks if view.oracle]

        return await self._once.get(f"solutions/{style}", measure)

    async def oracle(self, style: str) -> list[Episode]:
        """The oracle's episodes in one style."""

        async def measure() -> list[Episode]:
            views = await self.solutions(style)
            return await asyncio.gather(*(self.player.play("oracle", view) for view in views))

        return await self._once.get(f"oracle/{style}", measure)

    async def worked_answers(self) -> list[Episode]:
        """Answers that the oracle got from a tool, for more tasks, handed in without running the tool again.

        They show whether the dataset agrees with the tool; a disagreement in one task of seven is seen with 98 %.
        """

        async def measure() -> list[Episode]:
            if "tool" not in self.styles or not await self.solutions("tool"):
                return []
            indices = range(len(self.indices), len(self.indices) + MORE_TASKS)
            views = (await self.player.materialize(SPLIT, indices, "tool")).tasks
            played = (
                self.player.answer("oracle", view.task_index, view.oracle[-1].answer)
                for view in views
                if view.oracle
            )
            return await asyncio.gather(*played)

        return await self._once.get("worked_answers", measure)

    async def first_solution(self) -> TaskView | None:
        """A task with a solution, in the style that uses most of the environment; None when there is no oracle."""
        for style in self.styles:
            if views := await self.solutions(style):
                return views[0]
        return None

    async def floor(self) -> dict[str, list[Episode]]:
        """Episodes of the agents that know nothing, by agent."""

        async def measure() -> dict[str, list[Episode]]:
            answers: dict[str, Callable[[int], str | None]] = {
                "null": lambda _: None,
                "empty": lambda _: "",
                "random": random_answer,
                "format_only": lambda _: "<answer></answer>",
            }
            return await self._by_agent(answers)

        return await self._once.get("floor", measure)

    async def quoting(self) -> dict[str, list[Episode]]:
        """Episodes of agents that answer with the instruction, or with a canary string."""

        async def measure() -> dict[str, list[Episode]]:
            prompts = {view.task_index: view.prompt for view in (await self.views()).tasks}
            return await self._by_agent({"echo": lambda index: prompts[index], "canary": lambda _: CANARY})

        return await self._once.get("quoting", measure)

    async def truncated(self, shares: Sequence[float]) -> list[Episode]:
        """One oracle answer cut to each share of its length; empty without an oracle."""

        async def measure() -> list[Episode]:
            view = await self.first_solution()
            if view is None:
                return []
            answer = view.oracle[-1].answer
            cuts = [answer[: round(len(answer) * share)] for share in shares]
            return await asyncio.gather(
                *(self.player.answer("partial", view.task_index, cut) for cut in cuts)
            )

        return await self._once.get("truncated", measure)

    async def _by_agent(self, answers: dict[str, Callable[[int], str | None]]) -> dict[str, list[Episode]]:
        async def play(agent: str, answer: Callable[[int], str | None]) -> list[Episode]:
            return await asyncio.gather(
                *(self.player.answer(agent, index, answer(index)) for index in self.indices)
            )

        played = await asyncio.gather(*(play(agent, answer) for agent, answer in answers.items()))
        return dict(zip(answers, played, strict=True))


def random_answer(index: int) -> str:
    """Twelve letters drawn from a seed of their own: the same on every run."""
    draw = random.Random(f"random/{index}")  # noqa: S311 - reproducible on purpose
    return "".join(draw.choice(CONSONANTS) for _ in range(12))


def without_host(episode: Episode) -> Episode:
    """What two replays of one episode must agree on."""
    return replace(episode, agent="", infra_error=episode.infra_error.partition(":")[0])
