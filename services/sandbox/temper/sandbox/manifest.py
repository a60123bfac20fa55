"""`env.toml` as far as a sandbox host needs it: entry, tools, limits, reward range. The registry checks the rest."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from temper.api.sandbox.v1 import egress_pb2
from temper.runtime.errors import Rejected
from temper.sandbox import tools
from temper.sandbox.engine.base import Limits

_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LIMIT_KEYS = {
    "tool_wall_s": "wall_s",
    "tool_cpu_s": "cpu_s",
    "tool_memory_bytes": "memory_bytes",
    "tool_pids": "pids",
    "tool_output_bytes": "output_bytes",
    "tool_disk_bytes": "disk_bytes",
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an environment declares. Example: `Manifest("calc", "1.0.0", "env.py", (PYTHON,), 0.0, 1.0)`."""

    name: str
    """Name."""
    version: str
    """Semantic version."""
    entry: str
    """Python file that defines `Environment`, relative to the bundle."""
    tools: tuple[tools.Tool, ...]
    """Offered in every episode."""
    reward_min: float
    """Lowest reward, inclusive."""
    reward_max: float
    """Highest reward, inclusive: a solved task."""
    reward_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Weight of each part of the reward, by name; empty for rewards of one piece."""
    setup_s: float = 60.0
    """Seconds to load the environment."""
    task_s: float = 10.0
    """Seconds to make one task, or its oracle's actions."""
    verify_s: float = 10.0
    """Seconds to score one answer."""
    tool_limits: Mapping[str, float] | None = None
    """Fields of `Limits` that it sets for tool calls."""
    requires: tuple[str, ...] = ()
    """Packages that must be importable on the host."""
    trusted: bool = False
    """Whether it may run in a sandbox of weak isolation."""
    verifier: str = "answer"
    """"answer", or "tests" and "state": the final state is judged by a command in a fresh sandbox."""
    approve: tuple[str, ...] = ()
    """Patterns of tools whose calls need a person's word."""
    egress: egress_pb2.EgressPolicy = field(default_factory=egress_pb2.EgressPolicy)
    """What its sandboxes may reach."""

    def limits(self, default: Limits) -> Limits:
        """`default` with this environment's own numbers."""
        whole = {"memory_bytes", "pids", "output_bytes", "disk_bytes"}
        own: dict[str, Any] = {
            key: int(value) if key in whole else float(value)
            for key, value in (self.tool_limits or {}).items()
        }
        return replace(default, **own)


def read(path: Path) -> Manifest:
    """Parse a manifest. Raises Rejected with the key's path."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Rejected("the bundle has no env.toml", field="env.bundle") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"env.toml is not TOML: {error}", field="env.bundle") from None
    limits = _table(table, "limits")
    low, high = (_number(_table(table, "reward"), "reward", key) for key in ("min", "max"))
    if not low < high:
        raise Rejected(f"needs min < max, got {low} and {high}", field="env.toml: reward")
    return Manifest(
        name=_text(table, "name"),
        version=_text(table, "version"),
        entry=_entry(_table(table, "runtime").get("entry", "env.py")),
        tools=tuple(_tool(each, index) for index, each in enumerate(table.get("tools", []))),
        reward_min=low,
        reward_max=high,
        reward_weights=_weights(_table(_table(table, "reward"), "components")),
        **{key: _number(limits, "limits", key) for key in ("setup_s", "task_s", "verify_s") if key in limits},
        tool_limits={
            ours: _number(limits, "limits", theirs)
            for theirs, ours in _LIMIT_KEYS.items()
            if theirs in limits
        },
        requires=_requires(_table(table, "runtime").get("requires", [])),
        trusted=bool(_table(table, "runtime").get("trusted", False)),
        verifier=str(_table(table, "verifier").get("kind", "answer")),
        approve=_texts(_table(table, "approval").get("tools", []), "approval.tools"),
        egress=_egress(_table(table, "network")),
    )


def _weights(table: Mapping[str, Any]) -> Mapping[str, float]:
    found = {name: _number(table, "reward.components", name) for name in table}
    if not all(weight > 0 for weight in found.values()):
        raise Rejected("weights are above 0", field="env.toml: reward.components")
    return found


def _tool(entry: Any, index: int) -> tools.Tool:
    where = f"env.toml: tools[{index}]"
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise Rejected("needs a name", field=where)
    try:
        kind = tools.Kind(entry.get("kind", entry["name"]))
    except ValueError:
        kinds = ", ".join(tools.Kind)
        raise Rejected(f"unknown kind {entry.get('kind')!r}", field=where, hint=kinds) from None
    default = tools.STANDARD[kind]
    return tools.Tool(
        entry["name"],
        kind,
        entry.get("description", default.description),
        entry.get("parameters", default.parameters),
        str(entry.get("degrade", "")),
    )


def _egress(network: Mapping[str, Any]) -> egress_pb2.EgressPolicy:
    """`mode`, and `hosts` as names or tables of host, ports, secret, approve. The host checks it when it is used."""
    hosts = network.get("hosts", [])
    if not isinstance(hosts, list):
        raise Rejected("must be a list", field="env.toml: network.hosts")
    rules: list[Any] = [
        {"host": each} if isinstance(each, str) else each for each in cast("list[Any]", hosts)
    ]
    try:
        return egress_pb2.EgressPolicy(
            mode=network.get("mode", "none"), rules=[egress_pb2.EgressRule(**each) for each in rules]
        )
    except (TypeError, ValueError) as error:
        raise Rejected(str(error), field="env.toml: network", hint="host, ports, secret, approve") from None


def _texts(value: object, where: str) -> tuple[str, ...]:
    names = cast("list[Any]", value) if isinstance(value, list) else [value]
    found = tuple(name for name in names if isinstance(name, str))
    if len(found) < len(names):
        raise Rejected("must be a list of texts", field=f"env.toml: {where}")
    return found


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise Rejected("must be a table", field=f"env.toml: {key}")
    return value


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise Rejected("must be a non-empty string", field=f"env.toml: {key}")
    return value


def _number(table: Mapping[str, Any], section: str, key: str) -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected("must be a number", field=f"env.toml: {section}.{key}")
    return float(value)


def _requires(value: object) -> tuple[str, ...]:
    names = cast("list[Any]", value) if isinstance(value, list) else [value]
    found = tuple(name for name in names if isinstance(name, str) and _MODULE.fullmatch(name))
    if len(found) < len(names):
        raise Rejected("must be a list of names to import", field="env.toml: runtime.requires")
    return found


def _entry(value: object) -> str:
    if not isinstance(value, str) or "/" in value or not value.endswith(".py"):
        raise Rejected("must be a Python file at the top of the bundle", field="env.toml: runtime.entry")
    return value
