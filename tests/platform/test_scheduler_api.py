"""The scheduler's API over real gRPC: errors with field paths, streams in both directions, reflection."""

from __future__ import annotations

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from tests.platform.scheduling import World
from tests.unit.scheduler.jobs import policy_phase, spec

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.job.v1 import job_pb2, job_pb2_grpc, platform_pb2, platform_pb2_grpc
from temper.api.rollout.v1.rollout_pb2 import GroupCommand
from temper.runtime.config import GrpcConfig
from temper.runtime.errors import NotFound, Rejected
from temper.runtime.rpc import GrpcServer, channel, rpc_errors
from temper.runtime.topology import cmd, evt
from temper.scheduler.artifacts import ArtifactService
from temper.scheduler.platform import PlatformService
from temper.scheduler.promotions import Promotions

MOST_BYTES = 3 << 20
LABELS = FieldMask(paths=["spec.labels"])


@pytest_asyncio.fixture
async def world(memory_platform):
    made = World(memory_platform)
    await made.peers.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def api(world):
    """A channel to a scheduler that listens."""
    scheduler = await world.scheduler("scheduler/a")
    server = GrpcServer(GrpcConfig(port=0))
    server.add(job_pb2_grpc.add_JobServiceServicer_to_server, scheduler.api, "temper.api.job.v1.JobService")
    server.add(
        platform_pb2_grpc.add_PlatformServiceServicer_to_server,
        PlatformService(scheduler.around, Promotions(scheduler.around, scheduler.blobs)),
        "temper.api.job.v1.PlatformService",
    )
    server.add(
        platform_pb2_grpc.add_ArtifactServiceServicer_to_server,
        ArtifactService(scheduler.blobs, MOST_BYTES),
        "temper.api.job.v1.ArtifactService",
    )
    await server.start()
    assert server.address is not None
    opened = channel(server.address)
    yield opened
    await opened.close()
    await server.stop(0)


def jobs(api: grpc.aio.Channel) -> job_pb2_grpc.JobServiceAsyncStub:
    return job_pb2_grpc.JobServiceStub(api)


def platform(api: grpc.aio.Channel) -> platform_pb2_grpc.PlatformServiceAsyncStub:
    return platform_pb2_grpc.PlatformServiceStub(api)


def artifacts(api: grpc.aio.Channel) -> platform_pb2_grpc.ArtifactServiceAsyncStub:
    return platform_pb2_grpc.ArtifactServiceStub(api)


async def pieces(data: bytes, size: int = 1 << 20):
    for start in range(0, len(data), size):
        yield platform_pb2.UploadRequest(
            name="weights" if not start else "", chunk=data[start : start + size]
        )


async def test_a_mistake_arrives_with_its_path_and_the_nearest_name(world, api):
    await world.schedulers[0].upload(spec())
    request = job_pb2.CreateJobRequest(spec=spec(phases=[policy_phase(algorithm="grop")]), request_id="r")
    with pytest.raises(Rejected) as caught, rpc_errors():
        await jobs(api).CreateJob(request, timeout=10)
    assert caught.value.field == "spec.phases[0].algorithm"
    assert caught.value.hint == "did you mean 'grpo'?"


async def test_the_contract_s_own_rules_hold_at_the_edge(api):
    request = job_pb2.CreateJobRequest(spec=spec(phases=[policy_phase(maxStaleness=9)]), request_id="r")
    with pytest.raises(Rejected) as caught, rpc_errors():
        await jobs(api).CreateJob(request, timeout=10)
    assert caught.value.field == "spec.phases[0].max_staleness"


async def test_a_job_is_created_and_watched_over_the_wire(world, api):
    await world.schedulers[0].upload(spec())
    request = job_pb2.CreateJobRequest(spec=spec(), request_id="r")
    created = (await jobs(api).CreateJob(request, timeout=10)).job
    stream = jobs(api).WatchJob(job_pb2.WatchJobRequest(job_id=created.id), timeout=30)
    first = await stream.read()
    assert isinstance(first, job_pb2.WatchJobResponse)
    assert first.snapshot.id == created.id
    stream.cancel()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 17])
