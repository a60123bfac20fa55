from collections.abc import Iterator

import grpc.aio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from temper.api.job.v1 import platform_pb2 as pb
from temper.api.job.v1 import platform_pb2_grpc as pb_grpc
from temper.runtime import tracing
from temper.runtime.bus.nats import NatsBus
from temper.runtime.config import GrpcConfig
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Unavailable
from temper.runtime.rpc import GrpcServer, channel
from temper.runtime.tracing import current_traceparent, setup_tracing, span

PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


@pytest.fixture
def tracing_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    provider = TracerProvider()
    monkeypatch.setattr(tracing, "_tracing", True)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield
    provider.shutdown()


def trace_id(traceparent: str | None) -> str:
    assert traceparent is not None
    return traceparent.split("-")[1]


def test_without_an_exporter_a_span_is_nothing() -> None:
    assert not setup_tracing("example", {})
    with span("work", traceparent=PARENT):
        assert current_traceparent() is None


def test_a_span_continues_the_trace_of_the_envelope(tracing_on: None) -> None:
    with span("work", traceparent=PARENT, kind="consumer", group="g"):
        inside = current_traceparent()
    assert trace_id(inside) == trace_id(PARENT)
    assert inside != PARENT


def test_tracing_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="not installed") as caught:
        setup_tracing("example", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
    assert "temper-rl[otel]" in str(caught.value.hint)


async def test_a_request_over_the_bus_stays_in_its_trace(tracing_on: None, nats_bus: NatsBus) -> None:
    seen: list[str | None] = []

    async def handler(_: pb.ListServicesRequest, envelope: Envelope) -> pb.ListServicesResponse:
        seen.extend([envelope.traceparent, current_traceparent()])
        return pb.ListServicesResponse()

    await nats_bus.serve("temper.v1.rpc.example", pb.ListServicesRequest, handler)
    with span("group", traceparent=PARENT):
        await nats_bus.request(
            "temper.v1.rpc.example", pb.ListServicesRequest(), pb.ListServicesResponse, timeout_s=20
        )
    assert [trace_id(each) for each in seen] == [trace_id(PARENT)] * 2


async def test_a_grpc_call_stays_in_its_trace(tracing_on: None) -> None:
    seen: list[str | None] = []

    class Platform(pb_grpc.PlatformServiceServicer):
        async def ListServices(
            self, request: pb.ListServicesRequest, context: grpc.aio.ServicerContext
        ) -> pb.ListServicesResponse:
            seen.append(current_traceparent())
            return pb.ListServicesResponse()

    server = GrpcServer(GrpcConfig(port=0))
    server.add(pb_grpc.add_PlatformServiceServicer_to_server, Platform(), "temper.api.job.v1.PlatformService")
    await server.start()
    opened = channel(str(server.address), token="t")
    try:
        with span("command", traceparent=PARENT):
            await pb_grpc.PlatformServiceStub(opened).ListServices(pb.ListServicesRequest(), timeout=20)
    finally:
        await opened.close()
        await server.stop(0)
    assert [trace_id(each) for each in seen] == [trace_id(PARENT)]
