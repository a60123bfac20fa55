"""Replicas that serve one variant of one model version, behind one router."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from temper.rollout.engine.base import Completion, Engine, Request, Sampling, SwapPolicy, SwapReport
from temper.rollout.serving.directory import Model
from temper.rollout.serving.route import BLOCK, Router
from temper.rollout.serving.schema import VariantName
from temper.runtime.clock import Clock
from temper.runtime.errors import Unavailable

_PROBE_TOKENS, _PROBE_S = 8, 60.0
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a weight update."""

    version: int
    """Version that is current on every replica."""
    digest: str
    """SHA-256 over config and weights."""
    policy: SwapPolicy
    """What was done with running sequences."""
    running: int
    """Sequences that went on across the swap, over all replicas."""
    seconds: float
    """Of the slowest replica."""
    probe: str | None
    """Checksum of a greedy probe; None when the engine was paused."""
    replicas_agree: bool
    """Whether every replica gave that checksum."""


@dataclass(slots=True)
class Seat:
    """A place on a replica."""

    engine: Engine
    """The replica."""
    written: int = 0
    """Output tokens so far; who sits there counts them."""


class Lane:
    """See the module."""

    def __init__(self, variant: VariantName, model: Model, engines: Sequence[Engine], clock: Clock) -> None:
        self.variant: VariantName = variant
        self.model = model
        self.engines = tuple(engines)
        self.version = -1
        self._clock = clock
        self._router = Router(len(engines), blocks=1)

    @property
    def fingerprint(self) -> str:
        """What answered: variant, version, weights."""
        return f"{self.variant}-v{self.version}-{self.model.digest[:12]}"

    @property
    def paused(self) -> bool:
        """Whether any replica is paused."""
        return any(engine.stats().paused for engine in self.engines)

    @property
    def alive(self) -> bool:
        """Whether any replica steps."""
        return any(engine.alive for engine in self.engines)

    @property
    def max_context(self) -> int:
        """Most tokens of a sequence."""
        return self.engines[0].info.max_context

    @property
    def placed(self) -> list[int]:
        """Requests placed on each replica."""
        return self._router.placed()

    async def start(self, version: int) -> None:
        """Load the model on every replica. Raises ``Rejected`` when it does not fit; nothing stays running then."""
        try:
            for engine in self.engines:
                await engine.start()
                await engine.load(self.model.files(version))
                await engine.swap(version)
        except BaseException:
            await self.close()
            raise
        self.model, self.version = _loaded(self.model), version
        blocks = self.engines[0].stats().blocks
        kept = (
            blocks.total if blocks is not None else self.engines[0].stats().slots * self.max_context // BLOCK
        )
        self._router = Router(len(self.engines), blocks=kept)

    async def close(self) -> None:
        """Stop every replica."""
        await asyncio.gather(*(engine.close() for engine in self.engines))

    async def update(self, model: Model, version: int, policy: SwapPolicy) -> Loaded:
        """Load beside what runs, swap at a step edge, check with a probe. A failure to load leaves the old version.

        A replica that is dead, and stays so, is passed over: it gets no requests either.
        """
        for engine in self.engines:
            await engine.load(model.files(version))
        reports = [await self._swap(engine, version, policy) for engine in self.engines]
        reports = [report for report in reports if report is not None]
        if not reports:
            raise Unavailable("no replica is running")
        self.model, self.version = _loaded(model), version
        self._router.forget()
        probes: list[str] = (
            [] if self.paused else [await self._probe(engine) for engine in self.engines if engine.alive]
        )
        return Loaded(
            version=version,
            digest=model.digest,
            policy=policy,
            running=sum(report.running for report in reports),
            seconds=max(report.seconds for report in reports),
            probe=probes[0] if probes else None,
            replicas_agree=len(set(probes)) <= 1,
        )

    @contextmanager
    def seat(self, tokens: Sequence[int], *, output: int, session: str | None, salt: str) -> Iterator[Seat]:
        """A replica for one request, charged until the block is left."""
        for number, engine in enumerate(self.engines):
            self._router.set_health(number, healthy=engine.alive)
        placed = self._router.place(tokens, output=output, session=session, salt=salt)
        if placed is None:
            raise Unavailable("no replica is running")
        seat = Seat(self.engines[placed.replica])
        try:
            yield seat
        finally:
            self._router.finished(placed, seat.written)

    async def _swap(self, engine: Engine, version: int, policy: SwapPolicy) -> SwapReport | None:
        try:
            return await engine.swap(version, policy)
        except Unavailable:
            if engine.alive:
                raise
            return None

    async def _probe(self, engine: Engine) -> str:
        """SHA-256 over ids and float32 logprobs of a short greedy output."""
        vocabulary = int(self.model.config["vocab_size"])
        prompt = tuple(range(min(_PROBE_TOKENS, vocabulary, self.max_context - 1)))
        sampling = Sampling(max_tokens=_PROBE_TOKENS, temperature=0.0)
        deadline = self._clock.monotonic() + _PROBE_S
        request = Request(f"probe-{next(_numbers)}", prompt, sampling, 0, 0, deadline, tenant="probe")
        done: Completion = await engine.submit(request)
        raw = struct.pack(f"<{len(done.tokens)}q", *done.tokens)
        raw += struct.pack(f"<{len(done.tokens)}f", *done.logprobs_raw)
        return hashlib.sha256(raw).hexdigest()


def _loaded(model: Model) -> Model:
    """The engines have their own copy of the weights: the files' bytes need not stay in memory beside it."""
    return replace(model, shards=())
