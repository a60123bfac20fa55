import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from temper.api.job.v1 import platform_pb2 as pb
from temper.api.job.v1 import platform_pb2_grpc as pb_grpc
from temper.runtime import errors
from temper.runtime.config import GrpcConfig, ServiceConfig, load
from temper.runtime.rpc import GrpcServer, channel, rpc_errors

PLATFORM = "temper.api.job.v1.PlatformService"
ARTIFACT = "temper.api.job.v1.ArtifactService"


class Platform(pb_grpc.PlatformServiceServicer):
    """Answers, fails or hangs as the test wants."""

    def __init__(self) -> None:
        self.fail: BaseException | None = None
        self.attempts = 0
        self.cancelled = asyncio.Event()

    async def ListServices(self, request: pb.ListServicesRequest, context: Any) -> pb.ListServicesResponse:
        self.attempts += 1
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        return pb.ListServicesResponse(instances=[pb.Presence(service=request.service)])

    async def ListPolicies(self, request: pb.ListPoliciesRequest, context: Any) -> pb.ListPoliciesResponse:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError


class Artifacts(pb_grpc.ArtifactServiceServicer):
    async def Upload(self, request_iterator: Any, context: Any) -> pb.UploadResponse:
        async for _ in request_iterator:
            pass
        return pb.UploadResponse()

    async def Download(self, request: Any, context: Any) -> AsyncIterator[pb.DownloadResponse]:
        yield pb.DownloadResponse()
        raise errors.Rejected("blob k does not match its checksum", field="blob.sha256")


