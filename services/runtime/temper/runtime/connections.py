"""From a URL in the configuration to an open bus and event log. Vendors are imported here, when they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock
from temper.runtime.config import BusConfig, LogConfig, read_secret
from temper.runtime.errors import Rejected, Unavailable
from temper.runtime.log.base import EventLog
from temper.runtime.telemetry import get_logger, redact_text

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_FIRST_WORD_S, _NEXT_WORD_S = 0.3, 5.0


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
        return JetStreamLog(bus)
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
    shown = redact_text(url)
    telling = asyncio.create_task(_tell(what, shown, clock))
    attempts = _Attempts(connect, clock)
    try:
        async with clock.timeout(patience_s):
            await attempts.run()
    except TimeoutError:
        raise Unavailable(
            f"{what} at {shown} did not answer within {patience_s:g} s{attempts.last}",
            hint="start it, or correct its url in the configuration",
        ) from None
    finally:
        telling.cancel()


class _Attempts:
    """Tries again with growing pauses; remembers what the last attempt ran into."""

    def __init__(self, connect: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self._connect, self._clock = connect, clock
        self.last = ""

    async def run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await self._connect()
            except Unavailable as error:
                self.last = f": {redact_text(error.message)}"
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


async def _tell(what: str, url: str, clock: Clock) -> None:
    """Say what is waited for: soon, because a person may be watching, then now and then."""
    await clock.sleep(_FIRST_WORD_S)
    while True:
        get_logger().warning("service.waiting", what=what, url=url)
        await clock.sleep(_NEXT_WORD_S)
