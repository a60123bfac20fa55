"""`proto/clickhouse/`: statements that make tables and views, and the saved queries."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from temper.runtime.errors import NotFound, Rejected

_STATEMENT_END = re.compile(r";[ \t]*(?:\n|$)")
_HEADER = re.compile(r"^-- (name|description|parameters):[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """A named query. Example: `SavedQuery("staleness", "How many …", "SELECT …", {"job": "String"})`."""

    name: str
    """Name, as in `temper query --saved NAME`."""
    description: str
    """What it answers."""
    sql: str
    """Text without its header."""
    parameters: dict[str, str]
    """Parameter names with their ClickHouse types."""


@cache
def folder() -> Path:
    """Where the files are: package data in a wheel, `proto/clickhouse` in a checkout."""
    packaged = Path(str(resources.files("temper.telemetry") / "clickhouse"))
    return packaged if packaged.is_dir() else Path(__file__).parents[4] / "proto" / "clickhouse"


def statements() -> list[str]:
    """Everything to execute at start, tables before views; each may be repeated."""
    text = "\n".join((folder() / file).read_text() for file in ("tables.sql", "views.sql"))
    uncommented = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    return [each.strip() for each in _STATEMENT_END.split(uncommented) if each.strip()]


@cache
def saved_queries() -> dict[str, SavedQuery]:
    """All saved queries by name, sorted."""
    return {query.name: query for query in map(_parse, sorted((folder() / "saved").glob("*.sql")))}


def saved_query(name: str) -> SavedQuery:
    """One of them; NotFound if there is none of that name."""
    found = saved_queries().get(name)
    if found is None:
        raise NotFound(
            f"no saved query is named {name!r}", field="saved", hint=f"known: {', '.join(saved_queries())}"
        )
    return found


def _parse(path: Path) -> SavedQuery:
    text = path.read_text()
    header = dict(_HEADER.findall(text))
    if header.get("name") != path.stem or not header.get("description"):
        raise Rejected("needs a header with `-- name:` (as the file) and `-- description:`", field=path.name)
    declared = [each.strip() for each in header.get("parameters", "").split(",") if each.strip()]
    parameters = {name.strip(): kind.strip() for name, _, kind in (each.partition(":") for each in declared)}
    return SavedQuery(path.stem, header["description"], _HEADER.sub("", text).strip(), parameters)
