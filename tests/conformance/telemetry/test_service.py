"""The service as others see it: records in the log of a real broker, questions over gRPC, and a process that is killed."""

import pytest
from tests.conformance.processes import Service, running
from tests.unit.telemetry import facts

from temper.api.telemetry.v1 import telemetry_pb2 as api
from temper.api.telemetry.v1 import telemetry_pb2_grpc
from temper.runtime.errors import Rejected, TemperError
from temper.runtime.log.jetstream import JetStreamLog
from temper.runtime.rpc import channel, rpc_errors
from temper.runtime.testing import eventually

pytest.importorskip("chdb", reason="needs temper-rl[telemetry]")


async def publish(log, first, last):
    for number in range(first, last):
        await log.append("trajectories", "job-1", facts.group(number), id=f"job-1-{number}")


async def count(stub):
    """Groups and samples that a fresh question sees; None while the service is starting."""
    question = api.QueryRequest(
        sql="SELECT count(), uniqExact(group_id), (SELECT count() FROM samples) FROM groups",
        fresh=True,
        timeout_s=5,
    )
    try:
        with rpc_errors():
            answer = await stub.Query(question, wait_for_ready=True, timeout=6)
    except TemperError:
        return None
    return [int(value.number_value) for value in answer.rows[0].values]


async def test_whatever_is_killed_every_record_is_there_once(nats_server, nats_bus, free_port, tmp_path):
    log = JetStreamLog(nats_bus)
    service = Service(
        "telemetry",
        nats_server,
        tmp_path,
        grpc__port=free_port,
        clickhouse__path=tmp_path / "clickhouse",
        ingest__interval_s=0.05,
        ingest__batch=7,
    )
    async with running(service), channel(f"127.0.0.1:{free_port}") as connection:
        stub = telemetry_pb2_grpc.QueryServiceStub(connection)
        await publish(log, 0, 40)
        assert await eventually(lambda: count(stub), within_s=90, what="an answer") == [40, 40, 80]
        await publish(log, 40, 60)
        service.kill()
        await publish(log, 60, 80)
        service.start()
        assert await eventually(lambda: count(stub), within_s=90, what="an answer") == [80, 80, 160]

        await nats_server.kill()
        assert await count(stub) is None  # nobody can say what is fresh, and that is told in time
        await nats_server.start()
        await eventually(lambda: nats_bus.connected, within_s=60, what="the broker")
        await publish(log, 80, 90)
        assert await eventually(lambda: count(stub), within_s=90, what="an answer") == [90, 90, 180]

        with pytest.raises(Rejected, match="only questions"), rpc_errors():
            await stub.Query(api.QueryRequest(sql="TRUNCATE TABLE groups"))
        with rpc_errors():
            cut = await stub.Query(api.QueryRequest(sql="SELECT * FROM samples", max_rows=5))
            told = await stub.GetIngestion(api.GetIngestionRequest())
        assert (len(cut.rows), cut.truncated) == (5, True)
        assert next(topic.lag for topic in told.topics if topic.topic == "trajectories") == 0
