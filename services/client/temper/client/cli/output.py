"""Data on standard output: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from temper.client.cli.options import Output

_PLAIN = re.compile(
    r"[A-Za-z_/][A-Za-z0-9_./@+-]*( [A-Za-z0-9_./@+-]+)*"
)  # text that YAML reads back as text
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def emit(rows: Sequence[Any], columns: Sequence[str], output: Output) -> None:
    """Print records: `columns` choose and order what a table shows; JSON and YAML have everything."""
    records = [plain(row) for row in rows]
    if output == "table":
        print_table(columns, [[record.get(name) for name in columns] for record in records])
    else:
        write(render(records, output))


def emit_one(record: Any, output: Output) -> None:
    """Print one record: as `key: value` lines, JSON or YAML."""
    write(render(plain(record), "yaml" if output == "table" else output))


def render(value: Any, output: Output) -> str:
    """JSON or YAML text."""
    if output == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    return "\n".join(_yaml(value, 0))


def plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table that is as wide as it needs to be when nobody looks, and as the terminal otherwise."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value, name)) for value, name in zip(row, columns, strict=True)))
    console = Console(file=sys.stdout)
    console.print(table) if console.is_terminal else Console(file=sys.stdout, width=10_000).print(table)


def cell(value: Any, column: str = "") -> str:
    """One value of a table."""
    if value is None:
        return "-"
    if (column.endswith("_at") or column == "time") and isinstance(value, (int, float)):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    return one_line(str(value))


def one_line(text: str) -> str:
    """Text of strangers, such as a file's name, as it can be shown: what would move the cursor is written out."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def write(text: str) -> None:
    """Data."""
    print(text, flush=True)  # noqa: T201 - a command line tool prints its data


def _yaml(value: Any, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(f"{pad}{_scalar(key)}:", item, depth)]
    if isinstance(value, list) and value:
        return [line for item in value for line in _item(pad, item, depth)]
    return [f"{pad}{_scalar(value)}"]


def _entry(head: str, item: Any, depth: int) -> list[str]:
    if isinstance(item, (dict, list)) and item:
        return [head, *_yaml(item, depth + 1)]
    return [f"{head} {_scalar(item)}"]


def _item(pad: str, item: Any, depth: int) -> list[str]:
    first, *rest = _yaml(item, depth + 1)
    return [f"{pad}- {first.lstrip()}", *rest]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
