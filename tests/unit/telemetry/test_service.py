import json
from types import SimpleNamespace

import pytest
from google.protobuf.json_format import MessageToDict
from prometheus_client import CollectorRegistry
from tests.unit.telemetry import facts

from temper.api.telemetry.v1 import telemetry_pb2 as api
from temper.runtime.clock import FakeClock
from temper.runtime.config import load
from temper.runtime.errors import Rejected
from temper.runtime.log.memory import MemoryLog
from temper.telemetry.actor import Ingestor
from temper.telemetry.build import open_engine
from temper.telemetry.config import IngestConfig, QueryConfig, TelemetryConfig
from temper.telemetry.engine.base import as_error, decode, parameter_values
from temper.telemetry.engine.fake import FakeEngine
from temper.telemetry.metrics import Metrics
from temper.telemetry.service import QueryService, to_value
from temper.telemetry.storage import Storage


@pytest.fixture
async def world():
    clock, metrics = FakeClock(), Metrics(CollectorRegistry())
    log = MemoryLog(clock)
    storage = Storage(FakeEngine(), clock, waiting=4)
    ingestor = Ingestor(log, storage, clock, IngestConfig(), metrics)
    for number in range(3):
        await log.append("trajectories", "job-1", facts.group(number), id=f"job-1-{number}")
    await ingestor.once()
    return SimpleNamespace(
        ingestor=ingestor, service=QueryService(storage, ingestor, clock, QueryConfig(), metrics)
    )


async def test_an_answer_is_cut_at_max_rows_and_says_so(world):
    whole = await world.service.Query(api.QueryRequest(sql="SELECT * FROM groups"), None)
    cut = await world.service.Query(api.QueryRequest(sql="SELECT * FROM groups", max_rows=2), None)
    assert (len(whole.rows), whole.truncated) == (3, False)
    assert (len(cut.rows), cut.truncated) == (2, True)
    assert [column.name for column in cut.columns][:2] == ["job_id", "group_id"]


async def test_a_write_never_reaches_the_database(world):
    with pytest.raises(Rejected, match="only questions"):
        await world.service.Query(api.QueryRequest(sql="DROP TABLE groups"), None)


async def test_saved_queries_are_listed_and_an_unknown_one_is_refused(world):
    listed = await world.service.ListSavedQueries(api.ListSavedQueriesRequest(), None)
    assert {"lineage": "UInt64"}["lineage"] == next(
        query.parameters["step"] for query in listed.queries if query.name == "lineage"
    )
    with pytest.raises(Rejected, match="no saved query is named"):
        await world.service.Query(api.QueryRequest(saved="nope"), None)


async def test_a_parameter_that_is_missing_is_named(world):
    with pytest.raises(Rejected) as refused:
        await world.service.Query(api.QueryRequest(saved="lineage", parameters={"job": "j"}), None)
    assert refused.value.field == "parameters.step"


async def test_ingestion_is_told_by_topic(world):
    told = await world.service.GetIngestion(api.GetIngestionRequest(), None)
    assert {topic.topic: (topic.records, topic.lag) for topic in told.topics}["trajectories"] == (3, 0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (3, 3.0),
        (2**53 + 1, "9007199254740993"),
        (1.5, 1.5),
        ("x", "x"),
        ([1, [None]], [1.0, [None]]),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}),
        ({}, {}),
        ([], []),
    ],
)
def test_every_json_value_has_its_protobuf_form(value, shown):
    assert MessageToDict(to_value(value)) == shown


def test_an_answer_is_names_then_types_then_rows():
    lines = [["a", "b"], ["UInt8", "String"], [1, "x\n"], [2, "y"]]
    answer = "\n".join(json.dumps(line) for line in lines).encode()
    result = decode(answer, 1)
    assert (result.names, result.types, result.rows, result.truncated) == (
        ("a", "b"),
        ("UInt8", "String"),
        [[1, "x\n"]],
        True,
    )


def test_errors_say_whose_fault_it_is():
    assert type(as_error(62, "Syntax error")).__name__ == "Rejected"
    assert type(as_error(210, "Network error")).__name__ == "Unavailable"
    assert "timeout_s" in str(as_error(159, "Timeout exceeded"))


def test_arrays_are_given_as_json():
    assert parameter_values({"a": '["x"]', "b": "[x"}, {"a": "Array(String)", "b": "String"}) == {
        "a": ["x"],
        "b": "[x",
    }
    with pytest.raises(Rejected, match="written as JSON"):
        parameter_values({"a": "x"}, {"a": "Array(String)"})


def test_the_packaged_settings_are_the_models_defaults():
    packaged = load("telemetry", TelemetryConfig, environ={})
    plain = TelemetryConfig()
    assert (packaged.ingest, packaged.query, packaged.clickhouse) == (
        plain.ingest,
        plain.query,
        plain.clickhouse,
    )


def test_a_server_address_that_is_none_is_refused():
    config = TelemetryConfig.model_validate({"clickhouse": {"engine": "http", "url": "clickhouse:8123"}})
    with pytest.raises(Rejected, match="not the address"):
        open_engine(config.clickhouse)
