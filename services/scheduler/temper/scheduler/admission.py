"""From a client's specification to a job that may be created: defaults, rules, files, environments, an id."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from temper.api.common.v1.common_pb2 import BlobRef, EnvRef
from temper.api.job.v1.job_pb2 import CreateJobRequest, Job
from temper.api.job.v1.spec_pb2 import JobSpec
from temper.api.qa.v1.qa_pb2 import EnvironmentWish, ResolveEnvironmentsRequest, ResolveEnvironmentsResponse
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Conflict, Rejected, TemperError, Unavailable
from temper.runtime.topology import rpc
from temper.scheduler import defaults, validate
from temper.scheduler.groups import timestamp
from temper.scheduler.surroundings import Surroundings, presences
from temper.scheduler.transitions import PENDING
from temper.scheduler.validate import Known

DRY_RUN_S = 5.0  # looking up names is quick; a qa that is away is asked again by the job's actor
FROM_DEMONSTRATIONS = ("sft",)  # while no live trainer says which algorithms learn from them
_WISH = re.compile(r"wishes\[(\d+)\](?:\.(.+))?")
_SLUG = 32  # characters of a name that go into an id


@dataclass(frozen=True, slots=True)
class Claim:
    """What a request_id stands for; the value of KV `jobs` key `request.<hash>`."""

    job_id: str
    """Job that it made, or is about to make."""
    digest: str
    """Of the specification it came with."""

    def encode(self) -> bytes:
        """JSON."""
        return json.dumps({"job_id": self.job_id, "digest": self.digest}).encode()

    @staticmethod
    def decode(value: bytes) -> Claim:
        """From JSON."""
        raw = json.loads(value)
        return Claim(str(raw["job_id"]), str(raw["digest"]))


class Admission:
    """Checks specifications and creates jobs, once per request_id."""

    def __init__(self, around: Surroundings, blobs: BlobStore) -> None:
        self._around, self._blobs = around, blobs

    async def known(self) -> Known:
        """Names that a job may use: what live trainers say, else what is configured."""
        names = self._around.config.names
        said = [each.status for each in await presences(self._around.bus) if each.service == "trainer"]
        return Known(
            algorithms=_offered(said, "algorithms", names.algorithms),
            from_demonstrations=_offered(said, "demonstrations", FROM_DEMONSTRATIONS),
            engines=_offered(said, "engines", names.engines),
        )

    async def admit(self, spec: JobSpec) -> JobSpec:
        """The effective specification. Raises Rejected with the field's path for anything wrong with it."""
        effective = defaults.effective(spec)
        for domain in effective.domains:
            domain.ClearField("resolved")  # the server's to fill in
        validate.check(effective, await self.known())
        await self._check_files(effective)
        with suppress(Unavailable):  # qa is away: the job will wait for it, and say so
            await self.resolve(effective, dry_run=True)
        return effective

    async def resolve(self, spec: JobSpec, *, dry_run: bool, timeout_s: float = DRY_RUN_S) -> list[EnvRef]:
        """Variants of the domains, by qa. Errors name the domain; Unavailable if qa is away."""
        wishes = [EnvironmentWish(name=each.env, params_json=each.params_json) for each in spec.domains]
        try:
            answer = await self._around.bus.request(
                rpc("qa", "ResolveEnvironments"),
                ResolveEnvironmentsRequest(wishes=wishes, dry_run=dry_run),
                ResolveEnvironmentsResponse,
                timeout_s=timeout_s,
            )
        except TemperError as error:
            kind = (
                Rejected if isinstance(error, Rejected) else type(error)
            )  # a wrong name is a mistake in the job
            raise kind(error.message, field=_of_domain(error.field), hint=error.hint) from None
        return list(answer.envs)

    async def create(self, request: CreateJobRequest, spec: JobSpec) -> tuple[Job, bool]:
        """The job of this request, and whether it is new. Conflict if the request_id made another one."""
        claim = await self._claim(request.request_id, spec)
        existing = await self._around.store.find(claim.job_id)
        if existing is not None:
            return existing, False
        job = Job(
            id=claim.job_id,
            spec=spec,
            state=PENDING,
            reason="admitting environments",
            created_at=timestamp(self._around.clock.now()),
            request_id=request.request_id,
        )
        try:
            return await self._around.store.create(job), True
        except Conflict:  # the same request came twice at the same time
            return await self._around.store.get(claim.job_id), False

    async def _claim(self, request_id: str, spec: JobSpec) -> Claim:
        bucket = await self._around.store.kv()
        key = f"request.{hashlib.sha256(request_id.encode()).hexdigest()[:32]}"
        digest = hashlib.sha256(spec.SerializeToString(deterministic=True)).hexdigest()
        claim = Claim(await self._free_id(spec.name, request_id), digest)
        try:
            await bucket.create(key, claim.encode())
        except Conflict:
            entry = await bucket.get(key)
            if entry is None:
                raise Unavailable("the request_id was just released; try again", field="request_id") from None
            claim = Claim.decode(entry.value)
        if claim.digest != digest:
            raise Conflict(
                f"request_id {request_id!r} made job {claim.job_id} from another specification",
                field="request_id",
                hint="use a fresh request_id for a changed job",
            )
        return claim

    async def _free_id(self, name: str, request_id: str) -> str:
        """`quickstart-7f3a`: readable, short, and the same for the same request."""
        digest = hashlib.sha256(f"{name}\n{request_id}".encode()).hexdigest()
        for length in (4, 8, 16):
            job_id = f"{slug(name)}-{digest[:length]}"
            taken = await self._around.store.find(job_id)
            if taken is None or taken.request_id == request_id:
                return job_id
        raise Conflict("no free job id for this name", field="spec.name", hint="use another request_id")

    async def _check_files(self, spec: JobSpec) -> None:
        kind = spec.policy.WhichOneof("init")
        files = spec.policy.checkpoint.files if kind == "checkpoint" else spec.policy.random.files
        await self._check_there(f"spec.policy.{kind}", files)
        for index, phase in enumerate(spec.phases):
            await self._check_there(f"spec.phases[{index}].teacher", phase.teacher.files)

    async def _check_there(self, field: str, files: Mapping[str, BlobRef]) -> None:
        names = sorted(files)
        found = await asyncio.gather(*(self._blobs.exists(files[name].key) for name in names))
        for name, there in zip(names, found, strict=True):
            if not there:
                raise Rejected(
                    f"no object at {files[name].key!r}",
                    field=f"{field}.files[{name}]",
                    hint="upload it first (ArtifactService.Upload)",
                )


def slug(name: str) -> str:
    """A name as part of an id: lower-case letters, digits and '-'."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_SLUG].strip("-") or "job"


def _of_domain(field: str | None) -> str | None:
    """`wishes[1].name` as `spec.domains[1].env`, `wishes[1].params_json.low` as `spec.domains[1].params_json.low`."""
    match = _WISH.fullmatch(field or "")
    if match is None:
        return field
    part = match[2] if match[2] and match[2].startswith("params_json") else "env"
    return f"spec.domains[{match[1]}].{part}"


def _offered(said: Sequence[Mapping[str, str]], key: str, otherwise: Iterable[str]) -> tuple[str, ...]:
    """Names under `key` in what live trainers say, together; `otherwise` while none says anything."""
    names = {name for status in said for name in status.get(key, "").split(",") if name}
    return tuple(sorted(names)) or tuple(otherwise)
