"""Streams, consumers, topics and buckets as data: `proto/topology.toml`, read into frozen values.

Also the one place where subjects are spelled:

    temper.v1.cmd.<service>.<key…>     commands       temper.v1.evt.<service>.<key…>    events
    temper.v1.rpc.<service>.<key…>     requests       temper.v1.dead.<service>.<key…>   dead letters
    temper.v1.log.<topic>.<key>        facts (JetStream backend; topic `temper.<topic>.v1` on Kafka)
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from temper.runtime.errors import Rejected

T = TypeVar("T")

PREFIX = "temper.v1"
CMD, EVT, DEAD, POISON = "CMD", "EVT", "DEAD", "POISON"  # stream names that the bus itself relies on
MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"  # the server's word for "this one is poison"
POISON_AGE_S = 2_592_000.0  # as long as dead letters: an advisory outlives a scheduler that is away
POISON_BYTES = 64 << 20  # an advisory is about 300 bytes
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")


def cmd(service: str, *key: str) -> str:
    """Subject of a command for `service`."""
    return _subject("cmd", service, key)


def rpc(service: str, *key: str) -> str:
    """Subject of a request to `service`."""
    return _subject("rpc", service, key)


def evt(service: str, *key: str) -> str:
    """Subject of an event of `service`."""
    return _subject("evt", service, key)


def dead(service: str, *key: str) -> str:
    """Subject of a dead letter of `service`."""
    return _subject("dead", service, key)


def log(topic: str, key: str) -> str:
    """Subject of a fact of `topic` about `key`."""
    return _subject("log", topic, (key,))


def log_stream(topic: str) -> str:
    """Name of the stream that holds `topic`."""
    return f"LOG_{token(topic).upper().replace('-', '_')}"


def kafka_topic(topic: str) -> str:
    """Name of `topic` on Kafka."""
    return f"temper.{token(topic)}.v1"


def token(text: str) -> str:
    """`text` if it may stand between two dots of a subject; Rejected otherwise."""
    if not _TOKEN.fullmatch(text):
        raise Rejected(
            f"{text!r} cannot be part of a subject", field="key", hint="letters, digits, '_' and '-' only"
        )
    return text


def _subject(kind: str, service: str, key: tuple[str, ...]) -> str:
    return ".".join((PREFIX, kind, token(service), *map(token, key)))


@dataclass(frozen=True, slots=True)
class Stream:
    """A JetStream stream. Example: `Stream("EVT", ("temper.v1.evt.>",), max_age_s=86400)`."""

    name: str
    """Name on the server."""
    subjects: tuple[str, ...]
    """What it captures."""
    retention: Literal["limits", "workqueue"] = "limits"
    """`workqueue`: a message leaves when it is acked."""
    discard: Literal["old", "new"] = "old"
    """At a limit: forget the oldest, or refuse the newest (back-pressure)."""
    max_age_s: float = 0.0
    """0: for ever."""
    max_messages: int = -1
    """-1: no limit."""
    max_bytes: int = -1
    """-1: no limit."""
    duplicate_window_s: float = 120.0
    """How long an id is remembered."""
    storage: Literal["file", "memory"] = "file"
    """`memory`: gone when the server restarts."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """How the commands of one service are handed out. Example: `Consumer("trainer", ack_wait_s=5.0)`."""

    service: str
    """Service whose commands they are; also the consumer's name on the server."""
    stream: str = CMD
    """Stream that holds the commands."""
    filter: str = ""
    """Subjects it takes; empty: `temper.v1.cmd.<service>.>`."""
    ack_wait_s: float = 5.0
    """Silence after which a command is handed out again."""
    max_deliver: int = 3
    """Deliveries after which it counts as poison."""
    max_ack_pending: int = 1000
    """Most commands in all workers' hands together."""

    @property
    def subjects(self) -> str:
        """The filter, spelled out."""
        return self.filter or f"{PREFIX}.cmd.{token(self.service)}.>"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the event log. Example: `Topic("trajectories", retention_s=604800)`."""

    name: str
    """Without prefix."""
    message: str = ""
    """Full protobuf name of its records."""
    key: str = ""
    """Field of the record that is its key."""
    retention_s: float = 0.0
    """0: for ever."""
    partitions: int = 8
    """Partitions on Kafka."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits of a topic's stream on JetStream."""

    max_bytes: int = -1
    """-1: no limit."""
    duplicate_window_s: float = 120.0
    """How long an id is remembered."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A key-value bucket. Example: `Bucket("presence", ttl_s=10)`."""

    name: str
    """Name, as in `bus.kv(name)`."""
    ttl_s: float = 0.0
    """Age at which a value is forgotten; 0: never."""
    max_value_bytes: int = -1
    """-1: the server's message limit."""
    history: int = 1
    """Values kept per key."""


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """Bounds of request and reply."""

    default_timeout_s: float = 10.0
    """For a caller without an opinion."""
    max_timeout_s: float = 300.0
    """Longer waits are refused."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that `apply` creates."""

    streams: tuple[Stream, ...]
    consumers: tuple[Consumer, ...]
    topics: tuple[Topic, ...]
    buckets: tuple[Bucket, ...]
    log: LogLimits = LogLimits()
    rpc: RpcLimits = RpcLimits()
    max_payload_bytes: int = 1 << 20
    """Largest message on the bus."""
    claim_check_bytes: int = 256 << 10
    """Above it, a payload travels through object storage."""

    def consumer(self, service: str) -> Consumer:
        """The service's entry, or the defaults."""
        return next((each for each in self.consumers if each.service == service), Consumer(service))

    def topic(self, name: str) -> Topic:
        """The topic's entry; Rejected if there is none."""
        return _named(self.topics, "topic", name)

    def bucket(self, name: str) -> Bucket:
        """The bucket's entry; Rejected if there is none."""
        return _named(self.buckets, "bucket", name)

    def stream(self, name: str) -> Stream:
        """The stream's entry; Rejected if there is none."""
        return _named(self.all_streams(), "stream", name)

    def all_streams(self) -> tuple[Stream, ...]:
        """The streams, one for the poison advisories of the command stream, and one for each topic of the log."""
        advisories = (f"{MAX_DELIVERIES}.{CMD}.*",)
        poison = Stream(POISON, advisories, "workqueue", max_age_s=POISON_AGE_S, max_bytes=POISON_BYTES)
        return (*self.streams, poison, *map(self._log_stream, self.topics))

    def _log_stream(self, topic: Topic) -> Stream:
        return Stream(
            log_stream(topic.name),
            (f"{PREFIX}.log.{topic.name}.>",),
            max_age_s=topic.retention_s,
            max_bytes=self.log.max_bytes,
            duplicate_window_s=self.log.duplicate_window_s,
        )


