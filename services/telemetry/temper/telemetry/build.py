"""Wires the parts of the service together: who knows whom.

service ──> guard, schema        (what may be asked)
   └──────> storage ──> engine   (threads, then chdb or a server)
actor ────> rows, storage, log   (ingestion)
"""

from __future__ import annotations

from temper.api.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc
from temper.runtime.config import read_secret
from temper.runtime.errors import Unavailable
from temper.runtime.service import Context
from temper.telemetry.actor import Ingestor
from temper.telemetry.config import ClickhouseConfig, TelemetryConfig
from temper.telemetry.engine.base import Engine
from temper.telemetry.metrics import Metrics
from temper.telemetry.service import QueryService
from temper.telemetry.storage import Storage


async def build(context: Context[TelemetryConfig]) -> None:
    """Start ingestion and serve questions; the database is opened by whichever comes first."""
    config, metrics = context.config, Metrics(context.metrics)
    storage = Storage(open_engine(config.clickhouse), context.clock, waiting=config.query.waiting)
    ingestor = Ingestor(context.log, storage, context.clock, config.ingest, metrics)
    context.supervisor.start("ingestion", ingestor.run)

    async def stop() -> None:
        await context.supervisor.cancel("ingestion")
        await storage.close()

    context.on_drain("database", stop)
    context.grpc.add(
        telemetry_pb2_grpc.add_QueryServiceServicer_to_server,
        QueryService(storage, ingestor, context.clock, config.query, metrics),
        telemetry_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name,
    )
    context.presence.say(engine=config.clickhouse.engine)
    context.presence.reports(
        lambda: {f"stored.{name}": topic.records for name, topic in ingestor.progress.topics.items()}
    )


def open_engine(config: ClickhouseConfig) -> Engine:
    """The engine that the configuration names; nothing is connected or loaded yet beyond its client library.

    Raises Unavailable, naming the extra, when that is not installed.
    """
    try:
        if config.engine == "chdb":
            from temper.telemetry.engine.chdb import ChdbEngine

            return ChdbEngine(config.path, config.database)
        from temper.telemetry.engine.http import HttpEngine, User
    except ModuleNotFoundError as missing:
        raise Unavailable(
            f"{missing.name} is not installed",
            field="clickhouse.engine",
            hint="pip install 'temper-rl[telemetry]'",
        ) from None
    owner = User(config.username, read_secret(config.password_file, field="clickhouse.password_file") or "")
    secret = read_secret(config.query_password_file, field="clickhouse.query_password_file")
    asker = User(config.query_username, secret or "") if config.query_username else None
    return HttpEngine(config.url, config.database, owner=owner, asker=asker)
