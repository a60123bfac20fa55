"""Configuration of a service: one frozen model, four places a value may come from, and no silent defaults.

    packaged <service>.toml  <  --config FILE  <  TEMPER_<SERVICE>__SECTION__KEY  <  --set section.key=value

A later place wins key by key. An unknown key, a wrong type or an impossible value is `Rejected` with the path of the
key, the place it came from and, for a misspelt name, the nearest valid one. Secrets are never values: they are files
(`token_file`), so that neither argv, nor `explain()`, nor a report can show one.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from temper.runtime.complaints import dotted, nearest, rejection
from temper.runtime.errors import Rejected, Unavailable

__all__ = [
    "BlobsConfig",
    "BusConfig",
    "GrpcConfig",
    "LogConfig",
    "LoggingConfig",
    "MetricsConfig",
    "Section",
    "ServiceConfig",
    "Setting",
    "dotted",
    "known_secrets",
    "leaves",
    "load",
    "nearest",
    "read_secret",
    "rejection",
]

Tree = dict[str, Any]
DEFAULT = "default"  # source of a value that no place mentions
_secrets: set[str] = set()


class Section(BaseModel):
    """A table of a configuration file: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True
    )


class BusConfig(Section):
    """The broker that carries commands, requests, events and last values."""

    url: str = "nats://127.0.0.1:4222"
    """Address of the NATS server; several, separated by commas, for a cluster."""
    token_file: Path | None = None
    """File that holds the broker's token."""
    creds_file: Path | None = None
    """NATS credentials (JWT and seed), instead of a token."""
    tls_ca_file: Path | None = None
    """Certificate authority; its presence turns TLS on."""
    tls_cert_file: Path | None = None
    """Client certificate for mutual TLS."""
    tls_key_file: Path | None = None
    """Key of the client certificate."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds to wait, with a message, for a broker that is down at start."""


class LogConfig(Section):
    """The event log."""

    url: str = "nats:"
    """`nats:` (the bus's own server) or `kafka://host:port`."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds to wait for it at start."""


class BlobsConfig(Section):
    """Object storage."""

    url: str = "file:///var/lib/temper/objects"
    """`file:///directory` or `s3://bucket/prefix`."""
    endpoint: str | None = None
    """Address of an S3-compatible store; none for the vendor's own."""
    region: str = "us-east-1"
    """Region that S3 requests are signed for."""
    access_key_file: Path | None = None
    """File that holds the access key id; none for the environment's credentials."""
    secret_key_file: Path | None = None
    """File that holds the secret access key."""
    allow_http: bool = False
    """Whether an endpoint without TLS may be used."""


class GrpcConfig(Section):
    """The service's gRPC server: API where it has one, health and reflection always."""

    host: str = "127.0.0.1"
    """Interface to listen on."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Port; 0 takes a free one; none for no server at all."""
    token_file: Path | None = None
    """File that holds the bearer token every call but health must carry; none for an open server."""
    tls_cert_file: Path | None = None
    """Certificate; its presence turns TLS on."""
    tls_key_file: Path | None = None
    """Key of the certificate."""
    max_message_bytes: int = Field(default=16 << 20, ge=1 << 10)
    """Largest message taken or sent."""
    unary_timeout_s: float = Field(default=60.0, gt=0)
    """Deadline of a unary call whose caller set none, and the most a caller may ask for."""

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> GrpcConfig:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self


class MetricsConfig(Section):
    """The HTTP server of `/metrics`, `/healthz` and `/readyz`."""

    host: str = "127.0.0.1"
    """Interface to listen on."""
    port: int | None = Field(default=0, ge=0, le=65535)
    """Port; 0 takes a free one (presence names it); none for no server."""


