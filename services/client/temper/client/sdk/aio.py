"""The asyncio client. `sync.py` mirrors it method by method."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from temper.api.job.v1 import job_pb2, platform_pb2, spec_pb2
from temper.client.sdk import calls, convert, types
from temper.client.sdk.channel import code_of, metadata, open_aio, translated
from temper.client.sdk.target import Api, Target
from temper.runtime.errors import Unavailable

R = TypeVar("R")


class AioConnection:
    """Channels to the services of one platform, opened when first used."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._metadata = metadata(target.token())
        self._channels: dict[Api, grpc.aio.Channel] = {}

    async def run(self, call: calls.Call[R]) -> R:
        """Carry out one plan. Raises TemperError."""
        method: Any = self._channel(call.api).unary_unary(
            call.method, type(call.request).SerializeToString, call.reply.FromString
        )
        try:
            reply = await method(call.request, timeout=call.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise translated(failure, self.target.endpoint(call.api), call.api) from None
        return call.read(reply)

    def stream(self, method: str, request: Any, reply: Any, timeout_s: float) -> Any:
        """A server stream of the scheduler."""
        make: Any = self._channel("scheduler").unary_stream(
            method, type(request).SerializeToString, reply.FromString
        )
        return make(request, timeout=timeout_s, metadata=self._metadata)

    async def upload(self, pieces: Any, timeout_s: float) -> platform_pb2.UploadResponse:
        """A client stream of the scheduler."""
        make: Any = self._channel("scheduler").stream_unary(
            calls.UPLOAD, platform_pb2.UploadRequest.SerializeToString, platform_pb2.UploadResponse.FromString
        )
        try:
            return await make(pieces, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise translated(failure, self.target.endpoint("scheduler"), "scheduler") from None

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, api: Api) -> grpc.aio.Channel:
        if api not in self._channels:
            self._channels[api] = open_aio(self.target, api)
        return self._channels[api]


class AsyncJobs:
    """`client.jobs`."""

    def __init__(self, connection: AioConnection) -> None:
        self._connection = connection

    async def create(
        self, spec: spec_pb2.JobSpec, *, request_id: str | None = None, validate_only: bool = False
    ) -> types.Job:
        """Create a job; the same `request_id` gives the same job."""
        return await self._connection.run(calls.create_job(spec, request_id, validate_only=validate_only))

    async def get(self, job_id: str) -> types.Job:
        """One job."""
        return await self._connection.run(calls.get_job(job_id))

    async def list(self, *, states: tuple[types.JobState, ...] = ()) -> list[types.Job]:
        """All jobs, newest first."""
        jobs, token = await self._connection.run(calls.list_jobs("", states))
        while token:
            page, token = await self._connection.run(calls.list_jobs(token, states))
            jobs += page
        return jobs

    async def label(self, job_id: str, labels: Mapping[str, str]) -> types.Job:
        """Replace the labels."""
        return await self._connection.run(calls.label_job(job_id, labels))

    async def cancel(self, job_id: str, *, reason: str = "") -> types.Job:
        """End a job; idempotent."""
        return await self._connection.run(calls.cancel_job(job_id, reason))

    async def roll_back(self, job_id: str, *, reason: str = "") -> types.Job:
        """Send training back to the last accepted evaluation."""
        return await self._connection.run(calls.roll_back_job(job_id, reason))

    async def pause(self, job_id: str) -> types.Job:
        """Stop issuing groups."""
        return await self._connection.run(calls.pause_job(job_id))

    async def resume(self, job_id: str) -> types.Job:
        """Go on."""
        return await self._connection.run(calls.resume_job(job_id))

    async def watch(
        self, job_id: str, *, cursor: str = "", patience_s: float = 120.0
    ) -> AsyncIterator[types.Update]:
        """A snapshot, then what happens, until the job ends.

        A stream that breaks is resumed where it stopped; Unavailable after `patience_s` without one message.
        """
        heard = time.monotonic()
        while True:
            request = job_pb2.WatchJobRequest(job_id=job_id, cursor=cursor)
            try:
                stream = self._connection.stream(
                    calls.WATCH, request, job_pb2.WatchJobResponse, calls.WATCH_STREAM_S
                )
                async for message in stream:
                    heard, cursor = time.monotonic(), message.cursor
                    if update := convert.update(message):
                        yield update
                return
            except grpc.RpcError as failure:
                heard = self._excused(failure, heard, patience_s)
            await asyncio.sleep(0.5)

    def _excused(self, failure: grpc.RpcError, heard: float, patience_s: float) -> float:
        """When the watch counts as heard of; raises if the failure is no interruption, or one too long."""
        if code_of(failure) is grpc.StatusCode.DEADLINE_EXCEEDED:
            return heard  # the stream's own time is up: renew it
        error = translated(failure, self._connection.target.endpoint("scheduler"), "scheduler")
        if not isinstance(error, Unavailable) or time.monotonic() - heard > patience_s:
            raise error from None
        return heard


class AsyncPlatform:
    """`client.platform`: services, dead letters, policies."""

    def __init__(self, connection: AioConnection) -> None:
        self._connection = connection

    async def services(self, service: str = "") -> list[types.Instance]:
        """Live instances."""
        return await self._connection.run(calls.list_services(service))

    async def drain(self, service: str, instance: str) -> None:
        """Ask one instance to finish and stop."""
        await self._connection.run(calls.drain_service(service, instance))

    async def dead_letters(self, *, after_seq: int = 0, limit: int = 0) -> list[types.DeadLetter]:
        """Dead letters, oldest first."""
        return await self._connection.run(calls.list_dead(after_seq, limit))

    async def retry(self, seq: int) -> None:
        """Put a dead letter back on its subject."""
        await self._connection.run(calls.retry_dead(seq))

    async def drop(self, seq: int) -> None:
        """Forget a dead letter."""
        await self._connection.run(calls.drop_dead(seq))

    async def policies(self) -> list[types.Policy]:
        """Last published policy of each job."""
        return await self._connection.run(calls.list_policies())

    async def promotions(self) -> list[types.PromotedPolicy]:
        """Names with the versions that they stand and stood for."""
        return await self._connection.run(calls.list_promotions())

    async def promote(
        self, name: str, job_id: str, *, version: int | None = None, force: bool = False, reason: str = ""
    ) -> types.PromotedPolicy:
        """Make a version the one that a name stands for; without `version`, the newest that passed its gates."""
        call = calls.promote_policy(name, job_id, version, reason, force=force)
        return await self._connection.run(call)

    async def demote(self, name: str, *, reason: str = "") -> types.PromotedPolicy:
        """Make the version before the current one the one that a name stands for."""
        return await self._connection.run(calls.demote_policy(name, reason))

    async def approvals(self, *, everything: bool = False) -> list[types.Approval]:
        """What waits for a person; with `everything`, what has been answered too."""
        return await self._connection.run(calls.list_approvals(everything=everything))

    async def resolve_approval(
        self, approval_id: str, *, grant: bool, reason: str = "", by: str = ""
    ) -> types.Approval:
        """Say yes or no, once."""
        call = calls.resolve_approval(approval_id, grant=grant, reason=reason, by=by)
        return await self._connection.run(call)


class AsyncEnvironments:
    """`client.environments`."""

    def __init__(self, connection: AioConnection) -> None:
        self._connection = connection

    async def register(self, bundle: types.BlobRef) -> types.Environment:
        """Add an asset from its uploaded bundle."""
        return await self._connection.run(calls.register_environment(bundle))

    async def get(self, name: str, *, params: Mapping[str, Any] | None = None) -> types.Environment:
        """One environment with its newest report."""
        return await self._connection.run(calls.get_environment(name, params))

    async def list(self, *, prefix: str = "") -> list[types.Environment]:
        """All environments by name."""
        found, token = await self._connection.run(calls.list_environments(prefix, ""))
        while token:
            page, token = await self._connection.run(calls.list_environments(prefix, token))
            found += page
        return found

    async def check(
        self, name: str, *, params: Mapping[str, Any] | None = None, force: bool = False
    ) -> types.Environment:
        """Run the admission checks."""
        return await self._connection.run(calls.check_environment(name, params, force=force))

    async def quarantine(self, name: str, reason: str, *, lift: bool = False) -> list[types.Environment]:
        """Withdraw a version (`name@version`), or lift that."""
        return await self._connection.run(calls.quarantine_environment(name, reason, lift=lift))


class AsyncQueries:
    """`client.query`: read-only questions to ClickHouse."""

    def __init__(self, connection: AioConnection) -> None:
        self._connection = connection

    async def sql(
        self,
        text: str,
        *,
        parameters: Mapping[str, str] | None = None,
        max_rows: int = 0,
        timeout_s: float = 0.0,
        fresh: bool = False,
    ) -> types.Table:
        """One SELECT; `fresh` waits until everything logged before is visible."""
        plan = calls.query(
            sql=text,
            saved="",
            parameters=parameters or {},
            max_rows=max_rows,
            timeout_s=timeout_s,
            fresh=fresh,
        )
        return await self._connection.run(plan)

    async def saved(
        self,
        name: str,
        *,
        parameters: Mapping[str, str] | None = None,
        max_rows: int = 0,
        timeout_s: float = 0.0,
        fresh: bool = False,
    ) -> types.Table:
        """A named query of the contract."""
        plan = calls.query(
            sql="",
            saved=name,
            parameters=parameters or {},
            max_rows=max_rows,
            timeout_s=timeout_s,
            fresh=fresh,
        )
        return await self._connection.run(plan)

    async def list(self) -> list[types.SavedQuery]:
        """Named queries."""
        return await self._connection.run(calls.saved_queries())

    async def ingestion(self) -> list[types.Ingestion]:
        """How far ingestion is."""
        return await self._connection.run(calls.ingestion())


class AsyncArtifacts:
    """`client.artifacts`: bytes in and out of the object store."""

    def __init__(self, connection: AioConnection) -> None:
        self._connection = connection

    async def upload(self, path: Path, *, name: str | None = None) -> types.BlobRef:
        """Store a file under its content's name."""
        reply = await self._connection.upload(calls.upload_pieces(name or path.name, path), calls.TRANSFER_S)
        return convert.blob(reply.ref)

    async def upload_bytes(self, name: str, content: bytes) -> types.BlobRef:
        """Store bytes under their content's name."""
        reply = await self._connection.upload(calls.bytes_pieces(name, content), calls.TRANSFER_S)
        return convert.blob(reply.ref)

    async def download(self, ref: types.BlobRef) -> bytes:
        """Bytes of a reference; Unavailable if they are not what it promises."""
        request = platform_pb2.DownloadRequest(ref=convert.blob_proto(ref))
        stream = self._connection.stream(
            calls.DOWNLOAD, request, platform_pb2.DownloadResponse, calls.TRANSFER_S
        )
        try:
            content = b"".join([message.chunk async for message in stream])
        except grpc.RpcError as failure:
            raise translated(failure, self._connection.target.endpoint("scheduler"), "scheduler") from None
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise Unavailable(f"the bytes of {ref.key} do not match their checksum", hint="try again")
        return content


class AsyncClient:
    """Everything a platform offers, for asyncio.

    Example: `async with connect_async(data_dir=".temper") as client: job = await client.jobs.get("job-7f3a")`.
    """

    def __init__(self, target: Target) -> None:
        self._connection = AioConnection(target)
        self.jobs = AsyncJobs(self._connection)
        self.platform = AsyncPlatform(self._connection)
        self.environments = AsyncEnvironments(self._connection)
        self.query = AsyncQueries(self._connection)
        self.artifacts = AsyncArtifacts(self._connection)

    async def close(self) -> None:
        """Close all channels."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
