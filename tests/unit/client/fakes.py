"""A platform in memory behind a real gRPC server: what the client sees of the six services."""

import hashlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.struct_pb2 import ListValue

from temper.api.common.v1 import common_pb2
from temper.api.job.v1 import job_pb2, job_pb2_grpc, platform_pb2, platform_pb2_grpc, spec_pb2
from temper.api.qa.v1 import qa_pb2, qa_pb2_grpc
from temper.api.sandbox.v1 import approval_pb2, approval_pb2_grpc
from temper.api.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc
from temper.client.sdk import Target
from temper.runtime.errors import STATUS_METADATA_KEY, Conflict, NotFound, Rejected, TemperError, to_status

TOKEN = "made-up-token"
END = {"succeeded": job_pb2.JOB_STATE_SUCCEEDED, "failed": job_pb2.JOB_STATE_FAILED}


def refuse(context: grpc.ServicerContext, error: TemperError) -> NoReturn:
    status = to_status(error)
    context.set_trailing_metadata(((STATUS_METADATA_KEY, status.SerializeToString()),))
    code = next(each for each in grpc.StatusCode if each.value[0] == status.code)
    context.abort(code, error.message)
    raise AssertionError("abort raises")


@dataclass
class World:
    """State of the fake platform, for tests to set and to look at."""

    jobs: dict[str, job_pb2.Job] = field(default_factory=dict)
    script: list[job_pb2.WatchJobResponse] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    """Positions at which a watch breaks once."""
    cursors: list[str] = field(default_factory=list)
    """Cursors that watches began with."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    environments: list[qa_pb2.EnvironmentRecord] = field(default_factory=list)
    instances: list[platform_pb2.Presence] = field(default_factory=list)
    letters: list[platform_pb2.DeadLetter] = field(default_factory=list)
    policies: list[platform_pb2.Policy] = field(default_factory=list)
    promoted: dict[str, platform_pb2.PromotedPolicy] = field(default_factory=dict)
    approvals: list[approval_pb2.Approval] = field(default_factory=list)
    tables: dict[str, telemetry_pb2.QueryResponse] = field(default_factory=dict)
    """Answer of a query by a word that its text contains."""
    queries: list[telemetry_pb2.QueryRequest] = field(default_factory=list)
    refusal: TemperError | None = None
    """What CreateJob answers."""
    hold: threading.Event | None = None
    """Watches wait for it after their script."""

    def put(self, content: bytes) -> common_pb2.BlobRef:
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs[sha256] = content
        return common_pb2.BlobRef(key=f"sha256/{sha256}", sha256=sha256, size=len(content))


class Jobs(job_pb2_grpc.JobServiceServicer):
    def __init__(self, world):
        self.world = world

    def CreateJob(self, request, context):
        if self.world.refusal:
            refuse(context, self.world.refusal)
        job = job_pb2.Job(spec=request.spec, state=job_pb2.JOB_STATE_PENDING, request_id=request.request_id)
        job.created_at.FromSeconds(1_700_000_000)
        if not request.validate_only:
            same = [each for each in self.world.jobs.values() if each.request_id == request.request_id]
            job.id = same[0].id if same else f"job-{len(self.world.jobs) + 1}"
            self.world.jobs[job.id] = job
        return job_pb2.CreateJobResponse(job=job)

    def GetJob(self, request, context):
        if request.job_id not in self.world.jobs:
            refuse(context, NotFound(f"no job {request.job_id!r}", field="job_id", hint="temper job list"))
        return job_pb2.GetJobResponse(job=self.world.jobs[request.job_id])

    def ListJobs(self, request, context):
        jobs = [
            each for each in self.world.jobs.values() if not request.states or each.state in request.states
        ]
        start = int(request.page_token or 0)
        more = str(start + 2) if start + 2 < len(jobs) else ""
        return job_pb2.ListJobsResponse(jobs=jobs[start : start + 2], next_page_token=more)

    def CancelJob(self, request, context):
        job = self.world.jobs[request.job_id]
        job.state, job.reason = job_pb2.JOB_STATE_CANCELLED, request.reason
        if self.world.hold:
            self.world.hold.set()
        return job_pb2.CancelJobResponse(job=job)

    def PauseJob(self, request, context):
        self.world.jobs[request.job_id].state = job_pb2.JOB_STATE_PAUSED
        return job_pb2.PauseJobResponse(job=self.world.jobs[request.job_id])

    def ResumeJob(self, request, context):
        self.world.jobs[request.job_id].state = job_pb2.JOB_STATE_RUNNING
        return job_pb2.ResumeJobResponse(job=self.world.jobs[request.job_id])

    def RollBackJob(self, request, context):
        job = self.world.jobs[request.job_id]
        job.rollbacks_asked.append(request.reason)
        return job_pb2.RollBackJobResponse(job=job)

    def WatchJob(self, request, context) -> Iterator[job_pb2.WatchJobResponse]:
        self.world.cursors.append(request.cursor)
        start = int(request.cursor) if request.cursor else 0
        if not start:
            yield job_pb2.WatchJobResponse(cursor="0", snapshot=self.world.jobs[request.job_id])
        for position, message in enumerate(self.world.script[start:], start + 1):
            if position in self.world.cuts:
                self.world.cuts.remove(position)
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            message.cursor = str(position)
            self._keep(request.job_id, message.event)
            yield message
        if self.world.hold:
            self.world.hold.wait(20)

    def _keep(self, job_id, event):
        """The stored job follows its events."""
        job = self.world.jobs[job_id]
        match event.WhichOneof("event"):
            case "state":
                job.state, job.reason = event.state.state, event.state.reason
            case "progress":
                job.progress.CopyFrom(event.progress)
            case "eval":
                job.evals.append(event.eval)
            case _:
                pass


class Platform(platform_pb2_grpc.PlatformServiceServicer):
    def __init__(self, world):
        self.world = world

    def ListServices(self, request, context):
        found = [each for each in self.world.instances if request.service in ("", each.service)]
        return platform_pb2.ListServicesResponse(instances=found)

    def DrainService(self, request, context):
        self.world.instances = [each for each in self.world.instances if each.instance != request.instance]
        return platform_pb2.DrainServiceResponse()

    def ListDeadLetters(self, request, context):
        found = [each for each in self.world.letters if each.seq > request.after_seq]
        return platform_pb2.ListDeadLettersResponse(letters=found)

    def RetryDeadLetter(self, request, context):
        return self._gone(request, context) or platform_pb2.RetryDeadLetterResponse()

    def DropDeadLetter(self, request, context):
        return self._gone(request, context) or platform_pb2.DropDeadLetterResponse()

    def ListPolicies(self, request, context):
        return platform_pb2.ListPoliciesResponse(policies=self.world.policies)

    def PromotePolicy(self, request, context):
        if request.version and not request.force:
            refuse(context, Rejected(f"version {request.version} has not passed", field="version"))
        known = self.world.promoted.setdefault(request.name, platform_pb2.PromotedPolicy(name=request.name))
        ref = self.world.policies[0].manifest if self.world.policies else None
        known.history.add(
            job_id=request.job_id, version=request.version, manifest=ref, forced=request.force, verdict="pass"
        )
        return platform_pb2.PromotePolicyResponse(policy=known)

    def DemotePolicy(self, request, context):
        known = self.world.promoted[request.name]
        known.history.append(known.history[-2])
        known.history[-1].returns_to = len(known.history) - 3
        return platform_pb2.DemotePolicyResponse(policy=known)

    def ListPromotions(self, request, context):
        return platform_pb2.ListPromotionsResponse(policies=self.world.promoted.values())

    def _gone(self, request, context):
        if request.seq not in [each.seq for each in self.world.letters]:
            refuse(context, Rejected(f"no dead letter {request.seq}", field="seq"))
        self.world.letters = [each for each in self.world.letters if each.seq != request.seq]


class Artifacts(platform_pb2_grpc.ArtifactServiceServicer):
    def __init__(self, world):
        self.world = world

    def Upload(self, request_iterator, context):
        return platform_pb2.UploadResponse(
            ref=self.world.put(b"".join(each.chunk for each in request_iterator))
        )

    def Download(self, request, context):
        content = self.world.blobs[request.ref.sha256]
        for start in range(0, len(content), 1000):
            yield platform_pb2.DownloadResponse(chunk=content[start : start + 1000])


class Approvals(approval_pb2_grpc.ApprovalServiceServicer):
    def __init__(self, world):
        self.world = world

    def ListApprovals(self, request, context):
        pending = approval_pb2.APPROVAL_STATE_PENDING
        found = [each for each in self.world.approvals if request.all or each.state == pending]
        return approval_pb2.ListApprovalsResponse(approvals=found)

    def ResolveApproval(self, request, context):
        for each in self.world.approvals:
            if each.approval_id == request.approval_id and each.state == approval_pb2.APPROVAL_STATE_PENDING:
                each.state = (
                    approval_pb2.APPROVAL_STATE_GRANTED
                    if request.grant
                    else approval_pb2.APPROVAL_STATE_DENIED
                )
                each.resolved_by, each.reason = request.resolved_by, request.reason
                return approval_pb2.ResolveApprovalResponse(approval=each)
        return refuse(context, Conflict("it is answered already", field="approval_id"))


class Environments(qa_pb2_grpc.EnvironmentServiceServicer):
    def __init__(self, world):
        self.world = world

    def _find(self, name, context):
        for record in self.world.environments:
            if name in (record.env.name, f"{record.env.name}@{record.env.version}"):
                return record
        return refuse(context, Rejected(f"no environment {name!r}", field="name"))

    def RegisterEnvironment(self, request, context):
        env = common_pb2.EnvRef(name="mine", version="1.0.0", digest=request.bundle.sha256)
        record = qa_pb2.EnvironmentRecord(env=env, state=qa_pb2.ENVIRONMENT_STATE_DRAFT)
        self.world.environments.append(record)
        return qa_pb2.RegisterEnvironmentResponse(environment=record)

    def GetEnvironment(self, request, context):
        return qa_pb2.GetEnvironmentResponse(environment=self._find(request.name, context))

    def ListEnvironments(self, request, context):
        found = [each for each in self.world.environments if each.env.name.startswith(request.prefix)]
        return qa_pb2.ListEnvironmentsResponse(environments=found)

    def CheckEnvironment(self, request, context):
        record = self._find(request.name, context)
        record.env.params_json = request.params_json
        return qa_pb2.CheckEnvironmentResponse(environment=record)

    def QuarantineEnvironment(self, request, context):
        record = self._find(request.name, context)
        record.state, record.reason = qa_pb2.ENVIRONMENT_STATE_QUARANTINED, request.reason
        return qa_pb2.QuarantineEnvironmentResponse(environments=[record])


class Queries(telemetry_pb2_grpc.QueryServiceServicer):
    def __init__(self, world):
        self.world = world

    def Query(self, request, context):
        self.world.queries.append(request)
        text = request.sql or request.saved
        found = [table for word, table in self.world.tables.items() if word in text]
        return found[0] if found else telemetry_pb2.QueryResponse()

    def ListSavedQueries(self, request, context):
        query = telemetry_pb2.SavedQuery(
            name="staleness", description="How old.", parameters={"job": "String"}
        )
        return telemetry_pb2.ListSavedQueriesResponse(queries=[query])


class Guard(grpc.ServerInterceptor):
    """Refuses calls without the token, as the runtime's edge does."""

    def intercept_service(self, continuation, handler_call_details):
        if ("authorization", f"Bearer {TOKEN}") in handler_call_details.invocation_metadata:
            return continuation(handler_call_details)

        def deny(request, context):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

        return grpc.unary_unary_rpc_method_handler(deny)


