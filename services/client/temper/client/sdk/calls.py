"""Every call of the API as a plan: whom to ask, what, how long, and how to read the answer.

The two clients differ only in how they carry a plan out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message

from temper.api.job.v1 import job_pb2, platform_pb2, spec_pb2
from temper.api.qa.v1 import qa_pb2
from temper.api.sandbox.v1 import approval_pb2
from temper.api.telemetry.v1 import telemetry_pb2
from temper.client.sdk import convert, types
from temper.client.sdk.target import Api
from temper.runtime.errors import Rejected

R = TypeVar("R")
CHUNK = 1 << 20  # bytes; the contract's limit for one piece
_CHECK_S = 600.0  # admission runs an environment many times


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """One unary call."""

    api: Api
    """Service that answers."""
    method: str
    """Full method name."""
    request: Message
    """What is asked."""
    reply: type[Message]
    """What is answered."""
    read: Callable[[Any], R]
    """Answer to result."""
    timeout_s: float = 20.0
    """Deadline."""


def _job(method: str, request: Message, reply: type[Message], read: Callable[[Any], R]) -> Call[R]:
    return Call("scheduler", f"/temper.api.job.v1.JobService/{method}", request, reply, read)


def _platform(method: str, request: Message, reply: type[Message], read: Callable[[Any], R]) -> Call[R]:
    return Call("scheduler", f"/temper.api.job.v1.PlatformService/{method}", request, reply, read)


def _env(method: str, request: Message, reply: type[Message], read: Callable[[Any], R]) -> Call[R]:
    return Call(
        "qa", f"/temper.api.qa.v1.EnvironmentService/{method}", request, reply, read, timeout_s=_CHECK_S
    )


def _query(method: str, request: Message, reply: type[Message], read: Callable[[Any], R]) -> Call[R]:
    return Call("telemetry", f"/temper.api.telemetry.v1.QueryService/{method}", request, reply, read)


def _nothing(_: Message) -> None:
    return None


def _job_of(reply: Any) -> types.Job:
    return convert.job(reply.job)


def _environment_of(reply: Any) -> types.Environment:
    return convert.environment(reply.environment)


# ---------------------------------------------------------------- jobs
def create_job(spec: spec_pb2.JobSpec, request_id: str | None, *, validate_only: bool) -> Call[types.Job]:
    """Create or only check a job. Admission of its environments may run checks, so the deadline is long."""
    request = job_pb2.CreateJobRequest(
        spec=spec, request_id=request_id or secrets.token_hex(16), validate_only=validate_only
    )
    method = "/temper.api.job.v1.JobService/CreateJob"
    return Call("scheduler", method, request, job_pb2.CreateJobResponse, _job_of, timeout_s=60.0)


def get_job(job_id: str) -> Call[types.Job]:
    """One job."""
    return _job("GetJob", job_pb2.GetJobRequest(job_id=job_id), job_pb2.GetJobResponse, _job_of)


def list_jobs(page_token: str, states: tuple[types.JobState, ...]) -> Call[tuple[list[types.Job], str]]:
    """One page of jobs and the token of the next."""
    names = [f"JOB_STATE_{state.upper()}" for state in states]
    request = job_pb2.ListJobsRequest(page_size=100, page_token=page_token, states=names)
    return _job("ListJobs", request, job_pb2.ListJobsResponse, _jobs_page)


def _jobs_page(reply: Any) -> tuple[list[types.Job], str]:
    return [convert.job(each) for each in reply.jobs], reply.next_page_token


def label_job(job_id: str, labels: Mapping[str, str]) -> Call[types.Job]:
    """Replace a job's labels."""
    job = job_pb2.Job(id=job_id, spec=spec_pb2.JobSpec(labels=labels))
    request = job_pb2.UpdateJobRequest(job=job, update_mask=FieldMask(paths=["spec.labels"]))
    return _job("UpdateJob", request, job_pb2.UpdateJobResponse, _job_of)


def cancel_job(job_id: str, reason: str) -> Call[types.Job]:
    """End a job."""
    request = job_pb2.CancelJobRequest(job_id=job_id, reason=reason)
    return _job("CancelJob", request, job_pb2.CancelJobResponse, _job_of)


def pause_job(job_id: str) -> Call[types.Job]:
    """Stop issuing groups."""
    return _job("PauseJob", job_pb2.PauseJobRequest(job_id=job_id), job_pb2.PauseJobResponse, _job_of)


def resume_job(job_id: str) -> Call[types.Job]:
    """Go on."""
    return _job("ResumeJob", job_pb2.ResumeJobRequest(job_id=job_id), job_pb2.ResumeJobResponse, _job_of)


