"""One sandbox for one client of the tools: here in this process, or on a running platform.

A seat is entered to have its sandbox and left to end it: `async with seats.seat() as seat: await seat.call(...)`.
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
from temper.sandbox.engine.base import Isolation, Limits
from temper.sandbox.gate import Gate
from temper.sandbox.gateway import Gateway
from temper.sandbox.host import SandboxHost
from temper.sandbox.metrics import Metrics
from temper.sandbox.phases import End
from temper.sandbox.pool import WarmPool
from temper.sandbox.tenancy import Purpose, Settings
from temper.sandbox.toolcalls import ToolCalls

_ASK_S: Final = 30.0
_CALL_MARGIN_S: Final = 60.0
_RENEWALS: Final = 3
"""Tries to renew a lease before it is over."""


class Seat(Protocol):
    """A sandbox that lives as long as the seat is entered."""

    async def __aenter__(self) -> Self:
        """Have the sandbox. Raises TemperError."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy it."""
        ...

    async def call(self, name: str, arguments: str) -> control_pb2.CallToolResponse:
        """One call of a standard tool; `arguments` is text, as it was written. Raises TemperError."""
        ...


def _request(session: str, name: str, arguments: str) -> control_pb2.CallToolRequest:
    call = sandbox_pb2.ToolCall(name=name, arguments_json=arguments)
    return control_pb2.CallToolRequest(session_id=session, command_id=secrets.token_hex(8), call=call)


class LocalSeats:
    """A backend in this process with places for `most` sandboxes; none of them can outlive the process."""

    def __init__(self, config: SandboxConfig, most: int = 1, clock: Clock | None = None) -> None:
        self._config = config
        self._most = most
        self._clock = clock or SystemClock()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the backend. Raises Rejected, Unavailable."""
        from temper.sandbox.choose import make_backend

        config = self._config
        backend = make_backend(config.model_copy(update={"slots": self._most, "warm": 0, "warm_most": 0}))
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(backend.close)
            await backend.start()
            if backend.capabilities.isolation < Isolation.NAMESPACE and not config.allow_weak:
                raise Rejected(
                    f"the {config.backend} backend isolates weakly", field="backend", hint="allow_weak = true"
                )
            self._limits = config.limits.build()
            self._host = SandboxHost(
                "local",
                backend,
                WarmPool(backend, self._limits, 0),
                Settings(slots=self._most, lease_s=config.lease_s),
                clock=self._clock,
                metrics=Metrics(CollectorRegistry()),
                publish=lambda _: None,
            )
            gate = Gate(tools=tuple(config.approvals.tools), commands=config.approvals.commands)
            self._calls = ToolCalls(self._host, self._limits, gate, Gateway(self._clock))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the backend, and with it every sandbox that is left."""
        await self._stack.aclose()

    def seat(self) -> "LocalSeat":
        """A seat, not entered yet."""
        return LocalSeat(self._host, self._limits, self._calls, self._config.lease_s)


class LocalSeat:
    """A sandbox of a backend in this process."""

    def __init__(self, host: SandboxHost, limits: Limits, calls: ToolCalls, lease_s: float) -> None:
        self._host = host
        self._limits = limits
        self._calls = calls
        self._lease_s = lease_s
        self._name = f"tools-{secrets.token_hex(4)}"

    async def __aenter__(self) -> Self:
        """Make the sandbox. Raises Rejected, Exhausted, Unavailable."""
        try:
            await self._host.acquire(self._name, self._limits, self._lease_s, Purpose())
        except (
            BaseException
        ):  # one that surfaces after its caller has gone finds its session ended, and goes too
            await self._host.end(self._name, End.RELEASED)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Destroy the sandbox."""
        await self._host.end(self._name, End.RELEASED)

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
