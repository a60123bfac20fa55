"""`temper.api.job.v1.JobService`: each method is a few lines around store, admission and watch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from temper.api.job.v1 import job_pb2, job_pb2_grpc
from temper.api.job.v1.job_pb2 import Job, JobState, StateChanged
from temper.runtime.errors import Conflict, Rejected
from temper.scheduler import defaults, transitions, validate
from temper.scheduler.admission import Admission
from temper.scheduler.editing import checked_paths, edit
from temper.scheduler.gates import settings as gates
from temper.scheduler.groups import timestamp
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.transitions import CANCELLED, PAUSED, PENDING, RUNNING, TERMINAL
from temper.scheduler.watch import Watch

PAGE = 50
MOST_WISHES, MOST_REASON = 100, 300  # rollbacks of one job that users may ask for; characters of a reason
RESOLVE_S = 50.0  # for domains added to a running job; below the deadline of a unary call


class JobService(job_pb2_grpc.JobServiceServicer):
    """Creates, watches and steers jobs. Any scheduler process answers for all of them."""

    def __init__(
        self, around: Surroundings, admission: Admission, watch: Watch, on_created: Callable[[], None]
    ) -> None:
        self._around, self._admission, self._watch, self._on_created = around, admission, watch, on_created

    async def CreateJob(self, request: job_pb2.CreateJobRequest, context: Any) -> job_pb2.CreateJobResponse:
        """Admits a job; the same request_id gives the same job."""
        spec = await self._admission.admit(request.spec)
        if request.validate_only:
            return job_pb2.CreateJobResponse(job=Job(spec=spec, state=PENDING))
        job, is_new = await self._admission.create(request, spec)
        if is_new:
            await self._tell(job)
            self._on_created()
        return job_pb2.CreateJobResponse(job=job)

    async def GetJob(self, request: job_pb2.GetJobRequest, context: Any) -> job_pb2.GetJobResponse:
        """One job."""
        return job_pb2.GetJobResponse(job=await self._around.store.get(request.job_id))

    async def ListJobs(self, request: job_pb2.ListJobsRequest, context: Any) -> job_pb2.ListJobsResponse:
        """Newest first. The token is the place of the last job of the page before."""
        after = _place(request.page_token)
        found = [
            job
            for job in await self._around.store.all()
            if (not request.states or job.state in request.states) and (after is None or _key(job) < after)
        ]
        size = request.page_size or PAGE
        token = "{}.{}".format(*_key(found[size - 1])) if len(found) > size else ""
        return job_pb2.ListJobsResponse(jobs=found[:size], next_page_token=token)

    async def UpdateJob(self, request: job_pb2.UpdateJobRequest, context: Any) -> job_pb2.UpdateJobResponse:
        """Labels, domains, and phases that no trainer has yet."""
        paths = checked_paths(request.update_mask.paths)
        known = await self._admission.known()
        trial = await self._around.store.get(request.job.id)
        edit(trial, request.job, paths)
        effective = defaults.effective(trial.spec)
        validate.check(effective, known)
        if any(not domain.HasField("resolved") for domain in effective.domains) and trial.state != PENDING:
            envs = await self._admission.resolve(effective, dry_run=False, timeout_s=RESOLVE_S)
            for domain, env in zip(effective.domains, envs, strict=True):
                if not domain.HasField("resolved"):
                    domain.resolved.CopyFrom(env)
        wanted = Job(spec=effective)

        def apply(job: Job) -> None:
            if request.job.etag and request.job.etag != job.etag:
                raise Conflict("the job was changed since it was read", field="job.etag", hint="get it again")
            edit(job, wanted, paths)
            for domain, resolved in zip(job.spec.domains, wanted.spec.domains, strict=True):
                if resolved.HasField("resolved") and not domain.HasField("resolved"):
                    domain.resolved.CopyFrom(resolved.resolved)

        return job_pb2.UpdateJobResponse(job=await self._around.store.change(request.job.id, apply))

    async def CancelJob(self, request: job_pb2.CancelJobRequest, context: Any) -> job_pb2.CancelJobResponse:
        """Ends a job; one that has ended stays as it is."""
        job = await self._around.store.get(request.job_id)
        if job.state not in TERMINAL:
            job = await self._move(request.job_id, CANCELLED, request.reason or "cancelled by the user")
        return job_pb2.CancelJobResponse(job=job)

    async def PauseJob(self, request: job_pb2.PauseJobRequest, context: Any) -> job_pb2.PauseJobResponse:
        """No new groups; those under way finish."""
        return job_pb2.PauseJobResponse(job=await self._move(request.job_id, PAUSED, "paused by the user"))

    async def ResumeJob(self, request: job_pb2.ResumeJobRequest, context: Any) -> job_pb2.ResumeJobResponse:
        """Goes on. Only a paused job can be resumed; a running one is left alone."""
        job = await self._around.store.get(request.job_id)
        if job.state not in {PAUSED, RUNNING}:
            raise Conflict(f"the job is {transitions.name_of(job.state)}, not paused", field="state")
        return job_pb2.ResumeJobResponse(job=await self._move(request.job_id, RUNNING, ""))

    async def RollBackJob(
        self, request: job_pb2.RollBackJobRequest, context: Any
    ) -> job_pb2.RollBackJobResponse:
        """Sends training back to the last accepted evaluation; the job's actor sees the wish at its next beat."""

        def apply(job: Job) -> None:
            if job.state not in {RUNNING, PAUSED}:
                raise Conflict(
                    f"the job is {transitions.name_of(job.state)}: there is no training to send back",
                    field="state",
                )
            if not gates.rolls_back(job.spec.gates):
                raise Conflict(
                    "the job keeps no state to go back to",
                    field="job.spec.gates",
                    hint='start it with gates.action or gates.on_collapse = "rollback"',
                )
            if len(job.rollbacks_asked) >= MOST_WISHES:
                raise Conflict(f"{MOST_WISHES} rollbacks were asked for already", field="job_id")
            job.rollbacks_asked.append((request.reason or "asked for by the user")[:MOST_REASON])

        return job_pb2.RollBackJobResponse(job=await self._around.store.change(request.job_id, apply))

    async def WatchJob(
        self, request: job_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[job_pb2.WatchJobResponse]:
        """A snapshot, then events, until the job ends."""
        async for message in self._watch.messages(request.job_id, request.cursor):
            yield message

    async def _move(self, job_id: str, target: JobState, reason: str) -> Job:
        """Change the state where the table allows it, and tell; no change is no news."""
        moved = False

        def apply(job: Job) -> None:
            nonlocal moved
            moved = job.state != target
            if not moved:
                return
            transitions.check(job.state, target)
            job.state, job.reason = target, reason
            if target in TERMINAL:
                job.ended_at.CopyFrom(timestamp(self._around.clock.now()))

        job = await self._around.store.change(job_id, apply)
        if moved:
            await self._tell(job)
        return job

    async def _tell(self, job: Job) -> None:
        """The revision makes each pause and resume an event of its own."""
        key = f"state/{transitions.name_of(job.state)}/{job.etag}"
        changed = StateChanged(state=job.state, reason=job.reason)
        await self._around.announcer.announce(job.id, key, changed)


def _key(job: Job) -> tuple[int, str]:
    return job.created_at.ToNanoseconds(), job.id


def _place(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    nanoseconds, _, job_id = token.partition(".")
    if not nanoseconds.isdecimal() or not job_id:
        raise Rejected(
            f"{token!r} is not a page token", field="page_token", hint="use one from the page before"
        )
    return int(nanoseconds), job_id
