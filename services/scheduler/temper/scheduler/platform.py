"""`temper.api.job.v1.PlatformService`: who is there, what is stuck, which policies are published."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, symbol_database
from google.protobuf.message import DecodeError

from temper.api.job.v1 import platform_pb2, platform_pb2_grpc
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TrainingState
from temper.runtime import topology
from temper.runtime.bus.base import DeadLetter
from temper.runtime.errors import NotFound
from temper.scheduler.groups import timestamp
from temper.scheduler.promotions import Promotions
from temper.scheduler.surroundings import Surroundings, presences

PAGE = 50


class PlatformService(platform_pb2_grpc.PlatformServiceServicer):
    """Instances, dead letters and policies."""

    def __init__(self, around: Surroundings, promotions: Promotions) -> None:
        self._around, self._promotions = around, promotions

    async def ListServices(
        self, request: platform_pb2.ListServicesRequest, context: Any
    ) -> platform_pb2.ListServicesResponse:
        """Live instances, by service and instance."""
        found = [
            each
            for each in await presences(self._around.bus)
            if not request.service or each.service == request.service
        ]
        found.sort(key=lambda each: (each.service, each.instance))
        return platform_pb2.ListServicesResponse(instances=found)

    async def DrainService(
        self, request: platform_pb2.DrainServiceRequest, context: Any
    ) -> platform_pb2.DrainServiceResponse:
        """Tells one live instance to finish its work and stop."""
        live = [
            each.instance for each in await presences(self._around.bus) if each.service == request.service
        ]
        if request.instance not in live:
            raise NotFound(
                f"no live {request.service} instance {request.instance!r}",
                field="instance",
                hint=f"live: {', '.join(sorted(live)) or 'none'}",
            )
        subject = topology.evt("platform", "drain", request.service, request.instance)
        await self._around.bus.event(subject, platform_pb2.DrainOrder(requested_by=self._around.bus.source))
        return platform_pb2.DrainServiceResponse()

    async def ListDeadLetters(
        self, request: platform_pb2.ListDeadLettersRequest, context: Any
    ) -> platform_pb2.ListDeadLettersResponse:
        """Oldest first."""
        letters = await self._around.bus.dead_letters(
            after=request.after_seq, limit=request.page_size or PAGE
        )
        return platform_pb2.ListDeadLettersResponse(letters=[_shown(letter) for letter in letters])

    async def RetryDeadLetter(
        self, request: platform_pb2.RetryDeadLetterRequest, context: Any
    ) -> platform_pb2.RetryDeadLetterResponse:
        """Puts one back on its subject."""
        await self._around.bus.retry_dead(request.seq)
        return platform_pb2.RetryDeadLetterResponse()

    async def DropDeadLetter(
        self, request: platform_pb2.DropDeadLetterRequest, context: Any
    ) -> platform_pb2.DropDeadLetterResponse:
        """Forgets one."""
        await self._around.bus.drop_dead(request.seq)
        return platform_pb2.DropDeadLetterResponse()

    async def ListPolicies(
        self, request: platform_pb2.ListPoliciesRequest, context: Any
    ) -> platform_pb2.ListPoliciesResponse:
        """The last published policy of each job."""
        bucket = await self._around.bus.kv("policies")
        entries = [await bucket.get(key) for key in await bucket.keys()]
        records = [PolicyRecord.FromString(entry.value) for entry in entries if entry is not None]
        return platform_pb2.ListPoliciesResponse(policies=[_policy(record) for record in records])

    async def PromotePolicy(
        self, request: platform_pb2.PromotePolicyRequest, context: Any
    ) -> platform_pb2.PromotePolicyResponse:
        """Makes a version the one that a name stands for."""
        return platform_pb2.PromotePolicyResponse(policy=await self._promotions.promote(request))

    async def DemotePolicy(
        self, request: platform_pb2.DemotePolicyRequest, context: Any
    ) -> platform_pb2.DemotePolicyResponse:
        """Goes back to the version before."""
        policy = await self._promotions.demote(request.name, request.reason)
        return platform_pb2.DemotePolicyResponse(policy=policy)

    async def ListPromotions(
        self, request: platform_pb2.ListPromotionsRequest, context: Any
    ) -> platform_pb2.ListPromotionsResponse:
        """Names with their histories."""
        return platform_pb2.ListPromotionsResponse(policies=await self._promotions.all())


def _policy(record: PolicyRecord) -> platform_pb2.Policy:
    return platform_pb2.Policy(
        job_id=record.job_id,
        version=record.version,
        step=record.step,
        manifest=record.manifest,
        reward_model=record.reward_model if record.HasField("reward_model") else None,
        state=TrainingState.Name(record.state).removeprefix("TRAINING_STATE_").lower(),
        published_at=record.published_at,
    )


def _shown(letter: DeadLetter) -> platform_pb2.DeadLetter:
    return platform_pb2.DeadLetter(
        seq=letter.seq,
        subject=letter.subject,
        reason=letter.reason,
        id=letter.envelope.id,
        type=letter.envelope.type,
        time=timestamp(letter.time),
        body_json=_as_json(letter),
        deliveries=letter.envelope.attempt,
    )


def _as_json(letter: DeadLetter) -> str:
    """The body in words; empty when this process does not know its type or cannot read it."""
    try:
        kind = symbol_database.Default().GetSymbol(letter.envelope.type)
        return json_format.MessageToJson(kind.FromString(letter.body), indent=None)
    except (KeyError, DecodeError, json_format.SerializeToJsonError):
        return ""
