"""The policies a worker holds: watched in the bucket, fetched, verified, swapped in, and let go.

One engine per job. Publications are coalesced: when several come while one loads, the newest is loaded next. A version
that cannot be loaded leaves the old one in place, and the worker's presence says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from temper.api.rollout.v1.rollout_pb2 import GroupCommand, PolicyLoaded
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState
from temper.rollout.codec import Codec
from temper.rollout.engine.base import Engine, SwapPolicy, SwapReport
from temper.rollout.group import Policy
from temper.rollout.players import Age
from temper.rollout.publication import Weights, fetch_codec, fetch_manifest, fetch_weights, policy_files
from temper.rollout.state import Offer, Worker
from temper.runtime import topology
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import Bus, Deleted, Entry
from temper.runtime.clock import Clock
from temper.runtime.errors import Conflict, Exhausted, Rejected, Unavailable
from temper.runtime.telemetry import get_logger

BUCKET = "policies"
OVER = (TrainingState.TRAINING_STATE_FINISHED, TrainingState.TRAINING_STATE_FAILED)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


@dataclass(slots=True)
class _Held:
    """What is held for one job."""

    record: PolicyRecord | None = None
    seen_at: float = 0.0
    codec: Codec | None = None
    engine: Engine | None = None
    weights: Weights | None = None
    fetched: int = 0
    deltas: bool = False
    paused: bool = False
    wants_weights: bool = False
    loading: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        """Wake everyone who waits, and arm the next wait."""
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(frozen=True, slots=True)
class _Age:
    """Implements :class:`temper.rollout.players.Age` for one group."""

    worker: Worker
    held: _Held
    job_id: str
    bound: int

    def too_old(self, version: int) -> bool:
        return self.worker.too_old(self.job_id, version, self.bound)

    async def news(self) -> None:
        await self.held.changed.wait()


class Policies:
    """Engines and codecs by job. ``worker`` decides, this class carries it out."""

    def __init__(
        self,
        bus: Bus,
        blobs: BlobStore,
        clock: Clock,
        worker: Worker,
        make_engine: Callable[[], Engine],
        instance: str,
    ) -> None:
        self._bus, self._blobs, self._clock = bus, blobs, clock
        self._worker, self._make_engine, self._instance = worker, make_engine, instance
        self._held: dict[str, _Held] = {}
        self._log = get_logger()
        self._news = asyncio.Event()
        self.on_loaded: Callable[[float], None] = lambda _seconds: None
        self.on_over: Callable[[str], None] = lambda _job_id: None

    def engines(self) -> dict[str, Engine]:
        """Live engines by job."""
        return {job_id: held.engine for job_id, held in self._held.items() if held.engine is not None}

    async def watch(self) -> None:
        """Follow the bucket for ever."""
        bucket = await self._bus.kv(BUCKET)
        async for item in bucket.watch():
            if isinstance(item, Entry):
                self._read(item)
            elif isinstance(item, Deleted):
                self._of(item.key).wants_weights = False

    async def ready(self) -> None:
        """Return when the worker may take groups: when not all that it serves is past the staleness bound."""
        while self._worker.refuses():
            self._news.clear()
            await self._news.wait()

    async def admit(self, offer: Offer, patience_s: float) -> Policy:
        """Wait until the worker may start the group, and start it in its books.

        Raises ``Unavailable`` when the version does not come in time or cannot be loaded.
        """
        held = self._of(offer.job_id)
        if offer.needs_weights:
            held.wants_weights = True
            self._refresh(offer.job_id)
        try:
            async with self._clock.timeout(patience_s):
                while not self._worker.offer(offer):
                    await held.changed.wait()
        except TimeoutError:
            known = {**self._worker.overdue(), **self._worker.complaints()}
            why = known.get(offer.job_id, "it was not published")
            late = f"{offer.job_id}: version {offer.min_version} is not here after {patience_s:g} s: {why}"
            raise Unavailable(late) from None
        return await self._policy(offer, held)

    async def forget_engine(self, job_id: str) -> None:
        """Close a job's engine: it died, or another job needs the room."""
        held = self._of(job_id)
        engine, held.engine, held.wants_weights, held.weights = held.engine, None, False, None
        held.paused = False
        self._worker.engine_lost(job_id)
        if engine is not None:
            await engine.close()

    async def pause(self, job_id: str) -> None:
        """Let a job's engine rest. Idempotent."""
        held = self._of(job_id)
        if held.engine is not None and not held.paused:
            held.paused = True
            await held.engine.pause()

    async def resume(self, job_id: str) -> None:
        """Let it go on. Idempotent."""
        held = self._of(job_id)
        if held.engine is not None and held.paused:
            held.paused = False
            await held.engine.resume()

    async def make_room(self) -> None:
        """Close idle engines over the limit."""
        while (job_id := self._worker.surplus()) is not None:
            self._log.info("policy.evicted", job=job_id)
            await self.forget_engine(job_id)

    async def close(self) -> None:
        """Close everything."""
        loading = [held.loading for held in self._held.values() if held.loading is not None]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for job_id in list(self._held):
            await self.forget_engine(job_id)

    async def _policy(self, offer: Offer, held: _Held) -> Policy:
        codec = held.codec or await self._load_codec(held)
        if not offer.needs_weights:
            return Policy(codec, None, _UNBOUNDED)
        engine = held.engine
        if engine is None:
            raise Unavailable(f"{offer.job_id}: its engine was closed meanwhile")
        assert held.record is not None, "a group starts only after an announcement"
        return Policy(codec, engine, engine.info.max_context, _swap_policy(held.record), self._age)

    def _age(self, command: GroupCommand) -> Age | None:
        if not command.HasField("max_staleness"):
            return None
        return _Age(self._worker, self._of(command.job_id), command.job_id, command.max_staleness)

    def _of(self, job_id: str) -> _Held:
        return self._held.setdefault(job_id, _Held())

    def _read(self, entry: Entry) -> None:
        try:
            self._announce(entry.key, PolicyRecord.FromString(entry.value))
        except DecodeError as broken:  # one bad value must not blind the worker to all other jobs
            self._log.error("policy.unreadable", job=entry.key, revision=entry.revision, error=str(broken))

    def _announce(self, job_id: str, record: PolicyRecord) -> None:
        if record.state in OVER:
            self.on_over(job_id)
        digest, fence = record.manifest.sha256, record.fence
        if not self._worker.announce(job_id, record.version, digest, fence, record.line_start):
            return
        held = self._of(job_id)
        held.record, held.seen_at = record, self._clock.monotonic()
        self._notify(held)
        self._refresh(job_id)

    def _notify(self, held: _Held) -> None:
        held.notify()
        self._news.set()

    def _refresh(self, job_id: str) -> None:
        """Start loading, unless that is under way, not asked for, or nothing newer is there."""
        held = self._of(job_id)
        idle = held.loading is None or held.loading.done()
        if idle and held.wants_weights and self._worker.wanted(job_id) is not None:
            held.loading = asyncio.create_task(self._load_newest(job_id, held), name=f"load-{job_id}")

    async def _load_newest(self, job_id: str, held: _Held) -> None:
        pause = _FIRST_PAUSE_S
        while held.wants_weights and (version := self._worker.wanted(job_id)) is not None:
            record, seen_at = held.record, held.seen_at
            assert record is not None
            assert record.version == version
            try:
                report = await self._load(record, held)
            except (Rejected, Conflict) as error:
                self._worker.load_failed(job_id, version, str(error))
                self._log.error("policy.refused", job=job_id, version=version, error=str(error))
            except (Unavailable, Exhausted) as error:
                self._log.warning("policy.retry", job=job_id, version=version, error=str(error))
                if held.engine is not None and not held.engine.alive:
                    # Nothing will ever load there: the next try makes another.
                    await self.forget_engine(job_id)
                    held.wants_weights = True
                await self._clock.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self._worker.loaded(job_id, version)
                await self._tell(record, report, held, self._clock.monotonic() - seen_at)
            self._notify(held)

    async def _load(self, record: PolicyRecord, held: _Held) -> SwapReport:
        weights = await fetch_weights(self._blobs, record, held.weights)
        files = await policy_files(self._blobs, weights)
        if held.codec is None:
            held.codec = await fetch_codec(self._blobs, weights.manifest)
        engine = held.engine
        if engine is None:
            engine = held.engine = self._make_engine()
            await engine.start()
        await engine.load(files)
        report = await engine.swap(record.version, _swap_policy(record))
        held.fetched = weights.fetched_bytes
        # Where deltas come, the next one is built on this version; where none do, its bytes are not held twice.
        held.deltas = held.deltas or bool(weights.manifest.delta)
        held.weights = weights if held.deltas else None
        return report

    async def _load_codec(self, held: _Held) -> Codec:
        assert held.record is not None, "a group starts only after an announcement"
        record = held.record
        try:
            held.codec = await fetch_codec(self._blobs, await fetch_manifest(self._blobs, record))
        except Rejected:
            if held.record is record:
                raise
            return await self._load_codec(
                held
            )  # a newer version came meanwhile, and this one was cleared away
        return held.codec

    async def _tell(self, record: PolicyRecord, report: SwapReport, held: _Held, seconds: float) -> None:
        self.on_loaded(seconds)
        event = PolicyLoaded(
            worker=self._instance,
            job_id=record.job_id,
            version=record.version,
            load_s=seconds,
            swap_policy=report.policy,
            running=report.running,
            swap_s=report.seconds,
            fetched_bytes=held.fetched,
        )
        try:
            await self._bus.event(topology.evt("rollout", self._instance, "swap"), event)
        except (Unavailable, Exhausted) as error:
            self._log.warning("policy.untold", job=record.job_id, version=record.version, error=str(error))


def _swap_policy(record: PolicyRecord) -> SwapPolicy:
    """What the record asks for. Raises ``Rejected`` for a policy that this version does not know."""
    try:
        return SwapPolicy(record.swap_policy or SwapPolicy.KEEP)
    except ValueError:
        raise Rejected(
            f"swap policy {record.swap_policy!r} is not known",
            field="rollout.swap_policy",
            hint=", ".join(SwapPolicy),
        ) from None


_UNBOUNDED = 1 << 30  # a demonstration has no engine, so the job's own limits are the only ones
