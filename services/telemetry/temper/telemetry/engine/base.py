"""The seam to ClickHouse: a few blocking calls. `storage` runs them on threads of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from temper.runtime.errors import Rejected, TemperError, Unavailable
from temper.telemetry.rows import Batch

# ClickHouse error codes that are not the query's fault: network, storage, too much at once, starting up or shutting down.
TRANSIENT = frozenset(
    {3, 32, 74, 75, 76, 95, 96, 99, 198, 202, 203, 209, 210, 216, 225, 236, 242, 243, 252, 279, 319}
)
LIMITS = {158, 159, 160, 241, 307, 396}  # rows, time, estimated time, memory, bytes, result


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one query may cost. Example: `Bounds(max_rows=1000, timeout_s=30, memory_bytes=1 << 30, threads=1)`."""

    max_rows: int
    """Most rows returned; one more is asked for, to know whether there are more."""
    timeout_s: float
    """Seconds."""
    memory_bytes: int
    """Bytes."""
    threads: int
    """Cores it may use."""

    def settings(self) -> dict[str, str]:
        """ClickHouse settings, `readonly` last: once it is on, nothing can be changed any more."""
        return {
            "max_execution_time": f"{self.timeout_s:g}",
            "max_memory_usage": str(self.memory_bytes),
            "max_threads": str(self.threads),
            "limit": str(self.max_rows + 1),
            "final": "1",  # every record once, without asking authors of queries to say so
            "allow_introspection_functions": "0",
            "output_format_json_quote_64bit_integers": "0",
            "output_format_json_named_tuples_as_objects": "0",
            "readonly": "1",
        }


@dataclass(frozen=True, slots=True)
class Result:
    """An answer. Example: `Result(("n",), ("UInt64",), [[3]], False)`."""

    names: tuple[str, ...]
    """Columns."""
    types: tuple[str, ...]
    """Their ClickHouse types."""
    rows: list[list[Any]]
    """JSON values."""
    truncated: bool
    """Whether there were more rows."""


class Engine(Protocol):
    """A database. Calls block; `open` comes first. `insert` and `positions` come from one thread, `query` from another."""

    def open(self) -> None:
        """Connect or load, and apply the schema. Unavailable if it cannot be reached."""
        ...

    def insert(self, batch: Batch) -> None:
        """Add rows; a row whose key exists replaces it or is dropped, by rank. Unavailable, Exhausted."""
        ...

    def positions(self) -> dict[str, str]:
        """How far each topic was read: token by topic."""
        ...

    def query(self, sql: str, parameters: Mapping[str, Any], bounds: Bounds) -> Result:
        """Answer a question that `guard.check` let through. Rejected if it is wrong or costs too much."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


FORMAT = "JSONCompactEachRowWithNamesAndTypes"


def decode(answer: bytes, max_rows: int) -> Result:
    """Read an answer in `FORMAT`: a line of names, a line of types, a line per row."""
    lines = [json.loads(line) for line in answer.splitlines() if line]
    names, types, rows = (lines[0], lines[1], lines[2:]) if len(lines) >= 2 else ([], [], [])
    return Result(tuple(names), tuple(types), rows[:max_rows], truncated=len(rows) > max_rows)


def as_error(code: int | None, message: str) -> TemperError:
    """A ClickHouse exception as one of ours."""
    first = message.strip().split("\n", 1)[0]
    if code in TRANSIENT or code is None:
        return Unavailable(f"ClickHouse: {first}")
    hint = "narrow it down, or raise timeout_s or max_rows" if code in LIMITS else None
    return Rejected(f"ClickHouse refuses the query: {first}", field="sql", hint=hint)


def parameter_values(given: Mapping[str, str], types: Mapping[str, str]) -> dict[str, Any]:
    """Texts as the values to bind: arrays are written as JSON, everything else is passed on as text."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        values[name] = _array(name, text) if types[name].startswith("Array(") else text
    return values


def _array(name: str, text: str) -> list[Any]:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, list):
        raise Rejected('an array is written as JSON: ["a","b"]', field=f"parameters.{name}")
    return value
