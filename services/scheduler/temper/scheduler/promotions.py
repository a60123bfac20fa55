"""Names that stand for a version of a job's policy: KV `jobs`, key `promoted.<name>`, changed by compare-and-set.

Only what passed its gates is promoted, or what somebody forces; which of the two is in the record for good. Going back is a promotion, too:
the history only grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from google.protobuf.json_format import Parse, ParseError

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1.job_pb2 import GateVerdict, Job
from temper.api.job.v1.platform_pb2 import PromotedPolicy, PromotePolicyRequest, Promotion
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, WeightManifest
from temper.runtime.blobs import BlobStore
from temper.runtime.bus.base import KeyValue
from temper.runtime.errors import Conflict, NotFound, Rejected
from temper.scheduler.gates.gate import PASS
from temper.scheduler.groups import timestamp
from temper.scheduler.surroundings import Surroundings

PREFIX = "promoted."
MOST = 200  # entries of a history
_TRIES = 50


class Promotions:
    """All names."""

    def __init__(self, around: Surroundings, blobs: BlobStore) -> None:
        self._around, self._blobs = around, blobs

    async def promote(self, request: PromotePolicyRequest) -> PromotedPolicy:
        """Make the version the one that the name stands for. Rejected if it did not pass and is not forced."""
        job = await self._around.store.get(request.job_id)
        record = await self._record(job.id)
        version, verdict = chosen(job, record, request)
        ref = manifest_of(job, record, version, verdict)
        await self._whole(ref, version)
        promotion = Promotion(
            job_id=job.id,
            version=version,
            manifest=ref,
            verdict=verdict.verdict if verdict else "",
            point=verdict.point if verdict else "",
            forced=verdict is None or verdict.verdict != PASS,
            reason=request.reason,
        )
        promotion.promoted_at.CopyFrom(timestamp(self._around.clock.now()))
        await self._hold(job.id, version)
        return await self._append(request.name, lambda _: promotion)

    async def demote(self, name: str, reason: str) -> PromotedPolicy:
        """Go back to the version before the current one. Conflict if there is none."""
        now = timestamp(self._around.clock.now())

        def back(known: PromotedPolicy) -> Promotion:
            place = before(known)
            promotion = Promotion()
            promotion.CopyFrom(known.history[place])
            promotion.returns_to, promotion.reason = place, reason
            promotion.promoted_at.CopyFrom(now)
            return promotion

        return await self._append(name, back, must_exist=True)

    async def all(self) -> list[PromotedPolicy]:
        """By name."""
        kv = await self._around.store.kv()
        entries = [await kv.get(key) for key in sorted(await kv.keys()) if key.startswith(PREFIX)]
        return [PromotedPolicy.FromString(entry.value) for entry in entries if entry is not None]

    async def _record(self, job_id: str) -> PolicyRecord:
        entry = await (await self._around.bus.kv("policies")).get(job_id)
        if entry is None:
            raise NotFound(f"job {job_id} has published no policy", field="job_id")
        return PolicyRecord.FromString(entry.value)

    async def _whole(self, ref: BlobRef, version: int) -> None:
        """Raise unless the version's weights can be had, whole, by whoever asks for the name."""
        try:
            manifest = Parse(await self._blobs.get(ref), WeightManifest())
        except ParseError as broken:
            raise Rejected(f"manifest {ref.key} is not readable: {broken}", field="version") from None
        except Rejected as gone:
            raise NotFound(
                f"the weights of version {version} are not kept: {gone}", field="version"
            ) from None
        if manifest.delta:
            raise Rejected(
                f"version {version} was published as a delta",
                field="version",
                hint="full_every = 1 under [publication] of trainer.toml publishes every version whole",
            )

    async def _hold(self, job_id: str, version: int) -> None:
        """The job's trainer keeps the weights from now on."""

        def edit(job: Job) -> None:
            if version not in job.promoted_versions:
                job.promoted_versions.append(version)

        await self._around.store.change(job_id, edit)

    async def _append(
        self, name: str, entry: Callable[[PromotedPolicy], Promotion], *, must_exist: bool = False
    ) -> PromotedPolicy:
        kv: KeyValue = await self._around.store.kv()
        key = PREFIX + name
        for _ in range(_TRIES):
            held = await kv.get(key)
            if held is None and must_exist:
                raise NotFound(
                    f"no policy is promoted as {name!r}", field="name", hint="temper policy promote"
                )
            known = PromotedPolicy.FromString(held.value) if held else PromotedPolicy(name=name)
            known.history.append(entry(known))
            _bounded(known)
            try:
                body = known.SerializeToString(deterministic=True)
                await (kv.update(key, body, held.revision) if held else kv.create(key, body))
            except Conflict:
                continue
            return known
        raise Conflict(f"{name} changes faster than it can be edited", field="name")


def chosen(job: Job, record: PolicyRecord, request: PromotePolicyRequest) -> tuple[int, GateVerdict | None]:
    """The version and the verdict that it rests on. Rejected if it did not pass and is not forced."""
    if not request.HasField("version"):
        passed = [verdict for verdict in job.gates if verdict.verdict == PASS]
        if passed:
            return passed[-1].version, passed[-1]
        if not request.force:
            raise Rejected(
                f"no version of job {job.id} has passed its gates",
                field="version",
                hint="give its job file bounds under [gates], or name a version and --force",
            )
        return record.version, _of(job.gates, record.version)
    verdict = _of(job.gates, request.version)
    if (verdict is None or verdict.verdict != PASS) and not request.force:
        said = f"{verdict.verdict} at {verdict.point}: {verdict.message}" if verdict else "it was not judged"
        raise Rejected(
            f"version {request.version} of job {job.id} has not passed its gates: {said}",
            field="version",
            hint="--force promotes it all the same, and the record says so",
        )
    return request.version, verdict


def _of(verdicts: Iterable[GateVerdict], version: int) -> GateVerdict | None:
    """The newest verdict on a version."""
    return next((each for each in reversed(list(verdicts)) if each.version == version), None)


def manifest_of(job: Job, record: PolicyRecord, version: int, verdict: GateVerdict | None) -> BlobRef:
    """Where the version's manifest is. NotFound for one that nobody has noted."""
    if verdict is not None and verdict.HasField("manifest"):
        return verdict.manifest
    if version == record.version:
        return record.manifest
    raise NotFound(
        f"nobody has noted where version {version} of job {job.id} is",
        field="version",
        hint=f"the newest is {record.version}; of earlier ones those that were judged can be promoted",
    )


def before(known: PromotedPolicy) -> int:
    """Position of the promotion before the current one; going back again goes further back. Conflict if there is none."""
    place = _meant(known, len(known.history) - 1)
    if place < 1:
        raise Conflict(f"nothing was promoted as {known.name!r} before", field="name")
    return _meant(known, place - 1)


def _meant(known: PromotedPolicy, place: int) -> int:
    """Position of the promotion that an entry stands for: its own, or the one that it returned to."""
    while place >= 0 and known.history[place].HasField("returns_to"):
        place = known.history[place].returns_to
    return place


def _bounded(known: PromotedPolicy) -> None:
    """Let go of the oldest entries.

    The oldest that stays is where the history begins: it returns to nothing, and what returned to one before it returns to it.
    """
    surplus = len(known.history) - MOST
    if surplus <= 0:
        return
    del known.history[:surplus]
    known.history[0].ClearField("returns_to")
    for entry in known.history:
        if entry.HasField("returns_to"):
            entry.returns_to = max(0, entry.returns_to - surplus)
