"""The blocking client: `aio.py` without a loop, method by method."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from temper.api.job.v1 import job_pb2, platform_pb2, spec_pb2
from temper.client.sdk import calls, convert, types
from temper.client.sdk.channel import code_of, metadata, open_sync, translated
from temper.client.sdk.target import Api, Target
from temper.runtime.errors import Unavailable

R = TypeVar("R")


class Connection:
    """Channels to the services of one platform, opened when first used."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._metadata = metadata(target.token())
        self._channels: dict[Api, grpc.Channel] = {}

    def run(self, call: calls.Call[R]) -> R:
        """Carry out one plan. Raises TemperError."""
        method: Any = self._channel(call.api).unary_unary(
            call.method, type(call.request).SerializeToString, call.reply.FromString
        )
        try:
            reply = method(call.request, timeout=call.timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise translated(failure, self.target.endpoint(call.api), call.api) from None
        return call.read(reply)

    def stream(self, method: str, request: Any, reply: Any, timeout_s: float) -> Any:
        """A server stream of the scheduler."""
        make: Any = self._channel("scheduler").unary_stream(
            method, type(request).SerializeToString, reply.FromString
        )
        return make(request, timeout=timeout_s, metadata=self._metadata)

    def upload(self, pieces: Any, timeout_s: float) -> platform_pb2.UploadResponse:
        """A client stream of the scheduler."""
        make: Any = self._channel("scheduler").stream_unary(
            calls.UPLOAD, platform_pb2.UploadRequest.SerializeToString, platform_pb2.UploadResponse.FromString
        )
        try:
            return make(pieces, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise translated(failure, self.target.endpoint("scheduler"), "scheduler") from None

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()

    def _channel(self, api: Api) -> grpc.Channel:
        if api not in self._channels:
            self._channels[api] = open_sync(self.target, api)
        return self._channels[api]


class Jobs:
    """`client.jobs`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self, spec: spec_pb2.JobSpec, *, request_id: str | None = None, validate_only: bool = False
    ) -> types.Job:
        """Create a job; the same `request_id` gives the same job."""
        return self._connection.run(calls.create_job(spec, request_id, validate_only=validate_only))

    def get(self, job_id: str) -> types.Job:
        """One job."""
        return self._connection.run(calls.get_job(job_id))

    def list(self, *, states: tuple[types.JobState, ...] = ()) -> list[types.Job]:
        """All jobs, newest first."""
        jobs, token = self._connection.run(calls.list_jobs("", states))
        while token:
            page, token = self._connection.run(calls.list_jobs(token, states))
            jobs += page
        return jobs

    def label(self, job_id: str, labels: Mapping[str, str]) -> types.Job:
        """Replace the labels."""
        return self._connection.run(calls.label_job(job_id, labels))

    def cancel(self, job_id: str, *, reason: str = "") -> types.Job:
        """End a job; idempotent."""
        return self._connection.run(calls.cancel_job(job_id, reason))

    def roll_back(self, job_id: str, *, reason: str = "") -> types.Job:
        """Send training back to the last accepted evaluation."""
        return self._connection.run(calls.roll_back_job(job_id, reason))

    def pause(self, job_id: str) -> types.Job:
        """Stop issuing groups."""
        return self._connection.run(calls.pause_job(job_id))

    def resume(self, job_id: str) -> types.Job:
        """Go on."""
        return self._connection.run(calls.resume_job(job_id))

    def watch(self, job_id: str, *, cursor: str = "", patience_s: float = 120.0) -> Iterator[types.Update]:
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
                for message in stream:
                    heard, cursor = time.monotonic(), message.cursor
                    if update := convert.update(message):
                        yield update
                return
            except grpc.RpcError as failure:
                heard = self._excused(failure, heard, patience_s)
            time.sleep(0.5)

    def _excused(self, failure: grpc.RpcError, heard: float, patience_s: float) -> float:
        """When the watch counts as heard of; raises if the failure is no interruption, or one too long."""
        if code_of(failure) is grpc.StatusCode.DEADLINE_EXCEEDED:
            return heard  # the stream's own time is up: renew it
        error = translated(failure, self._connection.target.endpoint("scheduler"), "scheduler")
        if not isinstance(error, Unavailable) or time.monotonic() - heard > patience_s:
            raise error from None
        return heard


class Platform:
    """`client.platform`: services, dead letters, policies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def services(self, service: str = "") -> list[types.Instance]:
        """Live instances."""
        return self._connection.run(calls.list_services(service))

    def drain(self, service: str, instance: str) -> None:
        """Ask one instance to finish and stop."""
        self._connection.run(calls.drain_service(service, instance))

    def dead_letters(self, *, after_seq: int = 0, limit: int = 0) -> list[types.DeadLetter]:
        """Dead letters, oldest first."""
        return self._connection.run(calls.list_dead(after_seq, limit))

    def retry(self, seq: int) -> None:
        """Put a dead letter back on its subject."""
        self._connection.run(calls.retry_dead(seq))

    def drop(self, seq: int) -> None:
        """Forget a dead letter."""
        self._connection.run(calls.drop_dead(seq))

    def policies(self) -> list[types.Policy]:
        """Last published policy of each job."""
        return self._connection.run(calls.list_policies())

    def promotions(self) -> list[types.PromotedPolicy]:
        """Names with the versions that they stand and stood for."""
        return self._connection.run(calls.list_promotions())

    def promote(
        self, name: str, job_id: str, *, version: int | None = None, force: bool = False, reason: str = ""
    ) -> types.PromotedPolicy:
        """Make a version the one that a name stands for; without `version`, the newest that passed its gates."""
        call = calls.promote_policy(name, job_id, version, reason, force=force)
        return self._connection.run(call)

    def demote(self, name: str, *, reason: str = "") -> types.PromotedPolicy:
        """Make the version before the current one the one that a name stands for."""
        return self._connection.run(calls.demote_policy(name, reason))

    def approvals(self, *, everything: bool = False) -> list[types.Approval]:
        """What waits for a person; with `everything`, what has been answered too."""
        return self._connection.run(calls.list_approvals(everything=everything))

    def resolve_approval(
        self, approval_id: str, *, grant: bool, reason: str = "", by: str = ""
    ) -> types.Approval:
        """Say yes or no, once."""
        call = calls.resolve_approval(approval_id, grant=grant, reason=reason, by=by)
        return self._connection.run(call)


class Environments:
    """`client.environments`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def register(self, bundle: types.BlobRef) -> types.Environment:
        """Add an asset from its uploaded bundle."""
        return self._connection.run(calls.register_environment(bundle))

    def get(self, name: str, *, params: Mapping[str, Any] | None = None) -> types.Environment:
        """One environment with its newest report."""
        return self._connection.run(calls.get_environment(name, params))

    def list(self, *, prefix: str = "") -> list[types.Environment]:
        """All environments by name."""
        found, token = self._connection.run(calls.list_environments(prefix, ""))
        while token:
            page, token = self._connection.run(calls.list_environments(prefix, token))
            found += page
        return found

    def check(
        self, name: str, *, params: Mapping[str, Any] | None = None, force: bool = False
    ) -> types.Environment:
        """Run the admission checks."""
        return self._connection.run(calls.check_environment(name, params, force=force))

    def quarantine(self, name: str, reason: str, *, lift: bool = False) -> list[types.Environment]:
        """Withdraw a version (`name@version`), or lift that."""
        return self._connection.run(calls.quarantine_environment(name, reason, lift=lift))


class Queries:
    """`client.query`: read-only questions to ClickHouse."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sql(
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
        return self._connection.run(plan)

    def saved(
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
        return self._connection.run(plan)

    def list(self) -> list[types.SavedQuery]:
        """Named queries."""
        return self._connection.run(calls.saved_queries())

    def ingestion(self) -> list[types.Ingestion]:
        """How far ingestion is."""
        return self._connection.run(calls.ingestion())


class Artifacts:
    """`client.artifacts`: bytes in and out of the object store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def upload(self, path: Path, *, name: str | None = None) -> types.BlobRef:
        """Store a file under its content's name."""
        reply = self._connection.upload(calls.upload_pieces(name or path.name, path), calls.TRANSFER_S)
        return convert.blob(reply.ref)

    def upload_bytes(self, name: str, content: bytes) -> types.BlobRef:
        """Store bytes under their content's name."""
        reply = self._connection.upload(calls.bytes_pieces(name, content), calls.TRANSFER_S)
        return convert.blob(reply.ref)

    def download(self, ref: types.BlobRef) -> bytes:
        """Bytes of a reference; Unavailable if they are not what it promises."""
        request = platform_pb2.DownloadRequest(ref=convert.blob_proto(ref))
        stream = self._connection.stream(
            calls.DOWNLOAD, request, platform_pb2.DownloadResponse, calls.TRANSFER_S
        )
        try:
            content = b"".join([message.chunk for message in stream])
        except grpc.RpcError as failure:
            raise translated(failure, self._connection.target.endpoint("scheduler"), "scheduler") from None
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise Unavailable(f"the bytes of {ref.key} do not match their checksum", hint="try again")
        return content


class Client:
    """Everything a platform offers.

    Example: `with connect(data_dir=".temper") as client: job = client.jobs.get("job-7f3a")`.
    """

    def __init__(self, target: Target) -> None:
        self._connection = Connection(target)
        self.jobs = Jobs(self._connection)
        self.platform = Platform(self._connection)
        self.environments = Environments(self._connection)
        self.query = Queries(self._connection)
        self.artifacts = Artifacts(self._connection)

    def close(self) -> None:
        """Close all channels."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
