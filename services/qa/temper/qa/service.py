"""The registry over gRPC, and its one question of the scheduler over the bus."""

from __future__ import annotations

import asyncio
from typing import Any

from temper.api.qa.v1 import qa_pb2 as qa
from temper.api.qa.v1 import qa_pb2_grpc
from temper.qa import records
from temper.qa.admission import Admission
from temper.qa.registry import Registry
from temper.runtime.bus.base import Bus, Subscription
from temper.runtime.envelope import Envelope
from temper.runtime.errors import TemperError
from temper.runtime.topology import rpc
from temper.runtime.validation import check

PAGE = 200
RESOLVE = "ResolveEnvironments"


class EnvironmentService(qa_pb2_grpc.EnvironmentServiceServicer):
    """`temper.api.qa.v1.EnvironmentService`. Each method is a few lines around registry and admission."""

    def __init__(self, registry: Registry, admission: Admission) -> None:
        self._registry = registry
        self._admission = admission

    async def serve_on(self, bus: Bus) -> Subscription:
        """Answer `ResolveEnvironments` on the bus, one instance of many."""
        return await bus.serve(
            rpc("qa", RESOLVE), qa.ResolveEnvironmentsRequest, self._resolve_on_bus, queue="qa"
        )

    async def RegisterEnvironment(
        self, request: qa.RegisterEnvironmentRequest, context: Any
    ) -> qa.RegisterEnvironmentResponse:
        """Adds an asset; for one with families, the reply shows the first."""
        registered = await self._registry.register(request.bundle)
        return qa.RegisterEnvironmentResponse(environment=registered[0])

    async def GetEnvironment(
        self, request: qa.GetEnvironmentRequest, context: Any
    ) -> qa.GetEnvironmentResponse:
        """One variant; parameters that nobody used yet give a draft that is not stored."""
        _, record = await self._registry.find(records.wish(request.name, request.params_json))
        return qa.GetEnvironmentResponse(environment=record)

    async def ListEnvironments(
        self, request: qa.ListEnvironmentsRequest, context: Any
    ) -> qa.ListEnvironmentsResponse:
        """A page of variants by key; the token is the last key of the page before."""
        size = request.page_size or PAGE
        found = [
            (key, record)
            for key, record in self._registry.all()
            if record.env.name.startswith(request.prefix) and key > request.page_token
        ]
        page = found[:size]
        token = page[-1][0] if len(found) > size else ""
        return qa.ListEnvironmentsResponse(environments=[record for _, record in page], next_page_token=token)

    async def CheckEnvironment(
        self, request: qa.CheckEnvironmentRequest, context: Any
    ) -> qa.CheckEnvironmentResponse:
        """Runs the checks unless there is a report; a failed check is a result, not an error."""
        key, record = await self._registry.find(records.wish(request.name, request.params_json))
        checked = await self._admission.check(key, record, force=request.force)
        return qa.CheckEnvironmentResponse(environment=checked)

    async def QuarantineEnvironment(
        self, request: qa.QuarantineEnvironmentRequest, context: Any
    ) -> qa.QuarantineEnvironmentResponse:
        """Withdraws every variant of a version, or lifts that."""
        wish = records.wish(request.name)
        changed = await self._admission.quarantine(wish, request.reason, lift=request.lift)
        return qa.QuarantineEnvironmentResponse(environments=changed)

    async def ResolveEnvironments(
        self, request: qa.ResolveEnvironmentsRequest, context: Any
    ) -> qa.ResolveEnvironmentsResponse:
        """Admitted variants in the order of the wishes."""
        return await self.resolve(request)

    async def resolve(self, request: qa.ResolveEnvironmentsRequest) -> qa.ResolveEnvironmentsResponse:
        """All wishes at once. The error names the first wish that cannot be fulfilled."""
        wishes = [records.wish(each.name, each.params_json) for each in request.wishes]
        found = await asyncio.gather(
            *(self._admission.resolve(wish, dry_run=request.dry_run) for wish in wishes),
            return_exceptions=True,
        )
        response = qa.ResolveEnvironmentsResponse()
        for index, result in enumerate(found):
            if isinstance(result, BaseException):
                raise _of_wish(index, result)
            response.envs.append(result)
        return response

    async def _resolve_on_bus(
        self, request: qa.ResolveEnvironmentsRequest, envelope: Envelope
    ) -> qa.ResolveEnvironmentsResponse:
        check(request)
        return await self.resolve(request)


def _of_wish(index: int, error: BaseException) -> BaseException:
    """The same error, with the path of the wish in front of its field."""
    if not isinstance(error, TemperError):
        return error
    where = f"wishes[{index}]" + (f".{error.field}" if error.field else "")
    return type(error)(error.message, field=where, hint=error.hint)
