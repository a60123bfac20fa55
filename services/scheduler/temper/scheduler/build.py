"""Puts the service together: what serves, what runs, what drains."""

from __future__ import annotations

from temper.api.job.v1 import job_pb2_grpc, platform_pb2_grpc
from temper.api.sandbox.v1 import approval_pb2_grpc
from temper.runtime.service import Context
from temper.scheduler.admission import Admission
from temper.scheduler.announcements import Announcer
from temper.scheduler.approvals import ApprovalService
from temper.scheduler.artifacts import ArtifactService
from temper.scheduler.config import SchedulerConfig
from temper.scheduler.metrics import Metrics
from temper.scheduler.platform import PlatformService
from temper.scheduler.promotions import Promotions
from temper.scheduler.service import JobService
from temper.scheduler.steward import Steward
from temper.scheduler.store import JobStore
from temper.scheduler.surroundings import Surroundings
from temper.scheduler.undertaker import SERVICES, bury_poisoned
from temper.scheduler.watch import Watch

API = "temper.api.job.v1"


def surroundings(context: Context[SchedulerConfig]) -> Surroundings:
    """What the parts of the scheduler share."""
    return Surroundings(
        bus=context.bus,
        log=context.log,
        clock=context.clock,
        config=context.config,
        metrics=Metrics(context.metrics),
        store=JobStore(context.bus),
        announcer=Announcer(context.bus, context.log, context.clock),
    )


async def build(context: Context[SchedulerConfig]) -> None:
    """Register the API, start the steward, name the drain."""
    around = surroundings(context)
    steward = Steward(around)
    watch = Watch(around)
    await watch.begin(context.instance_id)
    admission = Admission(around, context.blobs)
    jobs = JobService(around, admission, watch, on_created=steward.nudge)
    context.grpc.add(job_pb2_grpc.add_JobServiceServicer_to_server, jobs, f"{API}.JobService")
    context.grpc.add(
        platform_pb2_grpc.add_PlatformServiceServicer_to_server,
        PlatformService(around, Promotions(around, context.blobs)),
        f"{API}.PlatformService",
    )
    context.grpc.add(
        approval_pb2_grpc.add_ApprovalServiceServicer_to_server,
        ApprovalService(around),
        "temper.api.sandbox.v1.ApprovalService",
    )
    artifacts = ArtifactService(context.blobs, context.config.max_upload_bytes)
    context.grpc.add(
        platform_pb2_grpc.add_ArtifactServiceServicer_to_server, artifacts, f"{API}.ArtifactService"
    )
    context.presence.reports(steward.status)
    context.supervisor.start("watch", watch.follow)
    context.supervisor.start("steward", steward.run)
    for service in SERVICES:
        context.supervisor.start(
            f"undertaker.{service}", lambda service=service: bury_poisoned(around, service)
        )
    context.on_drain("jobs", steward.drain)
