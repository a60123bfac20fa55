"""The twin: rows in dictionaries, with the same replacement by key and rank. It answers `SELECT * FROM table` only.

Deterministic and instant; it can be told to be away. Tests of the ingestion use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from temper.runtime.errors import Rejected, Unavailable
from temper.telemetry.columns import COLUMNS
from temper.telemetry.engine.base import Bounds, Result
from temper.telemetry.rows import Batch, Row

KEYS: dict[str, int] = {
    "groups": 2,
    "samples": 3,
    "tool_uses": 4,
    "steps": 2,
    "evals": 3,
    "gates": 4,
    "job_events": 2,
    "verdicts": 4,
    "sandbox_sessions": 2,
    "ingestion": 1,
}
"""How many leading columns make the key of a row."""

_QUESTION = re.compile(r"SELECT \* FROM (\w+)", re.IGNORECASE)


class FakeEngine:
    """A database that forgets when it is dropped, not when it is closed."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Row, Row]] = {}
        self.inserts = 0
        self.away = False

    def open(self) -> None:
        self._reach()

    def insert(self, batch: Batch) -> None:
        self._reach()
        self.inserts += 1
        table = self.tables.setdefault(batch.table, {})
        for row in batch.rows:
            key = row[: KEYS[batch.table]]
            if key not in table or row[-1] >= table[key][-1]:  # the rank is the last column
                table[key] = row

    def positions(self) -> dict[str, str]:
        self._reach()
        return {row[0]: row[1] for row in self.tables.get("ingestion", {}).values()}

    def query(self, sql: str, parameters: Mapping[str, Any], bounds: Bounds) -> Result:
        self._reach()
        match = _QUESTION.fullmatch(sql.strip())
        if match is None or match[1] not in COLUMNS:
            raise Rejected("this database only answers SELECT * FROM table", field="sql")
        rows = [list(row) for _, row in sorted(self.tables.get(match[1], {}).items())]
        names = COLUMNS[match[1]]
        return Result(names, ("String",) * len(names), rows[: bounds.max_rows], len(rows) > bounds.max_rows)

    def close(self) -> None:
        """Nothing to let go."""

    def _reach(self) -> None:
        if self.away:
            raise Unavailable("the database is away")