class FakePlatform:
    """One server that answers for all three APIs."""

    def __init__(self, directory: Path):
        self.world = World()
        self._server = grpc.server(ThreadPoolExecutor(8), interceptors=[Guard()])
        job_pb2_grpc.add_JobServiceServicer_to_server(Jobs(self.world), self._server)
        platform_pb2_grpc.add_PlatformServiceServicer_to_server(Platform(self.world), self._server)
        platform_pb2_grpc.add_ArtifactServiceServicer_to_server(Artifacts(self.world), self._server)
        approval_pb2_grpc.add_ApprovalServiceServicer_to_server(Approvals(self.world), self._server)
        qa_pb2_grpc.add_EnvironmentServiceServicer_to_server(Environments(self.world), self._server)
        telemetry_pb2_grpc.add_QueryServiceServicer_to_server(Queries(self.world), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN)
        self._server.start()

    @property
    def target(self) -> Target:
        return Target(dict.fromkeys(("scheduler", "qa", "telemetry"), self.address), self.token_file)

    @property
    def options(self) -> list[str]:
        """Command line options that lead here."""
        return ["--endpoint", self.address, "--token-file", str(self.token_file)]

    def stop(self) -> None:
        if self.world.hold:
            self.world.hold.set()
        self._server.stop(None).wait()


