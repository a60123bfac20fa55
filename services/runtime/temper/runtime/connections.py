"""From a URL in the configuration to an open bus and event log. Vendors are imported here, when they are asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.config import BusConfig, LogConfig, read_secret
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.log.base import EventLog
from temper.runtime.telemetry import get_logger, redact_text

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0


def open_bus(config: BusConfig, *, source: str) -> Bus:
    """A bus that is not connected yet; `source` (`service/instance`) is stamped on what it sends."""
    if not config.url.startswith(("nats://", "tls://")):
        raise Rejected(
            f"{config.url!r} is not the address of a broker", field="bus.url", hint="nats://host:port"
        )
    from temper.runtime.bus.nats import Credentials, NatsBus

    credentials = Credentials(
        token=read_secret(config.token_file, field="bus.token_file"),
        creds_file=config.creds_file,
        ca_file=config.tls_ca_file,
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
    )
    return NatsBus(config.url, name=source, credentials=credentials)


def open_log(config: LogConfig, bus: Bus) -> EventLog:
    """An event log that is not connected yet; `nats:` shares the connection of `bus`."""
    if config.url == "nats:":
        from temper.runtime.bus.nats import NatsBus
        from temper.runtime.log.jetstream import JetStreamLog

        if not isinstance(bus, NatsBus):
            raise Rejected("nats: needs a NATS bus", field="log.url")
        return JetStreamLog(bus.js, source=bus.source)
    if config.url.startswith("kafka://"):
        if find_spec("kafka") is None:
            raise Rejected(
                "the Kafka client is not installed", field="log.url", hint="pip install 'temper-rl[kafka]'"
            )
        from temper.runtime.log.kafka import KafkaLog

        return KafkaLog(config.url)
    raise Rejected(f"{config.url!r} is not an event log", field="log.url", hint="nats: or kafka://host:port")


async def patiently(
    connect: Callable[[], Awaitable[None]], what: str, url: str, patience_s: float, clock: Clock
) -> None:
    """Call `connect` until it works, saying what is waited for; Unavailable after `patience_s` seconds."""
    give_up = clock.monotonic() + patience_s
    wait_s = _FIRST_WAIT_S
    shown = redact_text(url)
    while True:
        try:
            return await connect()
        except Unavailable as error:
            left = give_up - clock.monotonic()
            if left <= 0:
                raise Unavailable(
                    f"{what} at {shown} did not answer within {patience_s:g} s: {error.message}",
                    hint="start it, or correct its url in the configuration",
                ) from None
            get_logger().warning("service.waiting", what=what, url=shown, seconds_left=round(left, 1))
            await clock.sleep(min(wait_s, left))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
