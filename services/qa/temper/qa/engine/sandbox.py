"""The real host: NATS requests to the sandbox service, the same subjects and messages as a rollout's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from temper.api.common.v1.common_pb2 import EnvRef
from temper.api.sandbox.v1.sandbox_pb2 import (
    FinishRequest,
    FinishResponse,
    GetCapabilitiesRequest,
    GetCapabilitiesResponse,
    MaterializeRequest,
    MaterializeResponse,
    StepRequest,
    StepResponse,
)
from temper.runtime.bus.base import Bus
from temper.runtime.topology import rpc

M = TypeVar("M", bound=Message)
ANY = "any"  # queue group: whichever host is free


class SandboxProbe:
    """Checks over the bus. A session's first call goes to any host, the others to the host that answered."""

    def __init__(self, bus: Bus, *, timeout_s: float) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._hosts: dict[str, str] = {}

    async def backend(self) -> str:
        reply = await self._ask(ANY, "GetCapabilities", GetCapabilitiesRequest(), GetCapabilitiesResponse)
        return reply.backend

    async def materialize(
        self, env: EnvRef, split: str, indices: Sequence[int], style: str = ""
    ) -> MaterializeResponse:
        styles = [style] * len(indices) if style else []
        request = MaterializeRequest(env=env, split=split, task_indices=indices, oracle_styles=styles)
        return await self._ask(ANY, "Materialize", request, MaterializeResponse)

    async def step(self, request: StepRequest) -> StepResponse:
        reply = await self._ask(self._host(request.session_id), "Step", request, StepResponse)
        self._hosts[request.session_id] = reply.host
        return reply

    async def finish(self, request: FinishRequest) -> FinishResponse:
        host = self._hosts.pop(request.session_id, ANY)
        return await self._ask(host, "Finish", request, FinishResponse)

    def _host(self, session: str) -> str:
        return self._hosts.get(session, ANY)

    async def _ask(self, host: str, method: str, request: Message, reply: type[M]) -> M:
        return await self._bus.request(
            rpc("sandbox", host, method), request, reply, timeout_s=self._timeout_s
        )