class LoggingConfig(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity written."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: console on a terminal, JSON lines elsewhere."""


class ServiceConfig(Section):
    """What every service has. A service subclasses it and adds its own sections."""

    bus: BusConfig = BusConfig()
    """The broker."""
    log: LogConfig = LogConfig()
    """The event log."""
    blobs: BlobsConfig = BlobsConfig()
    """Object storage."""
    grpc: GrpcConfig = GrpcConfig()
    """The gRPC server."""
    metrics: MetricsConfig = MetricsConfig()
    """The metrics server."""
    logging: LoggingConfig = LoggingConfig()
    """Logs."""
    drain_timeout_s: float = Field(default=20.0, gt=0)
    """Seconds that work in flight gets after SIGTERM before it is cancelled."""

    _sources: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    def explain(self) -> list[Setting]:
        """Every value with the place it came from, in the order of the model."""
        return [Setting(key, value, self._sources.get(key, DEFAULT)) for key, value in leaves(self)]


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of `explain()`. Example: `Setting("bus.url", "nats://127.0.0.1:4222", "environment")`."""

    key: str
    """Dotted path."""
    value: object
    """Value in effect."""
    source: str
    """`default`, a file's name, the variable's name, or `--set`."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One place of values. Example: `Layer("--set", {"bus": {"url": "nats://h:4222"}})`."""

    source: str
    """How `explain()` and errors name it."""
    values: Tree
    """Nested tables."""


C = TypeVar("C", bound=ServiceConfig)


def load(
    service: str,
    config_type: type[C],
    *,
    file: Path | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> C:
    """Merge the four places and validate; raises Rejected with the key's path for anything wrong."""
    layers = [_file_layer(packaged) for packaged in _packaged(service)]
    if file is not None:
        layers.append(_file_layer(file))
    layers.extend(_environment_layers(service, os.environ if environ is None else environ))
    layers.extend(_set_layer(each) for each in sets)
    values: Tree = {}
    sources: dict[str, str] = {}
    for layer in layers:
        _merge(values, layer.values, layer.source, sources, "")
    try:
        config = config_type.model_validate(values)
    except ValidationError as error:
        raise rejection(error, config_type, sources=sources) from None
    config._sources.update(sources)  # noqa: SLF001 - the loader is the only writer
    return config


def leaves(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted path and value of every field that is not itself a table."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        path = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def read_secret(path: Path | None, *, field: str) -> str | None:
    """The secret in `path` without surrounding white space; None for no path. Logs redact it from then on.

    Raises Rejected if the file is absent or empty.
    """
    if path is None:
        return None
    try:
        secret = path.read_text().strip()
    except FileNotFoundError:
        raise Rejected(f"no such file: {path}", field=field, hint="create it, mode 0600") from None
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}", field=field) from None
    if not secret:
        raise Rejected(f"{path} is empty", field=field, hint="write the secret into it, mode 0600")
    _secrets.add(secret)
    return secret


def known_secrets() -> Iterable[str]:
    """Every secret read so far in this process; for redaction only."""
    return _secrets


def _packaged(service: str) -> Iterator[Path]:
    """The service's own defaults: package data in a wheel, beside the package folder in a checkout."""
    package = f"temper.{service}"
    if find_spec(package) is None:
        return
    inside = Path(str(resources.files(package)))
    for candidate in (inside / f"{service}.toml", inside.parents[1] / f"{service}.toml"):
        if candidate.is_file():
            yield candidate
            return


def _file_layer(path: Path) -> Layer:
    try:
        return Layer(path.name, tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise Rejected(f"no such file: {path}", field="--config") from None
    except OSError as error:
        raise Rejected(f"cannot read {path}: {error.strerror}", field="--config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"{path} is not TOML: {error}", field="--config") from None


def _environment_layers(service: str, environ: Mapping[str, str]) -> Iterator[Layer]:
    prefix = f"TEMPER_{service.upper()}__"
    for name in sorted(environ):
        if name.startswith(prefix):
            path = name.removeprefix(prefix).lower().split("__")
            yield Layer(name, _nested(path, _value(environ[name], name)))


def _set_layer(assignment: str) -> Layer:
    key, sign, text = assignment.partition("=")
    if not sign or not key.strip():
        raise Rejected(
            f"{assignment!r} is not an assignment", field="--set", hint="write --set section.key=value"
        )
    return Layer("--set", _nested(key.strip().split("."), _value(text.strip(), key)))


def _value(text: str, where: str) -> object:
    """Lists, tables and quoted strings are TOML; anything else is left to the field's own type."""
    if not text.startswith(("[", "{", '"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise Rejected(f"{text!r} is not a TOML value: {error}", field=where) from None


def _nested(path: Sequence[str], value: object) -> Tree:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _merge(into: Tree, values: Mapping[str, Any], source: str, sources: dict[str, str], prefix: str) -> None:
    for key, value in values.items():
        path = f"{prefix}{key}"
        present = into.get(key)
        if isinstance(value, Mapping) and (present is None or isinstance(present, dict)):
            table: Tree = into.setdefault(key, {})
            _merge(table, value, source, sources, f"{path}.")
        else:
            into[key] = value
            sources[path] = source