def roll_back_job(job_id: str, reason: str) -> Call[types.Job]:
    """Send training back."""
    request = job_pb2.RollBackJobRequest(job_id=job_id, reason=reason)
    return _job("RollBackJob", request, job_pb2.RollBackJobResponse, _job_of)


# ---------------------------------------------------------------- platform
def list_services(service: str) -> Call[list[types.Instance]]:
    """Live instances."""
    request = platform_pb2.ListServicesRequest(service=service)
    return _platform("ListServices", request, platform_pb2.ListServicesResponse, _instances)


def _instances(reply: Any) -> list[types.Instance]:
    return [convert.instance(each) for each in reply.instances]


def drain_service(service: str, instance: str) -> Call[None]:
    """Finish and stop one instance."""
    request = platform_pb2.DrainServiceRequest(service=service, instance=instance)
    return _platform("DrainService", request, platform_pb2.DrainServiceResponse, _nothing)


def list_dead(after_seq: int, limit: int) -> Call[list[types.DeadLetter]]:
    """Dead letters, oldest first."""
    request = platform_pb2.ListDeadLettersRequest(page_size=limit, after_seq=after_seq)
    return _platform("ListDeadLetters", request, platform_pb2.ListDeadLettersResponse, _letters)


def _letters(reply: Any) -> list[types.DeadLetter]:
    return [convert.dead_letter(each) for each in reply.letters]


def retry_dead(seq: int) -> Call[None]:
    """Put a dead letter back."""
    request = platform_pb2.RetryDeadLetterRequest(seq=seq)
    return _platform("RetryDeadLetter", request, platform_pb2.RetryDeadLetterResponse, _nothing)


def drop_dead(seq: int) -> Call[None]:
    """Forget a dead letter."""
    request = platform_pb2.DropDeadLetterRequest(seq=seq)
    return _platform("DropDeadLetter", request, platform_pb2.DropDeadLetterResponse, _nothing)


def list_policies() -> Call[list[types.Policy]]:
    """Last published policy of each job."""
    request = platform_pb2.ListPoliciesRequest()
    return _platform("ListPolicies", request, platform_pb2.ListPoliciesResponse, _policies)


def promote_policy(
    name: str, job_id: str, version: int | None, reason: str, *, force: bool
) -> Call[types.PromotedPolicy]:
    """Make a version the one that a name stands for."""
    request = platform_pb2.PromotePolicyRequest(
        name=name, job_id=job_id, version=version, reason=reason, force=force
    )
    return _platform("PromotePolicy", request, platform_pb2.PromotePolicyResponse, _promoted)


def demote_policy(name: str, reason: str) -> Call[types.PromotedPolicy]:
    """Go back to the version before."""
    request = platform_pb2.DemotePolicyRequest(name=name, reason=reason)
    return _platform("DemotePolicy", request, platform_pb2.DemotePolicyResponse, _promoted)


def list_promotions() -> Call[list[types.PromotedPolicy]]:
    """Names with their histories."""
    request = platform_pb2.ListPromotionsRequest()
    return _platform("ListPromotions", request, platform_pb2.ListPromotionsResponse, _promotions)


def _promoted(reply: Any) -> types.PromotedPolicy:
    return convert.promoted(reply.policy)


def _promotions(reply: Any) -> list[types.PromotedPolicy]:
    return [convert.promoted(each) for each in reply.policies]


def _policies(reply: Any) -> list[types.Policy]:
    return [convert.policy(each) for each in reply.policies]


def _approval(method: str, request: Message, reply: type[Message], read: Callable[[Any], R]) -> Call[R]:
    return Call("scheduler", f"/temper.api.sandbox.v1.ApprovalService/{method}", request, reply, read)


def list_approvals(*, everything: bool) -> Call[list[types.Approval]]:
    """What waits for a person."""
    request = approval_pb2.ListApprovalsRequest(all=everything)
    return _approval("ListApprovals", request, approval_pb2.ListApprovalsResponse, _approvals)


def _approvals(reply: Any) -> list[types.Approval]:
    return [convert.approval(each) for each in reply.approvals]


def resolve_approval(approval_id: str, *, grant: bool, reason: str, by: str) -> Call[types.Approval]:
    """A person's word."""
    request = approval_pb2.ResolveApprovalRequest(
        approval_id=approval_id, grant=grant, reason=reason, resolved_by=by
    )
    return _approval("ResolveApproval", request, approval_pb2.ResolveApprovalResponse, _resolved)


def _resolved(reply: Any) -> types.Approval:
    return convert.approval(reply.approval)


# ---------------------------------------------------------------- environments
def register_environment(bundle: types.BlobRef) -> Call[types.Environment]:
    """Add an asset from its uploaded bundle."""
    request = qa_pb2.RegisterEnvironmentRequest(bundle=convert.blob_proto(bundle))
    return _env("RegisterEnvironment", request, qa_pb2.RegisterEnvironmentResponse, _environment_of)