async def test_what_goes_up_comes_down(api, size):
    data = bytes(range(256)) * (size // 256 + 1)
    uploaded = (await artifacts(api).Upload(pieces(data[:size]), timeout=30)).ref
    assert uploaded.size == size
    again = (await artifacts(api).Upload(pieces(data[:size], 1000), timeout=30)).ref
    assert again == uploaded
    found = [
        piece.chunk async for piece in artifacts(api).Download(platform_pb2.DownloadRequest(ref=uploaded))
    ]
    assert b"".join(found) == data[:size]
    assert all(len(chunk) <= 1 << 20 for chunk in found)


async def test_an_upload_over_the_limit_is_refused(api):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await artifacts(api).Upload(pieces(b"x" * (MOST_BYTES + 1)), timeout=30)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_download_of_other_bytes_than_named_is_refused(api):
    ref = (await artifacts(api).Upload(pieces(b"abc"), timeout=10)).ref
    wrong = BlobRef(key=ref.key, sha256="0" * 64, size=3)
    with pytest.raises(Rejected, match="checksum"), rpc_errors():
        async for _ in artifacts(api).Download(platform_pb2.DownloadRequest(ref=wrong), timeout=10):
            pass


async def test_services_are_listed_and_drained(world, api):
    found = (await platform(api).ListServices(platform_pb2.ListServicesRequest(), timeout=10)).instances
    assert [each.service for each in found] == ["qa", "rollout", "sandbox", "trainer"]
    events = world.platform.bus.events(evt("platform", "drain", "trainer", "1"), after=0)
    await platform(api).DrainService(
        platform_pb2.DrainServiceRequest(service="trainer", instance="1"), timeout=10
    )
    order = (await anext(events)).message(platform_pb2.DrainOrder)
    assert order.requested_by == "scheduler/a"
    await events.aclose()
    with pytest.raises(Rejected, match="no live trainer instance"), rpc_errors():
        await platform(api).DrainService(
            platform_pb2.DrainServiceRequest(service="trainer", instance="2"), timeout=10
        )


async def test_dead_letters_are_shown_retried_and_dropped(world, api):
    bus = world.platform.bus
    world.peers.rolling = False
    for number in (1, 2):
        command = GroupCommand(job_id="gone", group_id=f"gone-{number}")
        await bus.command(cmd("other", "gone"), command, id=f"gone-{number}")
    deliveries = bus.commands("other", concurrency=2)
    for _ in range(2):
        await (await anext(deliveries)).term("cannot be read")
    listed = (await platform(api).ListDeadLetters(platform_pb2.ListDeadLettersRequest(), timeout=10)).letters
    assert [letter.id for letter in listed] == ["gone-1", "gone-2"]
    assert '"groupId": "gone-1"' in listed[0].body_json
    assert listed[0].reason == "cannot be read"
    await platform(api).RetryDeadLetter(platform_pb2.RetryDeadLetterRequest(seq=listed[0].seq), timeout=10)
    await platform(api).DropDeadLetter(platform_pb2.DropDeadLetterRequest(seq=listed[1].seq), timeout=10)
    assert (await anext(deliveries)).envelope.id == "gone-1"
    await deliveries.aclose()
    left = (await platform(api).ListDeadLetters(platform_pb2.ListDeadLettersRequest(), timeout=10)).letters
    assert not left


async def test_policies_are_listed(world, api):
    scheduler = world.schedulers[0]
    job = await scheduler.create(spec())
    await world.until_over(scheduler, job.id)
    found = (await platform(api).ListPolicies(platform_pb2.ListPoliciesRequest(), timeout=10)).policies
    assert [(each.job_id, each.version, each.step, each.state) for each in found] == [
        (job.id, 4, 4, "finished")
    ]


async def test_what_does_not_exist_is_not_found(api):
    missing = BlobRef(key="sha256/no/such", sha256="0" * 64, size=1)
    asked = (
        lambda: jobs(api).GetJob(job_pb2.GetJobRequest(job_id="nobody")),
        lambda: jobs(api).CancelJob(job_pb2.CancelJobRequest(job_id="nobody")),
        lambda: jobs(api).UpdateJob(
            job_pb2.UpdateJobRequest(job=job_pb2.Job(id="nobody"), update_mask=LABELS)
        ),
        lambda: aiter(jobs(api).WatchJob(job_pb2.WatchJobRequest(job_id="nobody"))).__anext__(),
        lambda: platform(api).DropDeadLetter(platform_pb2.DropDeadLetterRequest(seq=99)),
        lambda: platform(api).DrainService(
            platform_pb2.DrainServiceRequest(service="trainer", instance="nobody")
        ),
        lambda: aiter(artifacts(api).Download(platform_pb2.DownloadRequest(ref=missing))).__anext__(),
    )
    for ask in asked:
        with pytest.raises(grpc.aio.AioRpcError) as raw:
            await ask()
        assert raw.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(NotFound), rpc_errors():
            await ask()


async def test_a_job_that_names_an_unknown_environment_is_a_bad_request(api, world):
    await world.schedulers[0].upload(spec())
    world.peers.refused_envs["calc"] = "no environment is named 'calc'"
    with pytest.raises(grpc.aio.AioRpcError) as raw:
        await jobs(api).CreateJob(job_pb2.CreateJobRequest(spec=spec(), request_id="r"))
    assert raw.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(Rejected) as caught, rpc_errors():
        await jobs(api).CreateJob(job_pb2.CreateJobRequest(spec=spec(), request_id="r"))
    assert (type(caught.value), caught.value.field) == (Rejected, "spec.domains[0].env")
