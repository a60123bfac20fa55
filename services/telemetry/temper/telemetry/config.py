"""Settings of the telemetry service; every default stands in `telemetry.toml` with a comment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from temper.runtime.config import Section, ServiceConfig


class ClickhouseConfig(Section):
    """Where rows live."""

    engine: Literal["chdb", "http"] = "chdb"
    """`chdb` runs ClickHouse inside this process, `http` uses a server."""
    path: Path = Path("/var/lib/temper/clickhouse")
    """Directory of the embedded database; one process at a time."""
    url: str = "http://127.0.0.1:8123"
    """Address of the server."""
    database: str = Field(default="temper", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Database; made if it is not there."""
    username: str = "default"
    """User of the server that makes tables and inserts."""
    password_file: Path | None = None
    """File that holds that user's password."""
    query_username: str = ""
    """User of the server that asks; empty: the same. A read-only one is a second lock on the door."""
    query_password_file: Path | None = None
    """File that holds that user's password."""


class IngestConfig(Section):
    """From the log to rows."""

    interval_s: float = Field(default=2.0, gt=0)
    """Seconds between two batches: fewer, larger inserts cost less."""
    batch: int = Field(default=1000, ge=1, le=100_000)
    """Most records of one read, and of one insert."""
    retry_s: float = Field(default=2.0, gt=0)
    """Seconds between two tries while the log or the database is away."""


class QueryConfig(Section):
    """What questions may cost."""

    memory_bytes: int = Field(default=1 << 30, ge=1 << 24)
    """Memory of one query."""
    threads: int = Field(default=1, ge=1)
    """Cores of one query."""
    waiting: int = Field(default=16, ge=1)
    """Most questions waiting for an answer at a time; more are refused."""


class TelemetryConfig(ServiceConfig):
    """All of `telemetry.toml`."""

    clickhouse: ClickhouseConfig = ClickhouseConfig()
    """Where rows live."""
    ingest: IngestConfig = IngestConfig()
    """From the log to rows."""
    query: QueryConfig = QueryConfig()
    """What questions may cost."""