def get_environment(name: str, params: Mapping[str, Any] | None) -> Call[types.Environment]:
    """One environment."""
    request = qa_pb2.GetEnvironmentRequest(name=name, params_json=_params(params))
    return _env("GetEnvironment", request, qa_pb2.GetEnvironmentResponse, _environment_of)


def list_environments(prefix: str, page_token: str) -> Call[tuple[list[types.Environment], str]]:
    """One page of environments and the token of the next."""
    request = qa_pb2.ListEnvironmentsRequest(prefix=prefix, page_token=page_token)
    return _env("ListEnvironments", request, qa_pb2.ListEnvironmentsResponse, _environments_page)


def _environments_page(reply: Any) -> tuple[list[types.Environment], str]:
    return [convert.environment(each) for each in reply.environments], reply.next_page_token


def check_environment(name: str, params: Mapping[str, Any] | None, *, force: bool) -> Call[types.Environment]:
    """Run the admission checks."""
    request = qa_pb2.CheckEnvironmentRequest(name=name, params_json=_params(params), force=force)
    return _env("CheckEnvironment", request, qa_pb2.CheckEnvironmentResponse, _environment_of)


def quarantine_environment(name: str, reason: str, *, lift: bool) -> Call[list[types.Environment]]:
    """Withdraw a version, or lift that."""
    request = qa_pb2.QuarantineEnvironmentRequest(name=name, reason=reason, lift=lift)
    return _env("QuarantineEnvironment", request, qa_pb2.QuarantineEnvironmentResponse, _environments)


def _environments(reply: Any) -> list[types.Environment]:
    return [convert.environment(each) for each in reply.environments]


def _params(params: Mapping[str, Any] | None) -> str:
    try:
        return json.dumps(params, sort_keys=True, separators=(",", ":"), allow_nan=False) if params else ""
    except (TypeError, ValueError) as error:
        raise Rejected(
            f"cannot be written as JSON: {error}", field="params", hint="quote it as text"
        ) from None


# ---------------------------------------------------------------- queries
def query(
    *, sql: str, saved: str, parameters: Mapping[str, str], max_rows: int, timeout_s: float, fresh: bool
) -> Call[types.Table]:
    """One SELECT, by text or by name."""
    request = telemetry_pb2.QueryRequest(
        parameters=parameters, max_rows=max_rows, timeout_s=timeout_s, fresh=fresh
    )
    if saved:
        request.saved = saved
    else:
        request.sql = sql
    method = "/temper.api.telemetry.v1.QueryService/Query"
    # The answer travels after the query's own limit; freshness waits for ingestion before it.
    deadline = (timeout_s or 30.0) + 30.0
    return Call("telemetry", method, request, telemetry_pb2.QueryResponse, convert.table, timeout_s=deadline)


def saved_queries() -> Call[list[types.SavedQuery]]:
    """Named queries of the contract."""
    request = telemetry_pb2.ListSavedQueriesRequest()
    return _query("ListSavedQueries", request, telemetry_pb2.ListSavedQueriesResponse, _saved)


def _saved(reply: Any) -> list[types.SavedQuery]:
    return [convert.saved_query(each) for each in reply.queries]


def ingestion() -> Call[list[types.Ingestion]]:
    """How far ClickHouse is."""
    request = telemetry_pb2.GetIngestionRequest()
    return _query("GetIngestion", request, telemetry_pb2.GetIngestionResponse, _ingestion)


def _ingestion(reply: Any) -> list[types.Ingestion]:
    return [convert.ingestion(each) for each in reply.topics]


# ---------------------------------------------------------------- streams
WATCH = "/temper.api.job.v1.JobService/WatchJob"
UPLOAD = "/temper.api.job.v1.ArtifactService/Upload"
DOWNLOAD = "/temper.api.job.v1.ArtifactService/Download"
WATCH_STREAM_S = 60.0  # a watch is renewed this often, so that a server that fell silent is noticed
TRANSFER_S = 600.0


def upload_pieces(name: str, path: Path) -> Iterator[platform_pb2.UploadRequest]:
    """A file in pieces; the first names it."""
    with path.open("rb") as file:
        yield platform_pb2.UploadRequest(name=name, chunk=file.read(CHUNK))
        while chunk := file.read(CHUNK):
            yield platform_pb2.UploadRequest(chunk=chunk)


def bytes_pieces(name: str, content: bytes) -> Iterator[platform_pb2.UploadRequest]:
    """Bytes in pieces; the first names them."""
    yield platform_pb2.UploadRequest(name=name, chunk=content[:CHUNK])
    for start in range(CHUNK, len(content), CHUNK):
        yield platform_pb2.UploadRequest(chunk=content[start : start + CHUNK])
