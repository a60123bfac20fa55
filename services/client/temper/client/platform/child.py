"""One child process: started under the guard in a session of its own, logged to a file, ended with patience."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_GUARD = str(Path(__file__).with_name("guard.py"))


class Child:
    """A running process. `start` makes one."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process

    @classmethod
    async def start(cls, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> Child:
        """Start `command` (an absolute program and its arguments); output is appended to `log`."""
        guarded = [sys.executable, "-S", "-E", _GUARD, str(os.getpid()), *command]
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *guarded,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,  # a Ctrl-C of the terminal reaches the supervisor alone
            )
        return cls(name, process)

    @property
    def pid(self) -> int:
        """Process id; also its process group."""
        return self.process.pid

    async def wait(self) -> int:
        """Wait for its end, clear away what is left of its group, return its exit status (negative: signal)."""
        status = await self.process.wait()
        self._signal_group(signal.SIGKILL)
        return status

    def terminate(self) -> None:
        """Ask it to drain."""
        with suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self) -> None:
        """End it and its group at once."""
        with suppress(ProcessLookupError):
            self.process.kill()
        self._signal_group(signal.SIGKILL)

    async def stop(self, grace_s: float) -> bool:
        """Drain, then kill after `grace_s` seconds. Whether it ended by itself."""
        self.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
            return False
        return True

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