class Administered(Protocol):
    """A bus whose server can be told what to hold."""

    async def apply_topology(self, topology: Topology) -> list[str]: ...
    async def diff_topology(self, topology: Topology) -> list[str]: ...


async def apply(bus: Administered, topology: Topology | None = None) -> list[str]:
    """Create or change what differs; returns one line per change."""
    return await bus.apply_topology(topology or load())


async def diff(bus: Administered, topology: Topology | None = None) -> list[str]:
    """One line per difference between the file and the server; empty when they agree."""
    return await bus.diff_topology(topology or load())


@cache
def load() -> Topology:
    """The topology that ships with the package."""
    packaged = resources.files("temper.runtime") / "topology.toml"
    if packaged.is_file():
        return parse(packaged.read_text())
    checkout = Path(__file__).parents[4] / "proto" / "topology.toml"  # an editable install has no copy
    return parse(checkout.read_text())


def parse(text: str) -> Topology:
    """Read TOML; Rejected names the table and key at fault."""
    raw = tomllib.loads(text)
    if raw.get("version", 1) != 1 or raw.get("prefix", PREFIX) != PREFIX:
        raise Rejected(f"only version 1 with prefix {PREFIX!r} is understood", field="version")
    defaults = Topology((), (), (), ())
    return Topology(
        streams=_tables(Stream, "name", raw, "streams"),
        consumers=_tables(Consumer, "service", raw, "consumers"),
        topics=_tables(Topic, "name", raw, "topics"),
        buckets=_tables(Bucket, "name", raw, "buckets"),
        log=_record(LogLimits, raw.get("log", {}).get("jetstream", {}), "log.jetstream"),
        rpc=_record(RpcLimits, raw.get("rpc", {}), "rpc"),
        max_payload_bytes=raw.get("max_payload_bytes", defaults.max_payload_bytes),
        claim_check_bytes=raw.get("claim_check_bytes", defaults.claim_check_bytes),
    )


def _tables(kind: type[T], name_key: str, raw: Mapping[str, Any], section: str) -> tuple[T, ...]:
    tables: Mapping[str, Any] = raw.get(section, {})
    return tuple(
        _record(kind, {name_key: name, **table}, f"{section}.{name}") for name, table in tables.items()
    )


def _record(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # T is one of the dataclasses above
    for key in table:
        if key not in known:
            raise Rejected("unknown key", field=f"{where}.{key}", hint=f"known: {', '.join(sorted(known))}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def _named(entries: tuple[T, ...], what: str, name: str) -> T:
    for entry in entries:
        if getattr(entry, "name", None) == name:
            return entry
    known = ", ".join(str(getattr(entry, "name", "")) for entry in entries)
    raise Rejected(f"no {what} named {name!r} in topology.toml", field=what, hint=f"known: {known}")
