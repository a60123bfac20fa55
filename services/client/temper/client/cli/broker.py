"""How `temper sandbox` reaches the sandbox service: over the platform's broker."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from temper.client.cli.exits import TERMINATED, say
from temper.client.cli.options import DEFAULT_DATA_DIR, DataDirOption

if TYPE_CHECKING:
    from temper.client.sdk.sandbox import SandboxClient

T = TypeVar("T")

SandboxArgument = Annotated[str, Parameter(help="HOST/NAME, as `temper sandbox create` printed it.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Broker:
    """Which platform's broker a command talks to."""

    data_dir: DataDirOption = DEFAULT_DATA_DIR
    bus_url: Annotated[
        str, Parameter(name="--bus-url", env_var="TEMPER_BUS_URL", help="Broker instead of --data-dir.")
    ] = ""
    bus_token_file: Annotated[
        Path | None,
        Parameter(
            name="--bus-token-file", env_var="TEMPER_BUS_TOKEN_FILE", help="File with the broker's token."
        ),
    ] = None

    def client(self) -> SandboxClient:
        """A client, not connected yet. Unavailable if no platform runs in the data directory."""
        from temper.client.sdk.sandbox import SandboxClient

        return SandboxClient(*self.address(), on_wait=say)

    def address(self) -> tuple[str, Path | None]:
        """The broker's URL and the file with its token. Unavailable if no platform runs in the data directory."""
        from temper.client.sdk.target import broker

        return (self.bus_url, self.bus_token_file) if self.bus_url else broker(self.data_dir)

    def run(self, work: Callable[[SandboxClient], Awaitable[T]]) -> T:
        """Connect, work, disconnect; TERM ends it as Ctrl-C does. Rejected for a text that cannot go over the wire."""
        import asyncio
        import signal

        from temper.runtime.errors import Rejected

        async def connected() -> T:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            async with self.client() as client:
                return await work(client)

        try:
            with _quiet():
                return asyncio.run(connected())
        except asyncio.CancelledError:
            raise SystemExit(TERMINATED) from None
        except UnicodeEncodeError as error:
            hint = "put takes such names within a directory; inside, a program can rename them"
            raise Rejected(f"{error.object!r} is not UTF-8", field="argument", hint=hint) from None


HERE = Broker()


@contextmanager
def _quiet() -> Iterator[None]:
    """What the bus has to say about its connection is no data: it must not come out where data does."""
    import logging

    import structlog

    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
