"""One claim and its pod. Everything inside has one uid, the first process included, which no process inside can end."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from temper.runtime.errors import Unavailable
from temper.sandbox.engine.command import Limits
from temper.sandbox.engine.container import processes
from temper.sandbox.engine.files import Files
from temper.sandbox.engine.kubernetes.api import Api, PodProgram
from temper.sandbox.engine.kubernetes.resources import EXTENSIONS
from temper.sandbox.engine.watch import Meter, ReportedMeter

CLAIMS: Final = "sandboxclaims"
# An exec knows neither rlimits nor variables: a shell sets both and steps aside. Units of 512 bytes: POSIX, ulimit. Whoever has no login
# uid may choose one, and so sign the kernel's audit records as somebody else: it is settled here.
_START: Final = '{ echo "$(id -u)" > /proc/self/loginuid; } 2>/dev/null; cd /work; ulimit -c 0; ulimit -n "$1"; ulimit -f "$2"; shift 2; exec env -i "$@"'
_BLOCK: Final = 512


class PodContainer:
    """See the module."""

    def __init__(
        self,
        api: Api,
        claim: str,
        pod: str,
        limits: Limits,
        python: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._api = api
        self._limits = limits
        self._removed = False
        self.claim = claim
        """Name of its SandboxClaim."""
        self.pod = pod
        """Name of its pod."""
        self.python = python
        self.environment = environment
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the pod runs no more, as far as the cluster has told."""
        self.meter: Meter = ReportedMeter()
        """The cluster tells no counters."""
        self.files: Files | None = None
        """Reached by programs inside only."""
        self.network = -1
        """Its network is on another machine."""

    async def start(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: bool) -> PodProgram:
        """Start a program. Raises Unavailable."""
        if self.died.done():
            raise Unavailable("the pod is gone")
        bounds = [str(self._limits.open_files), str(max(1, self._limits.file_bytes // _BLOCK))]
        variables = [f"{name}={value}" for name, value in env.items()]
        words = ["/bin/sh", "-c", _START, "start", *bounds, *variables, *argv]
        return await self._api.execute(self.pod, words, stdin=stdin)

    async def sweep(self, number: int, spared: frozenset[int] = frozenset()) -> None:
        """Signal every process but the first and `spared` with what is below. Raises Unavailable."""
        await processes.sweep(self, number, spared)

    async def pause(self) -> None:
        """Hold every process still. Raises Unavailable."""
        await self.sweep(int(signal.SIGSTOP))

    async def resume(self) -> None:
        """Let them go on. Raises Unavailable."""
        await self.sweep(int(signal.SIGCONT))

    def lost(self) -> None:
        """The cluster has told that the pod is gone."""
        if not self.died.done():
            self.died.set_result(None)

    async def remove(self) -> None:
        """Delete the claim, and with it the pod. Idempotent. Raises Unavailable."""
        if self._removed:
            return
        self._removed = True
        try:
            path = self._api.path(EXTENSIONS, CLAIMS, self.claim)
            await self._api.ask("DELETE", path, {"propagationPolicy": "Background"})
        finally:
            self.lost()
