"""Every lane of one server: the standard one always, a fast one while it is admitted, a candidate while a canary is open.

choose   request class, override, canary  ->  lane
update   new standard weights at a step edge; the fast lane leaves, since its admission spoke for other weights
canary   candidate beside standard -> promoted (the old one stays loaded until it is released) or closed
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

from temper.rollout.engine.base import Engine, Stats, SwapPolicy
from temper.rollout.publication import Weights
from temper.rollout.serving.canary.state import OPEN, Canary, Phase, Plan
from temper.rollout.serving.directory import Model
from temper.rollout.serving.lane import Lane, Loaded
from temper.rollout.serving.schema import RequestClass, VariantName
from temper.rollout.serving.sources import Found, SourceBody, Sources
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, NotFound, Rejected
from temper.runtime.telemetry import get_logger

MakeEngine = Callable[[], Engine]


class Fleet:
    """Lanes of one server. ``sources``: where new weights come from."""

    def __init__(
        self, model: Model, make_engine: MakeEngine, clock: Clock, *, replicas: int, sources: Sources
    ) -> None:
        self._make_engine, self._clock, self._replicas = make_engine, clock, replicas
        self._sources = sources
        self._published: Weights | None = None  # what serves, as it was published, where deltas come
        self.standard = self._new_lane("standard", model)
        self.fast: Lane | None = None
        self.canary: Canary | None = None
        self.candidate: Lane | None = None
        """The new version while a canary is open, the old one after it was promoted."""
        self._changing = asyncio.Lock()  # weights, canary: one change at a time
        self._leaving: set[asyncio.Task[None]] = set()
        self._log = get_logger()

    @property
    def lanes(self) -> list[Lane]:
        """Everything that is loaded."""
        return [lane for lane in (self.standard, self.fast, self.candidate) if lane is not None]

    async def start(self, version: int = 0) -> None:
        """Load the standard lane."""
        await self.standard.start(version)

    async def close(self) -> None:
        """Stop all lanes."""
        await asyncio.gather(*(lane.close() for lane in self.lanes), *self._leaving)

    async def add_fast(self, model: Model, make_engine: MakeEngine) -> None:
        """Load a fast lane. The caller has checked its admission."""
        lane = Lane("fast", model, [make_engine()], self._clock)
        await lane.start(self.standard.version)
        self.fast = lane

    def choose(
        self, request_class: RequestClass, variant: VariantName | None, trajectory: str | None
    ) -> Lane:
        """Who answers. Raises ``Rejected`` for a fast variant that may not serve this."""
        if variant == "fast":
            if request_class == "training":
                raise Rejected("logprobs of a fast variant must not reach a trainer", field="variant")
            if self.fast is None:
                raise Rejected(
                    "no fast variant is admitted for the weights that serve now",
                    field="variant",
                    hint="temper variant admit makes a record",
                )
            return self.fast
        if variant is None and request_class == "interactive" and self.fast is not None:
            return self.fast
        canary, candidate = self.canary, self.candidate
        if canary is None or candidate is None or canary.phase not in OPEN or request_class == "training":
            return self.standard
        return candidate if canary.takes(trajectory or secrets.token_hex(8)) else self.standard

    def stats(self) -> dict[tuple[str, str], Stats]:
        """Engine counters by (role, replica)."""
        roles = (("standard", self.standard), ("fast", self.fast), ("candidate", self.candidate))
        return {
            (role, str(number)): engine.stats()
            for role, lane in roles
            if lane is not None
            for number, engine in enumerate(lane.engines)
        }

    async def pause(self) -> None:
        """Stop stepping on all lanes; nothing is lost."""
        for lane in self.lanes:
            for engine in lane.engines:
                await engine.pause()

    async def resume(self) -> None:
        """Step again."""
        for lane in self.lanes:
            for engine in lane.engines:
                await engine.resume()

    async def update(self, body: SourceBody, policy: SwapPolicy) -> Loaded:
        """New weights for the standard lane. Raises ``Conflict`` while a canary is open."""
        async with self._changing:
            self._require_no_canary()
            found = await self._sources.read(body, self.standard.model, self._published)
            version = self._number(body, found)
            loaded = await self.standard.update(found.model, version, policy)
            self._published = found.weights
            self._drop_fast(found.model)
            return loaded

    async def start_canary(self, body: SourceBody, plan: Plan) -> Canary:
        """Load a candidate and give it the first share."""
        async with self._changing:
            self._require_no_canary()
            found = await self._sources.read(body, self.standard.model, self._published)
            number = self._number(body, found)
            lane = self._new_lane("standard", found.model)
            await lane.start(number)
            self.candidate = lane
            self.canary = Canary(f"v{number}", plan)
            return self.canary

    def outcome(
        self, trajectory: str, *, success: bool | None, latency_s: float | None, cost: float | None
    ) -> Canary:
        """Tell the canary what became of a trajectory. Raises ``NotFound`` when there never was one."""
        canary = self.known_canary()
        before = canary.phase
        canary.observe(trajectory, success=success, latency_s=latency_s, cost=cost)
        self._settle(before)
        return canary

    def approve(self) -> Canary:
        """A human agrees to the promotion."""
        canary = self.known_canary()
        before = canary.phase
        canary.approve()
        self._settle(before)
        return canary

    def abort(self, reason: str) -> Canary:
        """Back to the old version: an open canary is aborted, a promoted one undone while the old one is loaded."""
        canary = self.known_canary()
        if canary.phase is Phase.PROMOTED and self.candidate is not None:
            self.standard, undone = self.candidate, self.standard
            self._published = None
            canary.phase, canary.reason = Phase.ABORTED, reason
            self.candidate = None
            self._drop_fast(self.standard.model)
            self._leave(undone)
            return canary
        before = canary.phase
        canary.abort(reason)
        self._settle(before)
        return canary

    def release(self) -> Canary:
        """Let go of the old version after a promotion."""
        canary = self.known_canary()
        if canary.phase in OPEN or self.candidate is None:
            raise Conflict(f"canary {canary.name} is {canary.phase}; there is nothing to let go of")
        self._leave(self.candidate)
        self.candidate = None
        return canary

    def known_canary(self) -> Canary:
        """The last canary. Raises ``NotFound``."""
        if self.canary is None:
            raise NotFound("there is no canary", hint="POST /v1/canary starts one")
        return self.canary

    def _settle(self, before: Phase) -> None:
        """Do what a change of phase asks for."""
        canary, candidate = self.canary, self.candidate
        if canary is None or candidate is None or canary.phase is before or canary.phase in OPEN:
            return
        self._log.info("canary.ended", canary=canary.name, phase=canary.phase.value, reason=canary.reason)
        if canary.phase is Phase.PROMOTED:
            self.standard, self.candidate = candidate, self.standard
            self._published = None  # a delta is built from the last full weights then
            self._drop_fast(candidate.model)
        else:
            self.candidate = None
            self._leave(candidate)

    def _drop_fast(self, model: Model) -> None:
        """The admission spoke for the weights before: it expires with them."""
        fast = self.fast
        if fast is not None:
            self._log.warning("variant.expired", variant="fast", standard=model.digest[:12])
            self.fast = None
            self._leave(fast)

    def _leave(self, lane: Lane) -> None:
        """Close a lane when what runs there has finished; new requests no longer reach it."""

        async def drain() -> None:
            while any(engine.alive and (s := engine.stats()).running + s.waiting for engine in lane.engines):
                await self._clock.sleep(_LOOK_S)
            await lane.close()

        task = asyncio.create_task(drain(), name="lane-leaves")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _new_lane(self, variant: VariantName, model: Model) -> Lane:
        engines: Sequence[Engine] = [self._make_engine() for _ in range(self._replicas)]
        return Lane(variant, model, engines, self._clock)

    def _number(self, body: SourceBody, found: Found) -> int:
        """Version of new weights. Raises ``Rejected`` unless it is above the one that serves, and the manifest's own."""
        now = self.standard.version
        asked = body.version if body.version is not None else found.version
        number = now + 1 if asked is None else asked
        if found.version is not None and number != found.version:
            raise Rejected(f"the manifest is of version {found.version}, not {number}", field="version")
        if number <= now:
            raise Rejected(f"version must be above {now}, which serves now", field="version")
        return number

    def _require_no_canary(self) -> None:
        if self.canary is not None and self.canary.phase in OPEN:
            raise Conflict(f"canary {self.canary.name} is open", hint="abort it, or wait for its end")
        if self.candidate is not None:
            raise Conflict("the version before the last canary is still loaded", hint="release it first")


_LOOK_S = 0.05  # between looks at a lane that drains
