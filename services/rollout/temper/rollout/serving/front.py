"""What the routes share: the fleet, the way a request body comes in, and the way its outputs are played."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from temper.rollout.serving.config import ServingConfig
from temper.rollout.serving.decode import Decoder
from temper.rollout.serving.errors import Late, parse
from temper.rollout.serving.fleet import Fleet
from temper.rollout.serving.generation import Delta, Ended, Output
from temper.rollout.serving.lane import Lane
from temper.rollout.serving.metrics import ServingMetrics
from temper.rollout.serving.params import Choice
from temper.rollout.serving.schema import Routed, VariantName
from temper.rollout.serving.stops import Cutter
from temper.runtime.clock import Clock
from temper.runtime.errors import NotFound, Rejected, Unavailable

B = TypeVar("B", bound=BaseModel)

_HEADERS = {
    "request_class": "x-temper-request-class",
    "variant": "x-temper-variant",
    "trajectory": "x-temper-trajectory",
}
Steps = AsyncGenerator[tuple[Output, Delta | Ended], None]


@dataclass(frozen=True, slots=True)
class Front:
    """One per process."""

    config: ServingConfig
    """Limits."""
    name: str
    """The model's name in the API."""
    fleet: Fleet
    """What answers."""
    clock: Clock
    """Deadlines."""
    metrics: ServingMetrics
    """Counters."""
    started: int
    """Unix seconds."""

    async def read(self, request: Request, kind: type[B]) -> B:
        """The body, parsed; headers fill in where it says nothing about the route.

        Raises ``Rejected`` naming the field at fault.
        """
        said: dict[str, str] = {}
        if issubclass(kind, Routed):
            said = {key: value for key, name in _HEADERS.items() if (value := request.headers.get(name))}
        return parse(kind, await request.body(), said)

    def lane(self, content: Routed, model: str) -> Lane:
        """Who answers. Raises ``NotFound`` for another model, ``Unavailable`` while generation is paused."""
        named = self._variant_in(model)
        if named is not None and content.variant not in (None, named):
            raise Rejected(f"model names {named!r} and variant {content.variant!r}", field="variant")
        lane = self.fleet.choose(
            content.request_class or self.config.default_class, named or content.variant, content.trajectory
        )
        if lane.paused:
            raise Unavailable("generation is paused")
        return lane

    def lane_of(self, model: str) -> Lane:
        """The lane that a model's name stands for. Raises ``NotFound``."""
        fast = self.fleet.fast
        if self._variant_in(model) != "fast":
            return self.fleet.standard
        if fast is None:
            raise NotFound("no fast variant is admitted", field="model")
        return fast

    def _variant_in(self, model: str) -> VariantName | None:
        if model == self.name:
            return None
        name, _, variant = model.rpartition(":")
        if name == self.name and variant in ("standard", "fast"):
            return "fast" if variant == "fast" else "standard"
        raise NotFound(f"there is no model {model!r}; this server has {self.name!r}", field="model")

    def deadline(self) -> float:
        """Monotonic seconds."""
        return self.clock.monotonic() + self.config.request_timeout_s

    async def play(self, lane: Lane, choice: Choice, shown: Mapping[int, str] | None = None) -> Steps:
        """Deltas of one choice, then how it ended, each with the output in hand so that a reader can end it."""
        request = choice.request
        cutter = Cutter(Decoder(lane.model.tokens, shown), choice.stops)
        with lane.seat(
            request.tokens, output=request.sampling.max_tokens, session=choice.session, salt=request.tenant
        ) as seat:
            output = Output(seat.engine, request, cutter, self.clock)
            deltas = output.deltas()
            begun, first = time.perf_counter(), True
            try:
                async for delta in deltas:
                    if first:
                        self.metrics.first_token.observe(time.perf_counter() - begun)
                        first = False
                    seat.written += len(delta.tokens)
                    yield output, delta
            finally:
                await deltas.aclose()
                self.metrics.ended(lane.variant, output.ended)
        assert output.ended is not None
        yield output, output.ended

    async def play_out(self, lane: Lane, choice: Choice) -> tuple[list[Delta], Ended]:
        """The whole of one choice, however it ended."""
        deltas: list[Delta] = []
        async for _, item in self.play(lane, choice):
            if isinstance(item, Ended):
                return deltas, item
            deltas.append(item)
        raise AssertionError("an output ends")


def require_whole(ended: Ended) -> Ended:
    """An output that a client may take for an answer. Raises when time ran out or the server cut it off."""
    if ended.ending == "deadline":
        raise Late(
            "the output was not finished in time",
            hint="ask for fewer tokens, or raise serving.request_timeout_s",
        )
    if ended.ending == "abort":
        raise Unavailable("the output was cut off by a weight update or a shutdown")
    return ended
