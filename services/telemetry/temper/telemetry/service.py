"""`temper.api.telemetry.v1.QueryService`: questions to ClickHouse."""

from __future__ import annotations

from typing import Any

from google.protobuf.struct_pb2 import ListValue, Value

from temper.api.telemetry.v1 import telemetry_pb2 as api
from temper.api.telemetry.v1 import telemetry_pb2_grpc
from temper.runtime.clock import Clock
from temper.runtime.errors import TemperError
from temper.telemetry import guard, schema
from temper.telemetry.actor import Ingestor
from temper.telemetry.config import QueryConfig
from temper.telemetry.engine.base import Bounds, Result, parameter_values
from temper.telemetry.metrics import Metrics
from temper.telemetry.storage import Storage

DEFAULT_ROWS, DEFAULT_S = 1000, 30.0  # as the contract says
EXACT = 2**53  # integers beyond it are not exact as a double, so they travel as text


class QueryService(telemetry_pb2_grpc.QueryServiceServicer):
    """Guards, binds, bounds and asks."""

    def __init__(
        self, storage: Storage, ingestor: Ingestor, clock: Clock, config: QueryConfig, metrics: Metrics
    ) -> None:
        self._storage = storage
        self._ingestor = ingestor
        self._clock = clock
        self._config = config
        self._metrics = metrics

    async def Query(self, request: api.QueryRequest, context: Any) -> api.QueryResponse:
        """One question; `fresh` and the question share the request's time."""
        started = self._clock.monotonic()
        try:
            result = await self._ask(request)
        except TemperError as error:
            self._metrics.asked(type(error).__name__.lower())
            raise
        self._metrics.asked("answered")
        return to_response(result, self._clock.monotonic() - started)

    async def ListSavedQueries(
        self, request: api.ListSavedQueriesRequest, context: Any
    ) -> api.ListSavedQueriesResponse:
        """The named queries of the contract."""
        return api.ListSavedQueriesResponse(
            queries=[
                api.SavedQuery(
                    name=query.name,
                    description=query.description,
                    sql=query.sql,
                    parameters=query.parameters,
                )
                for query in schema.saved_queries().values()
            ]
        )

    async def GetIngestion(self, request: api.GetIngestionRequest, context: Any) -> api.GetIngestionResponse:
        """How far each topic is."""
        return api.GetIngestionResponse(
            topics=[
                api.TopicIngestion(topic=name, records=topic.records, lag=topic.lag)
                for name, topic in self._ingestor.progress.topics.items()
            ]
        )

    async def _ask(self, request: api.QueryRequest) -> Result:
        sql = schema.saved_query(request.saved).sql if request.HasField("saved") else request.sql
        sql = guard.check(sql)
        types = guard.bound(sql, request.parameters)
        values = parameter_values(request.parameters, types)
        timeout_s = request.timeout_s or DEFAULT_S
        started = self._clock.monotonic()
        if request.fresh:
            await self._ingestor.fresh(timeout_s)
        left_s = max(timeout_s - (self._clock.monotonic() - started), 0.1)
        bounds = Bounds(
            request.max_rows or DEFAULT_ROWS, left_s, self._config.memory_bytes, self._config.threads
        )
        return await self._storage.query(sql, values, bounds)


def to_response(result: Result, elapsed_s: float) -> api.QueryResponse:
    """An answer in the form of the contract."""
    return api.QueryResponse(
        columns=[
            api.Column(name=name, type=kind) for name, kind in zip(result.names, result.types, strict=True)
        ],
        rows=[ListValue(values=[to_value(value) for value in row]) for row in result.rows],
        truncated=result.truncated,
        elapsed_s=elapsed_s,
    )


def to_value(value: Any) -> Value:
    """A JSON value as protobuf's; integers that a double cannot hold become text."""
    match value:
        case None:
            return Value(null_value=0)  # type: ignore[arg-type]  # NULL_VALUE, the only one
        case bool():
            return Value(bool_value=value)
        case int() if abs(value) > EXACT:
            return Value(string_value=str(value))
        case int() | float():
            return Value(number_value=value)
        case list():
            return Value(list_value=ListValue(values=[to_value(each) for each in value]))
        case dict():
            shown = Value()
            for key, each in value.items():
                shown.struct_value.fields[str(key)].CopyFrom(to_value(each))
            shown.struct_value.SetInParent()
            return shown
        case _:
            return Value(string_value=str(value))
