"""One sandbox for one client of the tools: here in this process, or on a running platform.

A seat is entered to have its sandbox and left to end it: `async with LocalSeat(config) as seat: await seat.call(...)`.
"""

import asyncio
import contextlib
import secrets
from types import TracebackType
from typing import Final, Protocol, Self

from prometheus_client import CollectorRegistry

from temper.api.sandbox.v1 import control_pb2, sandbox_pb2
from temper.runtime import topology
from temper.runtime.bus.base import Bus
from temper.runtime.clock import Clock, SystemClock
from temper.runtime.errors import Rejected, TemperError
from temper.sandbox.config import SandboxConfig
from temper.sandbox.engine.base import Isolation
from temper.sandbox.gate import Gate
from temper.sandbox.gateway import Gateway
from temper.sandbox.host import SandboxHost
from temper.sandbox.metrics import Metrics
from temper.sandbox.pool import WarmPool
from temper.sandbox.state import End
from temper.sandbox.tenancy import Purpose, Settings
from temper.sandbox.toolcalls import ToolCalls

_ASK_S: Final = 30.0
_CALL_MARGIN_S: Final = 60.0
_RENEWALS: Final = 3
"""Tries to renew a lease before it is over."""


class Seat(Protocol):
    """A sandbox that lives as long as the seat is entered."""

    async def call(self, name: str, arguments: str) -> control_pb2.CallToolResponse:
        """One call of a standard tool; `arguments` is text, as it was written. Raises TemperError."""
        ...


def _request(session: str, name: str, arguments: str) -> control_pb2.CallToolRequest:
    call = sandbox_pb2.ToolCall(name=name, arguments_json=arguments)
    return control_pb2.CallToolRequest(session_id=session, command_id=secrets.token_hex(8), call=call)


class LocalSeat:
    """A sandbox of a backend in this process; it cannot outlive the process."""

    def __init__(self, config: SandboxConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._name = f"tools-{secrets.token_hex(4)}"
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the backend and make the sandbox. Raises Rejected, Unavailable."""
        from temper.sandbox.choose import make_backend

        config = self._config
        backend = make_backend(config.model_copy(update={"slots": 1, "warm": 0, "warm_most": 0}))
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(backend.close)
            await backend.start()
            if backend.capabilities.isolation < Isolation.NAMESPACE and not config.allow_weak:
                raise Rejected(
                    f"the {config.backend} backend isolates weakly", field="backend", hint="allow_weak = true"
                )
            limits = config.limits.build()
            host = SandboxHost(
                "local",
                backend,
                WarmPool(backend, limits, 0),
                Settings(slots=1, lease_s=config.lease_s),
                clock=self._clock,
                metrics=Metrics(CollectorRegistry()),
                publish=lambda _: None,
            )
            stack.push_async_callback(host.end, self._name, End.RELEASED)
            await host.acquire(self._name, limits, config.lease_s, Purpose())
            gate = Gate(tools=tuple(config.approvals.tools), commands=config.approvals.commands)
            self._calls = ToolCalls(host, limits, gate, Gateway(self._clock))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy the sandbox, end the backend."""
        await self._stack.aclose()

    async def call(self, name: str, arguments: str) -> control_pb2.CallToolResponse:
        """One call."""
        return await self._calls.call_tool(_request(self._name, name, arguments))


class RemoteSeat:
    """A sandbox of a running platform, under a lease that is renewed while the seat is entered. `bus` is connected."""

    def __init__(self, bus: Bus, clock: Clock, *, isolation: str, lease_s: float, wall_s: float) -> None:
        self._bus = bus
        self._clock = clock
        self._isolation = isolation
        self._lease_s = lease_s
        self._wall_s = wall_s
        self._name = f"tools-{secrets.token_hex(8)}"
        self._host = "any"
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Take the sandbox. Raises Rejected, Exhausted, Unavailable."""
        request = sandbox_pb2.AcquireRequest(
            session_id=self._name, lease_s=self._lease_s, min_isolation=self._isolation
        )
        subject = topology.rpc("sandbox", "any", "Acquire")
        reply = await self._bus.request(subject, request, sandbox_pb2.AcquireResponse, timeout_s=_ASK_S)
        self._host = reply.host
        self._renewing = asyncio.create_task(self._renew(reply.epoch))
        return self

    async def _renew(self, epoch: int) -> None:
        """Until the seat is left. A renewal that fails is tried again; one that is refused shows in the next call."""
        request = sandbox_pb2.RenewLeaseRequest(session_id=self._name, epoch=epoch, lease_s=self._lease_s)
        subject = topology.rpc("sandbox", self._host, "RenewLease")
        while True:
            await self._clock.sleep(self._lease_s / _RENEWALS)
            with contextlib.suppress(TemperError):
                await self._bus.request(subject, request, sandbox_pb2.RenewLeaseResponse, timeout_s=_ASK_S)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the sandbox back; if the platform cannot hear it, the lease does."""
        if self._renewing is not None:
            self._renewing.cancel()
        request = sandbox_pb2.ReleaseRequest(session_id=self._name)
        subject = topology.rpc("sandbox", self._host, "Release")
        with contextlib.suppress(TemperError):
            await self._bus.request(subject, request, sandbox_pb2.ReleaseResponse, timeout_s=_ASK_S)

    async def call(self, name: str, arguments: str) -> control_pb2.CallToolResponse:
        """One call."""
        request = _request(self._name, name, arguments)
        request.limits.wall_s = self._wall_s
        subject = topology.rpc("sandbox", self._host, "CallTool")
        timeout_s = self._wall_s + _CALL_MARGIN_S
        return await self._bus.request(subject, request, control_pb2.CallToolResponse, timeout_s=timeout_s)
