"""What the embedded platform starts: each service with its settings, and what must be installed for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from temper.client.jobfile.problems import nearest
from temper.client.platform.layout import DataDir
from temper.runtime.errors import Rejected, Unavailable

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the platform. Example: `Service("qa", modules=("reasoning_gym",), serves_api=True)`."""

    name: str
    """Name; its module is `temper.<name>`, its extra `temper-rl[<name>]`."""
    stop_wave: int
    """Those with a lower number are stopped earlier."""
    modules: tuple[str, ...] = ()
    """Modules of its extra: their absence is told before anything starts."""
    serves_api: bool = False
    """Whether clients call it."""


SERVICES: tuple[Service, ...] = (
    Service("scheduler", 0, serves_api=True),
    Service("rollout", 0, modules=("torch", "tokenizers", "safetensors")),
    Service("trainer", 0, modules=("torch", "safetensors")),
    Service("qa", 1, modules=("reasoning_gym", "jsonschema"), serves_api=True),
    Service("sandbox", 1, modules=("jsonschema",)),
    Service("telemetry", 2, modules=("chdb", "clickhouse_connect", "pyarrow"), serves_api=True),
)
NAMES: tuple[str, ...] = tuple(service.name for service in SERVICES)


def selected(without: tuple[str, ...]) -> tuple[Service, ...]:
    """All services but those named. Rejected for an unknown name."""
    for name in without:
        if name not in NAMES:
            raise Rejected(
                f"there is no service {name!r}", field="without", hint=f"known: {', '.join(NAMES)}"
            )
    return tuple(service for service in SERVICES if service.name not in without)


def require_installed(services: tuple[Service, ...]) -> None:
    """Unavailable, with the command that helps, when something is not installed."""
    absent = {service.name: missing(service) for service in services}
    extras = sorted(name for name, modules in absent.items() if modules)
    if not extras:
        return
    modules = sorted({module for name in extras for module in absent[name]})
    wanted = "all" if len(extras) > 2 else ",".join(extras)
    raise Unavailable(
        f"{', '.join(extras)} cannot run: {', '.join(modules)} not installed",
        field="extras",
        hint=f"pip install 'temper-rl[{wanted}]'",
    )


def require_overrides(overrides: Sequence[str]) -> None:
    """Rejected for an override that no service would read."""
    for override in overrides:
        name, dot, assignment = override.partition(".")
        if name.partition("=")[0] not in NAMES:
            hint = nearest(name.partition("=")[0], NAMES)
            raise Rejected(f"{override!r} names no service", field="--service-set", hint=hint)
        if not dot or not assignment.partition("=")[0] or "=" not in assignment:
            hint = "for example trainer.logging.level=debug"
            raise Rejected(f"{override!r} is not SERVICE.KEY=VALUE", field="--service-set", hint=hint)


def missing(service: Service) -> list[str]:
    """Modules of a service that are not installed."""
    return [module for module in (f"temper.{service.name}", *service.modules) if find_spec(module) is None]


def settings(service: str, layout: DataDir, *, broker_url: str, broker_token: str, port: int) -> Settings:
    """Configuration of one service; everything else keeps the service's own defaults."""
    common: Settings = {
        "bus": {"url": broker_url, "token_file": broker_token},
        "log": {"url": "nats:"},
        "blobs": {"url": layout.objects.as_uri()},
        "grpc": {"host": "127.0.0.1", "port": port, "token_file": str(layout.token_file)},
        "metrics": {"host": "127.0.0.1", "port": 0},
        "drain_timeout_s": 5.0,
    }
    return merged(common, _own(layout).get(service, {}))


def _own(layout: DataDir) -> dict[str, Settings]:
    """Settings that only one service has."""
    return {
        # One scheduler on one machine: nothing to be confused by but its own death, so it is noticed sooner.
        "scheduler": {"jobs": {"lease_ttl_s": 3.0}},
        "sandbox": {"state_dir": str(layout.private("sandbox"))},
        "telemetry": {"clickhouse": {"path": str(layout.private("telemetry"))}},
    }


def merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> Settings:
    """`extra` on top of `base`, table by table."""
    result = dict(base)
    for key, value in extra.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result


def to_toml(values: Mapping[str, Any]) -> str:
    """Nested tables of scalars as TOML: JSON's scalars are TOML's."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for name, table in values.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"
