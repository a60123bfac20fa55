"""What the two ClickHouse engines share: clickhouse-connect does the talking, and its errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from clickhouse_connect.driver.insert import InsertContext

from temper.runtime.errors import Unavailable
from temper.telemetry import schema
from temper.telemetry.engine.base import as_error
from temper.telemetry.rows import Batch


class Writer:
    """The connection that owns the schema and inserts. Column types are asked for once per table."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._contexts: dict[str, InsertContext] = {}

    def apply_schema(self) -> None:
        """Make tables and views that are not there yet."""
        with translated():
            for statement in schema.statements():
                self._client.command(statement)

    def insert(self, batch: Batch) -> None:
        """One insert for all rows of a batch."""
        with translated():
            context = self._contexts.get(batch.table)
            if context is None:
                context = self._client.create_insert_context(batch.table, list(batch.columns))
                self._contexts[batch.table] = context
            context.data = batch.rows
            try:
                self._client.insert(context=context)
            finally:
                context.data = None

    def positions(self) -> dict[str, str]:
        """Token by topic."""
        with translated():
            rows = self._client.query("SELECT topic, token FROM ingestion FINAL").result_rows
        return {str(topic): str(token) for topic, token in rows}

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


@contextmanager
def translated() -> Iterator[None]:
    """Raise a TemperError for what ClickHouse or the way to it refuses."""
    try:
        yield
    except DatabaseError as error:
        raise as_error(code_of(error), str(error)) from None
    except (ClickHouseError, OSError) as error:
        raise Unavailable(f"ClickHouse: {error}") from None


def code_of(error: Any) -> int | None:
    """Number of a ClickHouse exception, where the driver knows it."""
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else None
