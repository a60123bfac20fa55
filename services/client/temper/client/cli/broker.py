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
        import tomllib

        from temper.client.sdk.target import embedded
        from temper.runtime.errors import Unavailable

        if self.bus_url:
            return self.bus_url, self.bus_token_file
        embedded(self.data_dir)
        try:
            settings = tomllib.loads((self.data_dir / "run" / "sandbox.toml").read_text())
        except FileNotFoundError:
            raise Unavailable(f"the platform in {self.data_dir} runs no sandbox service") from None
        return settings["bus"]["url"], Path(settings["bus"]["token_file"])

    def run(self, work: Callable[[SandboxClient], Awaitable[T]]) -> T:
        """Connect, work, disconnect."""
        import asyncio

        async def connected() -> T:
            async with self.client() as client:
                return await work(client)

        return asyncio.run(connected())


HERE = Broker()
