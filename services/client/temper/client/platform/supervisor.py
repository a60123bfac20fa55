"""The platform on one machine: start in order, keep alive, stop in order, leave nothing behind.

lock -> extras -> ports -> broker -> services (all at once) -> health -> platform.json
stop: rollout, trainer, scheduler -> sandbox, qa -> telemetry (it has read everything by then) -> broker
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from temper.client.platform.broker import Broker
from temper.client.platform.child import Child
from temper.client.platform.keeper import Keeper
from temper.client.platform.layout import DataDir
from temper.client.platform.lock import DirectoryLock
from temper.client.platform.ready import choose_ports, until_serving
from temper.client.platform.services import (
    Service,
    require_installed,
    require_overrides,
    selected,
    settings,
    to_toml,
)
from temper.client.platform.space import Space
from temper.client.sdk.target import Api, Target
from temper.runtime.embedded import binary, write_secret

BROKER = "nats-server"
READY_S = 180.0  # importing torch six times on a loaded two-core machine
DRAIN_S = 12.0  # the services' own limit is 5 s, and steps after it take some
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)  # more than one only fights for two cores

Say = Callable[[str], None]


class Platform:
    """One embedded platform. `start` it, `wait` for its failure while you work, `stop` it.

    `say` gets a line for people whenever something happens; `overrides` are `service.key=value`. A platform that is not
    `lasting` ends with one job, so others should not build on it.
    """

    def __init__(
        self,
        layout: DataDir,
        *,
        say: Say,
        base_port: int | None = None,
        without: tuple[str, ...] = (),
        overrides: Sequence[str] = (),
        lasting: bool = True,
    ) -> None:
        self.layout = layout
        self._say = say
        self._services = selected(without)
        self._base_port = base_port
        require_overrides(overrides)
        self._overrides = tuple(overrides)
        self._lasting = lasting
        self._lock = DirectoryLock(layout.lock_file)
        self._keepers: dict[str, Keeper] = {}
        self._ports: dict[str, int] = {}
        self._broker: Broker | None = None
        self._started_at = 0.0
        self._watching: asyncio.Task[None] | None = None

    @property
    def target(self) -> Target:
        """Where clients find it."""
        endpoints: dict[Api, str] = {}
        for api in ("scheduler", "qa", "telemetry"):
            if api in self._ports:
                endpoints[api] = f"127.0.0.1:{self._ports[api]}"
        return Target(endpoints, self.layout.token_file)

    async def start(self) -> Target:
        """Bring everything up; raises TemperError, with nothing left behind, if that cannot be done."""
        self.layout.prepare()
        self._lock.acquire()
        try:
            await self._bring_up()
        except BaseException:  # also a Ctrl-C while it starts: no child may stay
            await self.stop()
            raise
        return self.target

    async def wait(self) -> None:
        """Wait until a process is given up; raises Unavailable then. Otherwise for ever."""
        tasks = [asyncio.create_task(keeper.failed()) for keeper in self._keepers.values()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def stop(self) -> None:
        """Drain the services wave by wave, then the broker; kill what does not end in time."""
        self._unwatch()
        for wave in sorted({service.stop_wave for service in self._services}):
            names = [service.name for service in self._services if service.stop_wave == wave]
            await asyncio.gather(*(self._end(name) for name in names))
        await self._end(BROKER)
        self.layout.remove_state()
        self._lock.release()

    def kill(self) -> None:
        """End everything at once."""
        self._unwatch()
        for keeper in self._keepers.values():
            keeper.kill()
        self.layout.remove_state()

    def state(self) -> dict[str, Any]:
        """What `platform.json` says."""
        return {
            "pid": os.getpid(),
            "started_at": self._started_at,
            "lasting": self._lasting,
            "data_dir": str(self.layout.root),
            "endpoints": dict(self.target.endpoints),
            "token_file": str(self.layout.token_file),
            "broker": self._broker.url if self._broker else None,
            "broker_token_file": str(self._broker.token_file) if self._broker else None,
            "processes": {name: keeper.pid for name, keeper in self._keepers.items()},
            "restarts": {name: keeper.restarts for name, keeper in self._keepers.items()},
        }

    async def _bring_up(self) -> None:
        require_installed(self._services)
        binary()  # says what to install before anything is started
        self._started_at = time.time()
        names = (BROKER, *(service.name for service in self._services))
        self._ports = choose_ports(names, self._base_port)
        self._broker = Broker(self.layout.broker, port=self._ports[BROKER])
        self._say("starting nats-server")
        await self._keep(BROKER, self._launch_broker)
        self._say(f"starting {', '.join(names[1:])}")
        for service in self._services:
            await self._keep(service.name, self._launcher(service))
        await self._until_ready()
        for keeper in self._keepers.values():
            keeper.settled = True
        space = Space(self.layout.root, say=self._say, mend=self._renew_broker)
        self._watching = asyncio.create_task(space.watch(), name="space")
        self.layout.write_state(self.state())

    async def _until_ready(self) -> None:
        """Health of all services, unless one is given up before."""
        addresses = {service.name: f"127.0.0.1:{self._ports[service.name]}" for service in self._services}
        ready = asyncio.create_task(until_serving(addresses, timeout_s=READY_S, say=self._say))
        failed = asyncio.create_task(self.wait())
        try:
            done, _ = await asyncio.wait({ready, failed}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (ready, failed):
                task.cancel()
            await asyncio.gather(ready, failed, return_exceptions=True)

    async def _keep(self, name: str, start: Callable[[], Any]) -> None:
        keeper = Keeper(name, start, changed=self._changed, log_tail=lambda: self.layout.log_tail(name))
        self._keepers[name] = keeper
        await keeper.begin()

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _renew_broker(self) -> None:
        """nats-server keeps the error of a failed write until it starts again: end it, its keeper starts it."""
        keeper = self._keepers.get(BROKER)
        if keeper is not None and keeper.pid:
            with suppress(ProcessLookupError):
                os.kill(keeper.pid, signal.SIGKILL)

    async def _launch_broker(self) -> Child:
        assert self._broker is not None
        return await self._broker.launch(self.layout.log_file(BROKER))

    def _launcher(self, service: Service) -> Callable[[], Any]:
        command = [sys.executable, "-m", f"temper.{service.name}", "--config", str(self._configure(service))]
        for override in self._overrides:
            name, _, assignment = override.partition(".")
            if name == service.name:
                command += ["--set", assignment]
        log = self.layout.log_file(service.name)

        async def launch() -> Child:
            return await Child.start(service.name, command, log=log, env=_environment())

        return launch

    def _configure(self, service: Service) -> Any:
        assert self._broker is not None
        values = settings(
            service.name,
            self.layout,
            broker_url=self._broker.url,
            broker_token=str(self._broker.token_file),
            port=self._ports[service.name],
        )
        path = self.layout.run / f"{service.name}.toml"
        write_secret(path, to_toml(values))
        return path

    def _changed(self, what: str) -> None:
        self._say(what)
        if self.layout.state_file.exists():
            self.layout.write_state(self.state())

    async def _end(self, name: str) -> None:
        keeper = self._keepers.pop(name, None)
        if keeper is not None and not await keeper.stop(DRAIN_S):
            self._say(f"{name} did not stop within {DRAIN_S:g} s and was killed")


def _environment() -> dict[str, str]:
    """The user's environment with one thread per process, unless the user says otherwise."""
    return {
        **dict.fromkeys(_THREADS, "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
    }