def event(**fields: Any) -> job_pb2.WatchJobResponse:
    message = job_pb2.JobEvent(**fields)
    message.time.FromSeconds(1_700_000_060)
    return job_pb2.WatchJobResponse(event=message)


def evaluation(point: str, domain: str, passed: float, **fields: Any) -> job_pb2.EvalResult:
    low, high = max(passed - 0.05, 0.0), min(passed + 0.05, 1.0)
    return job_pb2.EvalResult(
        point=point, domain=domain, n=256, attempted=256, pass_at_1=passed, low=low, high=high, **fields
    )


def training(end: str = "succeeded", steps: int = 3) -> list[job_pb2.WatchJobResponse]:
    """What a watch shows of a job with one domain."""
    script = [event(eval=evaluation("before", "calc", 0.3))]
    for step in range(1, steps + 1):
        progress = job_pb2.JobProgress(
            step=step,
            total_steps=steps,
            version=step,
            groups_published=16 * step,
            groups_consumed=16 * step,
            groups_dropped={"DROP_REASON_STALE": 1},
            domain_reward={"calc": 0.3 + 0.2 * step},
            trainer_idle=0.25,
            wall_s=6.0 * step,
        )
        script.append(event(progress=progress))
    script.append(event(eval=evaluation("after", "calc", 0.9, step=steps)))
    script.append(
        event(state=job_pb2.StateChanged(state=END[end], reason="" if end == "succeeded" else "too weak"))
    )
    return script


def job(job_id: str = "job-1", **fields: Any) -> job_pb2.Job:
    spec = spec_pb2.JobSpec(
        name="trial",
        seed=7,
        domains=[spec_pb2.DomainSpec(name="calc", env="calc", share=1)],
        phases=[spec_pb2.PhaseSpec(name="rl", algorithm="grpo", steps=3)],
    )
    made = job_pb2.Job(id=job_id, spec=spec, state=job_pb2.JOB_STATE_RUNNING, **fields)
    made.created_at.FromSeconds(1_700_000_000)
    return made


def table(columns: dict[str, str], *rows: list[Any]) -> telemetry_pb2.QueryResponse:
    answer = telemetry_pb2.QueryResponse(elapsed_s=0.01)
    answer.columns.extend(telemetry_pb2.Column(name=name, type=kind) for name, kind in columns.items())
    for row in rows:
        values = ListValue()
        values.extend([json.dumps(each) if isinstance(each, dict) else each for each in row])
        answer.rows.append(values)
    return answer
