"""How `temper sandbox` reaches the sandbox service: over the platform's broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

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

        return SandboxClient(*self.address())

    def address(self) -> tuple[str, Path | None]:
        """The broker's URL and the file with its token. Unavailable if no platform runs in the data directory."""
        from temper.client.sdk.target import broker

        return (self.bus_url, self.bus_token_file) if self.bus_url else broker(self.data_dir)

    def run(self, work: Callable[[SandboxClient], Awaitable[T]]) -> T:
        """Connect, work, disconnect."""
        import asyncio

        async def connected() -> T:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(connected())


HERE = Broker()
