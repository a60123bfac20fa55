"""The sandbox service on the bus: one request in, one reply out.

New sessions and stateless calls arrive at the queue group `temper.v1.rpc.sandbox.any.<method>`, where any host may
answer; the reply names the host, and later calls of the session go to `temper.v1.rpc.sandbox.<host>.<method>`. Every host
hears `temper.v1.rpc.sandbox.all.Release`: who gave up waiting for a sandbox does not know which one is making it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from temper.api.sandbox.v1 import control_pb2, egress_pb2, sandbox_pb2
from temper.runtime import topology
from temper.runtime.bus.base import Bus, Subscription
from temper.runtime.envelope import Envelope
from temper.runtime.errors import Rejected
from temper.sandbox.control import Control
from temper.sandbox.convert import capabilities_message, merge_limits, require, result_message
from temper.sandbox.egress.desk import EgressDesk, message
from temper.sandbox.engine.base import Command, CommandResult, Isolation, Limits, Sandbox
from temper.sandbox.episodes import Episodes
from temper.sandbox.host import SandboxHost
from temper.sandbox.phases import ANYONE, End
from temper.sandbox.tenancy import Purpose
from temper.sandbox.toolcalls import ToolCalls

ANY = "any"
ALL = "all"
MAX_FILE = 512 << 10
_BEGINNERS = ("Materialize", "Step", "Finish", "Acquire", "GetCapabilities")

Method = Callable[[Any], Awaitable[Message]]
Handle = Callable[[Any, Envelope], Awaitable[Message]]


class SandboxActor:
    """Every method of `SandboxService` and `SandboxControlService` by name, and the subjects they are served on."""

    def __init__(
        self, host: SandboxHost, episodes: Episodes, control: Control, limits: Limits, *, slots: int
    ) -> None:
        self._host = host
        self._episodes = episodes
        self._limits = limits
        self._slots = slots
        calls = ToolCalls(host, limits, episodes.gate, episodes.gateway)
        methods: dict[str, tuple[type[Message], Method]] = {
            "Materialize": (sandbox_pb2.MaterializeRequest, episodes.materialize),
            "Step": (sandbox_pb2.StepRequest, episodes.step),
            "Finish": (sandbox_pb2.FinishRequest, episodes.finish),
            "Exec": (sandbox_pb2.ExecRequest, self.execute),
            "PutFile": (sandbox_pb2.PutFileRequest, self.put_file),
            "GetFile": (sandbox_pb2.GetFileRequest, self.get_file),
            "RenewLease": (sandbox_pb2.RenewLeaseRequest, self.renew_lease),
            "Release": (sandbox_pb2.ReleaseRequest, self.release),
            "ListSessions": (sandbox_pb2.ListSessionsRequest, self.list_sessions),
            "GetCapabilities": (sandbox_pb2.GetCapabilitiesRequest, self.get_capabilities),
            "SetEgress": (egress_pb2.SetEgressRequest, self.set_egress),
            "GetEgress": (egress_pb2.GetEgressRequest, self.get_egress),
            "CallTool": (control_pb2.CallToolRequest, calls.call_tool),
            **control.methods(),
        }
        self._handlers: dict[str, tuple[type[Message], Handle]] = {
            "Acquire": (sandbox_pb2.AcquireRequest, self.acquire),
            **{name: (request, _handler(method)) for name, (request, method) in methods.items()},
        }

    async def serve(self, bus: Bus) -> list[Subscription]:
        """Subscribe; the queue group's subscriptions come first in the list, so a drain can stop those before the others.

        They are made last: whoever is answered through the group may go on at this host's own name at once.
        """
        own = [await self._answer(bus, self._host.name, name, *each) for name, each in self._handlers.items()]
        own.append(
            await self._answer(bus, ALL, "Release", sandbox_pb2.ReleaseRequest, _handler(self._withdraw))
        )
        shared = [await self._answer(bus, ANY, name, *self._handlers[name]) for name in _BEGINNERS]
        return [*shared, *own]

    async def _answer(
        self, bus: Bus, group: str, name: str, request_type: type[Message], handle: Handle
    ) -> Subscription:
        return await bus.serve(
            topology.rpc("sandbox", group, name),
            request_type,
            handle,
            queue=ANY if group == ANY else None,
            concurrency=max(256, 4 * self._slots),
        )

    async def acquire(
        self, request: sandbox_pb2.AcquireRequest, envelope: Envelope | None = None
    ) -> sandbox_pb2.AcquireResponse:
        """Take a bare sandbox under a lease, for who waits until the envelope's deadline."""
        self._require(request.min_isolation)
        limits = merge_limits(self._limits, request.limits)
        require(self._host.backend.capabilities, request.needs, limits)
        purpose = Purpose(egress=self._host.policy(request.egress))
        asker = self._host.asker(envelope.id, envelope.deadline) if envelope else ANYONE
        epoch = await self._host.acquire(request.session_id, limits, request.lease_s, purpose, asker)
        return sandbox_pb2.AcquireResponse(host=self._host.name, epoch=epoch)

    def _require(self, isolation: str) -> None:
        if not isolation:
            return
        try:
            wanted = Isolation[isolation.upper()]
        except KeyError:
            names = ", ".join(each.name.lower() for each in Isolation)
            raise Rejected(f"unknown isolation {isolation!r}", field="min_isolation", hint=names) from None
        if self._host.backend.capabilities.isolation < wanted:
            has = self._host.backend.capabilities.isolation.name.lower()
            raise Rejected(f"this host isolates {has!r} only", field="min_isolation", hint="ask another host")

    async def execute(self, request: sandbox_pb2.ExecRequest) -> sandbox_pb2.ExecResponse:
        """Run one command."""
        if not request.argv:
            raise Rejected("no program is named", field="argv", hint='such as ["/bin/sh", "-c", "ls"]')
        limits = merge_limits(self._limits, request.limits)
        await self._episodes.gate.require_exec(request)
        command = Command(tuple(request.argv), request.stdin, dict(request.env), request.cwd)

        async def work(sandbox: Sandbox) -> CommandResult:
            desk = self._host.desk(request.session_id)
            async with desk.streaming(request.command_id, wanted=request.stream) as sink:
                return await sandbox.execute(command, limits, sink)

        result = await self._host.run(request.session_id, request.command_id, work)
        mode = self._host.backend.capabilities.cgroup_mode
        return sandbox_pb2.ExecResponse(result=result_message(result, mode))

    async def set_egress(self, request: egress_pb2.SetEgressRequest) -> egress_pb2.SetEgressResponse:
        """Replace a live session's policy."""
        desk = self._desk()
        version = desk.change(request.session_id, request.policy, request.expected_version)
        return egress_pb2.SetEgressResponse(version=version)

    async def get_egress(self, request: egress_pb2.GetEgressRequest) -> egress_pb2.GetEgressResponse:
        """A live session's policy."""
        policy = self._desk().policy(request.session_id)
        return egress_pb2.GetEgressResponse(policy=message(policy), version=policy.version)

    def _desk(self) -> EgressDesk:
        if self._host.egress is None:
            raise Rejected("this host gives no network by name", field="session_id")
        return self._host.egress

    async def put_file(self, request: sandbox_pb2.PutFileRequest) -> sandbox_pb2.PutFileResponse:
        """Write one file."""
        sandbox = self._host.sandbox(request.session_id)
        await sandbox.put_file(request.path, request.content, request.mode or 0o644)
        return sandbox_pb2.PutFileResponse()

    async def get_file(self, request: sandbox_pb2.GetFileRequest) -> sandbox_pb2.GetFileResponse:
        """Read one file."""
        content, more = await self._host.sandbox(request.session_id).get_file(request.path, MAX_FILE)
        return sandbox_pb2.GetFileResponse(content=content, truncated=more)

    async def renew_lease(self, request: sandbox_pb2.RenewLeaseRequest) -> sandbox_pb2.RenewLeaseResponse:
        """Extend a lease."""
        self._host.renew(request.session_id, request.epoch, request.lease_s)
        return sandbox_pb2.RenewLeaseResponse()

    async def release(self, request: sandbox_pb2.ReleaseRequest) -> sandbox_pb2.ReleaseResponse:
        """Destroy a sandbox, or take back the request for it."""
        if request.acquire_id:
            return await self._withdraw(request)
        return sandbox_pb2.ReleaseResponse(released=await self._host.end(request.session_id, End.RELEASED))

    async def _withdraw(self, request: sandbox_pb2.ReleaseRequest) -> sandbox_pb2.ReleaseResponse:
        if not request.acquire_id:
            hint = "a sandbox that was given is released at its own host"
            raise Rejected("no Acquire is named", field="acquire_id", hint=hint)
        return sandbox_pb2.ReleaseResponse(
            released=await self._host.withdraw(request.session_id, request.acquire_id)
        )

    async def list_sessions(self, _: sandbox_pb2.ListSessionsRequest) -> sandbox_pb2.ListSessionsResponse:
        """Live sessions of this host."""
        return sandbox_pb2.ListSessionsResponse(host=self._host.name, sessions=self._host.listing())

    async def get_capabilities(
        self, _: sandbox_pb2.GetCapabilitiesRequest
    ) -> sandbox_pb2.GetCapabilitiesResponse:
        """What this host offers."""
        return capabilities_message(self._host.name, self._slots, self._host.backend.capabilities)


def _handler(method: Method) -> Handle:
    async def handle(message: Any, _: Envelope) -> Message:
        return await method(message)

    return handle
