"""nats-server as a child of the supervisor: same port and store at every start, dead when the supervisor is dead."""

from __future__ import annotations

import os
from pathlib import Path

from temper.client.platform.child import Child
from temper.runtime.embedded import NatsServer, binary, write_secret


class Broker(NatsServer):
    """The runtime's server with another way of starting it: under the guard and the keeper."""

    async def launch(self, log: Path) -> Child:
        """Start it and wait until clients can connect. Unavailable if it does not come up."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "nats.conf"
        write_secret(config, self._configuration())
        child = await Child.start("nats-server", [binary(), "-c", str(config)], log=log, env=os.environ)
        self._process = child.process  # readiness watches it
        try:
            await self._wait_ready()
        except BaseException:  # also a Ctrl-C while it starts: nobody else knows of the child yet
            child.kill()
            raise
        return child

    def _log_tail(self) -> str:
        return "see nats-server.log"
