"""ClickHouse inside this process (chdb), through clickhouse-connect.

One process per path, and one path per process: a second process is refused by the engine's own lock. Each query runs on a
handle of its own: settings of a handle with `readonly = 1` can never be loosened, and a handle whose query failed half-way
hands the rest of its answer to the next one (seen with clickhouse-connect 1.12), so it is not used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from temper.runtime.errors import Unavailable
from temper.telemetry.engine.base import FORMAT, Bounds, Result, decode
from temper.telemetry.engine.session import Writer, translated
from temper.telemetry.rows import Batch


class ChdbEngine:
    """A database in a directory."""

    def __init__(self, path: Path, database: str) -> None:
        self._path = path
        self._database = database
        self._writer: Writer | None = None

    def open(self) -> None:
        first = self._take()
        with translated():
            first.command(f"CREATE DATABASE IF NOT EXISTS {self._database}")
            self._writer = Writer(_connect(self._path, self._database))
            first.close()
        self._writer.apply_schema()

    def insert(self, batch: Batch) -> None:
        self._opened().insert(batch)

    def positions(self) -> dict[str, str]:
        return self._opened().positions()

    def query(self, sql: str, parameters: Mapping[str, Any], bounds: Bounds) -> Result:
        with translated():
            client = _connect(self._path, self._database)
            try:
                for name, value in bounds.settings().items():
                    client.command(f"SET {name} = {value}")
                answer = client.raw_query(sql, parameters=dict(parameters) or None, fmt=FORMAT)
            finally:
                client.close()
        return decode(answer, bounds.max_rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _take(self) -> Client:
        """The first handle, which locks the directory for this process."""
        try:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with translated():
                return _connect(self._path, None)
        except (OSError, Unavailable) as error:
            raise Unavailable(
                f"cannot open the database in {self._path}: {error}",
                field="clickhouse.path",
                hint="the directory must be writable, and no other process may have it open",
            ) from None

    def _opened(self) -> Writer:
        if self._writer is None:
            raise Unavailable("the database is not open")
        return self._writer


def _connect(path: Path, database: str | None) -> Client:
    import clickhouse_connect

    return clickhouse_connect.get_client(interface="chdb", path=str(path), database=database)
