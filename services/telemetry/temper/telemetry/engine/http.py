"""A ClickHouse server over HTTP, through clickhouse-connect.

The server is where a read-only user belongs, too: `asker` may name one; `readonly = 1` is sent with every query
whoever asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from clickhouse_connect.driver.client import Client

from temper.runtime.errors import Rejected, Unavailable
from temper.telemetry.engine.base import FORMAT, Bounds, Result, decode
from temper.telemetry.engine.session import Writer, translated
from temper.telemetry.rows import Batch

CONNECT_S = 5
ANSWER_S = 310  # longer than any query may take: the server's own limit comes first, with a message people understand


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. Example: `User("default", "…")`."""

    name: str
    """User of the server."""
    password: str
    """Its password; empty for none."""


class HttpEngine:
    """`HttpEngine("http://clickhouse:8123", "temper", owner=User("default", "…"))`."""

    def __init__(self, url: str, database: str, *, owner: User, asker: User | None = None) -> None:
        """`owner` makes tables and inserts; `asker` asks, the same user when None."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Rejected(f"{url!r} is not the address of a ClickHouse server", field="clickhouse.url")
        self._scheme, self._host = parts.scheme, parts.hostname
        self._port = parts.port or (8443 if parts.scheme == "https" else 8123)
        self._database = database
        self._owner = owner
        self._asker = asker or owner
        self._writer: Writer | None = None
        self._reader: Client | None = None

    def open(self) -> None:
        with translated():
            first = self._connect(None, self._owner)
            first.command(f"CREATE DATABASE IF NOT EXISTS {self._database}")
            first.close()
            self._writer = Writer(self._connect(self._database, self._owner))
        self._writer.apply_schema()

    def insert(self, batch: Batch) -> None:
        self._opened().insert(batch)

    def positions(self) -> dict[str, str]:
        return self._opened().positions()

    def query(self, sql: str, parameters: Mapping[str, Any], bounds: Bounds) -> Result:
        with translated():
            if self._reader is None:
                self._reader = self._connect(self._database, self._asker)
            answer = self._reader.raw_query(
                sql, parameters=dict(parameters) or None, settings=bounds.settings(), fmt=FORMAT
            )
        return decode(answer, bounds.max_rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()

    def _opened(self) -> Writer:
        if self._writer is None:
            raise Unavailable("the database is not open")
        return self._writer

    def _connect(self, database: str | None, user: User) -> Client:
        import clickhouse_connect

        return clickhouse_connect.get_client(
            interface=self._scheme,
            host=self._host,
            port=self._port,
            username=user.name,
            password=user.password,
            database=database or "__default__",  # the driver's word for the user's own
            connect_timeout=CONNECT_S,
            send_receive_timeout=ANSWER_S,
        )
