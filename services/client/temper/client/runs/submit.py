"""From a job file to a created job: check, upload, create."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from temper.api.common.v1 import common_pb2
from temper.client.jobfile import JobFile, load_job
from temper.client.jobfile.spec import PolicySource, file_path, policy_source, teacher_sources, to_spec
from temper.client.sdk.aio import AsyncClient
from temper.client.sdk.convert import blob_proto
from temper.client.sdk.types import BlobRef, Job
from temper.runtime.errors import NotFound, TemperError


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that this machine found no fault with. Example: `prepare(Path("job.toml"), [], None)`."""

    path: Path
    """The job file."""
    job: JobFile
    """Its content, overrides applied."""
    source: PolicySource
    """Files to upload."""
    text: str
    """The job file as it was written, for the report."""
    teachers: Mapping[int, PolicySource] = field(default_factory=dict[int, PolicySource])
    """Files of teachers to upload, by the index of their phase."""


def prepare(path: Path, overrides: Sequence[str], seed: int | None) -> Prepared:
    """Read and check a job file and the files it names. Raises JobFileRejected with every mistake."""
    job = load_job(path, overrides, seed)
    source = policy_source(job, path.parent, str(path))
    return Prepared(path, job, source, path.read_text(), teacher_sources(job, path.parent, str(path)))


async def submit(
    client: AsyncClient, prepared: Prepared, *, request_id: str | None = None, validate_only: bool = False
) -> Job:
    """Upload the policy and create the job. Errors of the server name the path in the job file."""
    files = await _files(client, prepared)
    teachers = {index: await _upload(client, source.files) for index, source in prepared.teachers.items()}
    spec = to_spec(prepared.job, files, prepared.source.label, teachers)
    try:
        return await client.jobs.create(spec, request_id=request_id, validate_only=validate_only)
    except TemperError as error:
        if error.field:
            error.field = f"{prepared.path}: {file_path(error.field)}"
        raise


async def _files(client: AsyncClient, prepared: Prepared) -> dict[str, common_pb2.BlobRef]:
    if prepared.job.policy.from_job is not None:
        return await published_files(client, prepared.job.policy.from_job)
    return await _upload(client, prepared.source.files)


async def _upload(client: AsyncClient, files: Mapping[str, Path]) -> dict[str, common_pb2.BlobRef]:
    refs = await asyncio.gather(*(client.artifacts.upload(path) for path in files.values()))
    return {name: blob_proto(ref) for name, ref in zip(files, refs, strict=True)}


async def published_files(
    client: AsyncClient, job_id: str, *, reward_model: bool = False
) -> dict[str, common_pb2.BlobRef]:
    """Files of a job's last published full weights, by name: the last ones of a job that has finished.

    ``reward_model``: of its reward model instead. NotFound if it has none.
    """
    policies = {policy.job_id: policy for policy in await client.platform.policies()}
    policy = policies.get(job_id)
    if policy is None or policy.manifest is None:
        known = ", ".join(sorted(policies)) or "none"
        raise NotFound(
            f"job {job_id!r} has no published policy", field="policy.from_job", hint=f"known: {known}"
        )
    manifest = policy.reward_model if reward_model else policy.manifest
    if manifest is None:
        raise NotFound(
            f"job {job_id!r} has no reward model",
            field="reward_model",
            hint='it is there when a phase with algorithm = "reward_model" has ended',
        )
    content = await client.artifacts.download(manifest)
    while (base := base_of(content)) is not None:
        content = await client.artifacts.download(to_blob(base))
    return manifest_files(content)


async def promoted_files(client: AsyncClient, name: str) -> dict[str, common_pb2.BlobRef]:
    """Files of what a name stands for. NotFound if it stands for nothing."""
    names = {each.name: each for each in await client.platform.promotions()}
    current = names[name].history[-1].manifest if name in names else None
    if current is None:
        known = ", ".join(sorted(names)) or "none"
        raise NotFound(f"no policy is promoted as {name!r}", field="name", hint=f"known: {known}")
    return manifest_files(await client.artifacts.download(current))


def base_of(content: bytes) -> common_pb2.BlobRef | None:
    """The manifest that a weight manifest (canonical JSON) builds on; None when it holds full weights itself."""
    ref = json.loads(content).get("baseManifest")
    return None if ref is None else _ref(ref)


def manifest_files(content: bytes) -> dict[str, common_pb2.BlobRef]:
    """Files of a weight manifest (canonical JSON): its shards under Hugging Face names, and the rest."""
    manifest = json.loads(content)
    shards = manifest.get("shards", [])
    files = {name: _ref(ref) for name, ref in manifest.get("files", {}).items()}
    for index, shard in enumerate(shards):
        name = (
            "model.safetensors"
            if len(shards) == 1
            else f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        )
        files[name] = _ref(shard)
    return files


def _ref(values: dict[str, str]) -> common_pb2.BlobRef:
    return common_pb2.BlobRef(key=values["key"], sha256=values["sha256"], size=int(values["size"]))


def to_blob(ref: common_pb2.BlobRef) -> BlobRef:
    """The SDK's form of a reference."""
    return BlobRef(ref.key, ref.sha256, ref.size)
