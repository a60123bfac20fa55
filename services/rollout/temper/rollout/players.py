"""Who acts in an episode: the policy through an engine, or an environment's oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from temper.api.sandbox.v1.sandbox_pb2 import OracleAction
from temper.rollout.calls import ToolBox
from temper.rollout.codec import Codec
from temper.rollout.engine.base import Engine, FinishReason, Request, Sampling
from temper.rollout.trajectory import Trajectory


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


class PolicyPlayer:
    """Turns of a policy. Each continues the one before it, so a turn computes its new tokens only."""

    def __init__(self, engine: Engine, name: str, draw: Draw) -> None:
        self._engine, self._name, self._draw = engine, name, draw
        self._turn = 0
        self._kept: str | None = None

    async def act(self, trajectory: Trajectory, context: Sequence[int], budget: int) -> FinishReason:
        """Sample a turn."""
        name = f"{self._name}#{self._turn}"
        sampling = self._draw.sampling
        request = Request(
            request_id=name,
            tokens=tuple(context),
            sampling=Sampling(
                max_tokens=budget,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                stop_token_ids=sampling.stop_token_ids,
            ),
            seed=self._draw.seed,
            sample_index=self._draw.stream,
            deadline=self._draw.deadline,
            continues=self._kept,
            keep=True,
        )
        pending = self._engine.submit(request)
        self._kept, self._turn = None, self._turn + 1
        try:
            done = await pending
        finally:
            self._kept = name  # releasing what was not kept after all is harmless
        trajectory.add_turn(context, done)
        return done.finish

    def leave(self) -> None:
        """Free the KV."""
        if self._kept is not None:
            self._engine.release(self._kept)


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
