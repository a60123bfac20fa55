"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from temper.client.sdk import AsyncClient, Client, Target

Output = Literal["table", "json", "yaml"]
OutputOption = Annotated[Output, Parameter(name=["--output", "-o"], help="Form of the data.")]
DataDirOption = Annotated[
    Path, Parameter(name="--data-dir", env_var="TEMPER_DATA_DIR", help="Directory of the embedded platform.")
]
DEFAULT_DATA_DIR = Path(".temper")


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Which platform a command talks to."""

    data_dir: DataDirOption = DEFAULT_DATA_DIR
    endpoint: Annotated[
        tuple[str, ...],
        Parameter(
            name="--endpoint",
            env_var="TEMPER_ENDPOINTS",
            help="Address of a service instead of --data-dir: SERVICE=HOST:PORT, or HOST:PORT for all.",
        ),
    ] = ()
    token_file: Annotated[
        Path | None,
        Parameter(name="--token-file", env_var="TEMPER_TOKEN_FILE", help="File with the bearer token."),
    ] = None
    tls_ca_file: Annotated[
        Path | None, Parameter(name="--tls-ca-file", env_var="TEMPER_TLS_CA_FILE", help="Turns TLS on.")
    ] = None

    def target(self) -> Target:
        """The platform; Unavailable if none runs in the data directory."""
        from temper.client.sdk.target import Target, embedded, parse_endpoints

        if self.endpoint:
            return Target(parse_endpoints(list(self.endpoint)), self.token_file, self.tls_ca_file)
        return embedded(self.data_dir)

    @contextmanager
    def reached(self, *needs: str) -> Iterator[Target]:
        """The platform. If none runs in a directory that one has used, the services in `needs` answer for it."""
        from temper.client.cli.exits import say
        from temper.runtime.errors import Unavailable

        try:
            target = self.target()
        except Unavailable:
            from temper.client.platform.visit import has_data, visited

            if not needs or not has_data(self.data_dir):
                raise
            with visited(self.data_dir, needs, say) as visit:
                yield visit
        else:
            yield target

    @contextmanager
    def client(self, *needs: str) -> Iterator[Client]:
        """A blocking client, closed afterwards; `needs` as in `reached`."""
        from temper.client.sdk import Client

        with self.reached(*needs) as target, Client(target) as client:
            yield client

    def async_client(self) -> AsyncClient:
        """An asyncio client; use it with `async with`."""
        from temper.client.sdk import AsyncClient

        return AsyncClient(self.target())


HERE = Where()