@dataclass
class Rig:
    server: GrpcServer
    platform: Platform
    registry: CollectorRegistry
    stack: AsyncExitStack

    def connect(self, token: str | None = "right") -> grpc.aio.Channel:
        opened = channel(str(self.server.address), token=token)
        self.stack.push_async_callback(opened.close)
        return opened

    def stub(self, token: str | None = "right") -> "pb_grpc.PlatformServiceAsyncStub":
        return pb_grpc.PlatformServiceStub(self.connect(token))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A server that wants the token `right`."""
    secret = tmp_path / "token"
    secret.write_text("right")
    async with AsyncExitStack() as stack:
        registry = CollectorRegistry()
        rig = Rig(
            GrpcServer(GrpcConfig(port=0, token_file=secret, unary_timeout_s=30), registry),
            Platform(),
            registry,
            stack,
        )
        rig.server.add(pb_grpc.add_PlatformServiceServicer_to_server, rig.platform, PLATFORM)
        rig.server.add(pb_grpc.add_ArtifactServiceServicer_to_server, Artifacts(), ARTIFACT)
        await rig.server.start()
        stack.push_async_callback(rig.server.stop, 0)
        yield rig


async def test_a_call_with_the_token_is_answered(rig: Rig) -> None:
    answer = await rig.stub().ListServices(pb.ListServicesRequest(service="qa"), timeout=10)
    assert answer.instances[0].service == "qa"


@pytest.mark.parametrize("token", [None, "wrong", "right-and-more", "righ"])
async def test_a_call_without_the_right_token_is_refused(rig: Rig, token: str | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub(token).ListServices(pb.ListServicesRequest(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert rig.platform.attempts == 0


async def test_a_stream_without_the_right_token_is_refused(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in pb_grpc.ArtifactServiceStub(rig.connect("wrong")).Download(
            pb.DownloadRequest(), timeout=10
        ):
            pass
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_follows_readiness_and_needs_no_token(rig: Rig) -> None:
    health: Any = health_pb2_grpc.HealthStub(rig.connect(None))
    for ready, status in ((True, "SERVING"), (False, "NOT_SERVING")):
        await rig.server.set_ready(ready)
        for name in ("", PLATFORM):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == status


async def test_reflection_lists_the_api(rig: Rig) -> None:
    async def ask() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("Any", rig.connect()))
    call = stub.ServerReflectionInfo(ask(), timeout=10)
    names = {each.name for answer in [await call.read()] for each in answer.list_services_response.service}
    assert {PLATFORM, ARTIFACT, "grpc.health.v1.Health"} <= names


async def test_a_request_that_breaks_the_contract_lists_every_field(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub().DrainService(pb.DrainServiceRequest(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    error = errors.from_status(caught.value)
    assert isinstance(error, errors.Rejected)
    assert error.field == "service"
    assert "instance" in str(error.hint)


async def test_the_bad_request_detail_is_machine_readable(rig: Rig) -> None:
    from google.rpc import status_pb2

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub().ListDeadLetters(pb.ListDeadLettersRequest(page_size=-1), timeout=10)
    raw = cast("bytes", dict(caught.value.trailing_metadata() or ())[errors.STATUS_METADATA_KEY])
    request = error_details_pb2.BadRequest()
    assert any(detail.Unpack(request) for detail in status_pb2.Status.FromString(raw).details)
    assert request.field_violations[0].field == "page_size"
    assert request.field_violations[0].reason == "int32.gte_lte"


@pytest.mark.parametrize("kind", [errors.Rejected, errors.Stale, errors.Conflict, errors.Exhausted])
async def test_an_error_of_the_tree_arrives_as_itself(rig: Rig, kind: type[errors.TemperError]) -> None:
    rig.platform.fail = kind("no", field="service", hint="do this")
    with pytest.raises(kind, match=r"service: no \(do this\)"), rpc_errors("scheduler"):
        await rig.stub().ListServices(pb.ListServicesRequest(), timeout=10)


async def test_unavailable_is_retried_within_the_deadline(rig: Rig) -> None:
    rig.platform.fail = errors.Unavailable("starting")
    await rig.stub().ListServices(pb.ListServicesRequest(), timeout=20)
    assert rig.platform.attempts == 2


async def test_an_error_in_a_stream_comes_after_what_was_sent(rig: Rig) -> None:
    call = pb_grpc.ArtifactServiceStub(rig.connect()).Download(
        pb.DownloadRequest(ref={"key": "k", "sha256": "0" * 64}), timeout=10
    )
    assert await call.read() == pb.DownloadResponse()
    with pytest.raises(errors.Rejected, match="checksum") as caught, rpc_errors():
        await call.read()
    assert caught.value.field == "blob.sha256"


async def test_a_caller_that_gives_up_cancels_the_handler(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.stub().ListPolicies(pb.ListPoliciesRequest(), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(rig.platform.cancelled.wait(), 10)


async def test_a_call_without_a_deadline_gets_the_servers() -> None:
    server = GrpcServer(GrpcConfig(port=0, unary_timeout_s=0.05))
    server.add(pb_grpc.add_PlatformServiceServicer_to_server, Platform(), PLATFORM)
    await server.start()
    opened = channel(str(server.address))
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pb_grpc.PlatformServiceStub(opened).ListPolicies(pb.ListPoliciesRequest())
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        await opened.close()
        await server.stop(0)


async def test_calls_are_measured_by_method_and_code(rig: Rig) -> None:
    await rig.stub().ListServices(pb.ListServicesRequest(), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.stub("wrong").ListServices(pb.ListServicesRequest(), timeout=10)
    count = rig.registry.get_sample_value
    assert count("temper_grpc_seconds_count", {"method": "ListServices", "code": "OK"}) == 1
    assert count("temper_grpc_seconds_count", {"method": "ListServices", "code": "UNAUTHENTICATED"}) == 1


async def test_a_taken_port_is_said_with_its_field(rig: Rig) -> None:
    second = GrpcServer(GrpcConfig(port=rig.server.port))
    with pytest.raises(errors.Unavailable, match="cannot listen") as caught:
        await second.start()
    assert caught.value.field == "grpc.port"


async def test_no_port_means_no_server() -> None:
    server = GrpcServer(GrpcConfig(port=None))
    await server.start()
    assert server.address is None
    await server.stop(0)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate to serve")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-days", "1", "-subj", "/CN=temper-test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_a_server_with_a_certificate_speaks_tls_only(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server = GrpcServer(GrpcConfig(port=0, tls_cert_file=cert, tls_key_file=key))
    server.add(pb_grpc.add_PlatformServiceServicer_to_server, Platform(), PLATFORM)
    await server.start()
    trusting, plain = channel(str(server.address), tls_ca_file=cert), channel(str(server.address))
    try:
        await pb_grpc.PlatformServiceStub(trusting).ListServices(pb.ListServicesRequest(), timeout=20)
        with pytest.raises(errors.Unavailable), rpc_errors("scheduler"):
            await pb_grpc.PlatformServiceStub(plain).ListServices(pb.ListServicesRequest(), timeout=5)
    finally:
        await trusting.close()
        await plain.close()
        await server.stop(0)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Rejected, match="tls_key_file go together") as caught:
        load("example", ServiceConfig, sets=[f"grpc.tls_cert_file={tmp_path}/cert.pem"], environ={})
    assert caught.value.field == "grpc"
