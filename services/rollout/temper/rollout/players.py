"""Who acts in an episode: the policy through an engine, an earlier delivery's record of it, or an environment's oracle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from temper.api.rollout.v1.rollout_pb2 import SampleTokens
from temper.api.sandbox.v1.sandbox_pb2 import OracleAction
from temper.rollout.calls import ToolBox
from temper.rollout.codec import Codec
from temper.rollout.engine.base import Completion, Engine, FinishReason, Request, Sampling, Span
from temper.rollout.partials import Journal
from temper.rollout.trajectory import FINISH, Trajectory
from temper.runtime.errors import Stale, Unavailable

_REASONS = {written: reason for reason, written in FINISH.items()}


class TooOld(Stale):
    """The sample holds tokens of a version that no trainer will take any more."""


class Diverged(Unavailable):
    """A recorded sample cannot be gone on from: the world answers otherwise than it did then."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How a sample's tokens are drawn."""

    sampling: Sampling
    """``max_tokens`` is replaced by each turn's budget."""
    seed: int
    """Of the group."""
    stream: int
    """Number of the sample in the group: with the seed, the key of its random numbers."""
    deadline: float
    """Monotonic seconds."""
    group: str = ""
    """Requests of one group share what they can."""
    tenant: str = ""
    """Whose prefixes may be shared: the job's."""
    attempt: int = 1
    """Delivery of the group."""


class Age(Protocol):
    """Tells what has become too old to be trained on."""

    def too_old(self, version: int) -> bool:
        """Whether tokens drawn under ``version`` are worth nothing any more."""
        ...

    async def news(self) -> None:
        """Return when that may have changed."""
        ...


class PolicyPlayer:
    """Turns of a policy. Each continues the one before it, so a turn computes its new tokens only.

    With ``age``, a turn is not begun, or is given up, once the oldest of the sample's tokens has become too old.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        draw: Draw,
        journal: Journal | None = None,
        age: Age | None = None,
    ) -> None:
        self._engine, self._name, self._draw = engine, name, draw
        self._journal, self._age = journal, age
        self._turn = 0
        self._kept: str | None = None

    async def act(self, trajectory: Trajectory, context: Sequence[int], budget: int) -> FinishReason:
        """Sample a turn. Raises ``TooOld`` when going on is in vain."""
        oldest = trajectory.version_range[0] if trajectory.action_tokens else self._engine.stats().version
        self._check(oldest)
        name = f"{self._name}#{self._turn}"
        # A sample that was taken over from elsewhere has no KV here: its first turn brings all that came before.
        before = [] if self._kept is not None else trajectory.tokens
        pending = self._engine.submit(self._request(name, [*before, *context], budget))
        self._kept, self._turn = None, self._turn + 1
        try:
            done = await (pending if self._age is None else self._watched(pending, name, oldest, self._age))
        finally:
            self._kept = name  # releasing what was not kept after all is harmless
        trajectory.add_turn(context, _tail(done, len(before)))
        if done.finish is FinishReason.ABORT:
            self._check(oldest)
        if self._journal is not None and done.finish in (FinishReason.STOP, FinishReason.LENGTH):
            await self._journal.turn_ended(trajectory)
        return done.finish

    def leave(self) -> None:
        """Free the KV."""
        if self._kept is not None:
            self._engine.release(self._kept)

    def _check(self, oldest: int) -> None:
        if self._age is not None and self._age.too_old(oldest):
            raise TooOld(f"no trainer takes tokens of version {oldest} any more, and the sample holds some")

    async def _watched(
        self, pending: asyncio.Future[Completion], name: str, oldest: int, age: Age
    ) -> Completion:
        """The turn, given up as soon as its first token is too old: nobody would train on what comes after."""
        news: asyncio.Future[None] | None = None
        try:
            while not pending.done():
                news = news if news is not None and not news.done() else asyncio.ensure_future(age.news())
                if age.too_old(oldest):
                    self._engine.cancel(name)
                    break
                await asyncio.wait({pending, news}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pending.cancel()
            raise
        finally:
            if news is not None:
                news.cancel()
        return await pending

    def _request(self, name: str, tokens: Sequence[int], budget: int) -> Request:
        draw = self._draw
        return Request(
            request_id=name,
            tokens=tuple(tokens),
            sampling=replace(draw.sampling, max_tokens=budget),
            seed=draw.seed,
            sample_index=draw.stream,
            deadline=draw.deadline,
            continues=self._kept,
            keep=True,
            attempt=draw.attempt,
            group=draw.group,
            tenant=draw.tenant,
        )


class ResumingPlayer:
    """Plays the recorded turns again, then lets the policy go on. Tokens, logprobs and versions stay as recorded."""

    def __init__(self, recorded: SampleTokens, then: PolicyPlayer) -> None:
        self._recorded, self._then = recorded, then

    async def act(self, trajectory: Trajectory, context: Sequence[int], budget: int) -> FinishReason:
        """The next recorded turn if there is one. Raises ``Diverged`` when what leads up to it is not what led up to it."""
        recorded = self._recorded
        if trajectory.turns >= len(recorded.turns):
            return await self._then.act(trajectory, context, budget)
        end = recorded.turns[trajectory.turns]
        if list(recorded.token_ids[len(trajectory) : end.start]) != list(context):
            raise Diverged(f"turn {trajectory.turns}: the context is not the recorded one")
        if end.end - end.start > budget:
            raise Diverged(f"turn {trajectory.turns}: longer than its budget of {budget} tokens")
        trajectory.add_recorded(recorded)
        return _REASONS[end.finish_reason]

    def leave(self) -> None:
        """Free the KV."""
        self._then.leave()


class OraclePlayer:
    """Actions of an environment's oracle, written as the policy would write them."""

    def __init__(self, actions: Sequence[OracleAction], codec: Codec, tools: ToolBox, version: int) -> None:
        self._actions, self._codec, self._tools, self._version = list(actions), codec, tools, version

    async def act(self, trajectory: Trajectory, context: Sequence[int], budget: int) -> FinishReason:
        """Play the next action; out of actions or budget, the turn has no end."""
        action = self._write() if self._actions else []
        finish = FinishReason.STOP if 0 < len(action) <= budget else FinishReason.LENGTH
        trajectory.add_demonstration(context, action[:budget], self._version)
        return finish

    def leave(self) -> None:
        """Nothing is held."""

    def _write(self) -> list[int]:
        action = self._actions.pop(0)
        if action.WhichOneof("action") == "answer":
            return self._codec.answer(action.answer)
        arguments = json.loads(action.call.arguments_json or "{}")
        return self._codec.call(self._tools.write(action.call.name, arguments))


def _tail(done: Completion, before: int) -> Completion:
    """A completion whose context begins after its first ``before`` tokens: those have spans of their own already."""
    if not before:
        return done
    spans = [
        Span(max(span.start, before) - before, span.end - before, span.version)
        for span in done.prefill_versions
        if span.end > before
    ]
    return replace(done, prefill_versions=tuple(spans))
