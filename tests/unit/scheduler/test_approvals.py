"""A person's word over the API, on a bus in memory."""

from types import SimpleNamespace
from typing import Any

import pytest

from temper.api.sandbox.v1 import approval_pb2 as pb
from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Conflict, NotFound
from temper.scheduler.approvals import ANONYMOUS, BUCKET, ApprovalService
from temper.scheduler.groups import timestamp


async def desk(*states: tuple[str, "pb.ApprovalState"]) -> tuple[ApprovalService, Any, FakeClock]:
    clock = FakeClock()
    bus = MemoryBus(clock)
    bucket = await bus.kv(BUCKET)
    for key, state in states:
        record = pb.Approval(approval_id=key, state=state, digest="d", asked_at=timestamp(clock.now()))
        record.expires_at.CopyFrom(timestamp(clock.now() + 60))
        await bucket.put(key, record.SerializeToString())
    around: Any = SimpleNamespace(bus=bus, clock=clock)
    return ApprovalService(around), bucket, clock


async def listed(service: ApprovalService, *, everything: bool = False) -> list[str]:
    reply = await service.ListApprovals(pb.ListApprovalsRequest(all=everything), None)
    return [each.approval_id for each in reply.approvals]


async def test_what_an_answer_still_changes_is_listed_and_all_on_request() -> None:
    service, _, clock = await desk(("a", pb.APPROVAL_STATE_PENDING), ("b", pb.APPROVAL_STATE_DENIED))
    assert await listed(service) == ["a"]
    assert await listed(service, everything=True) == ["a", "b"]
    await clock.advance(61)
    assert await listed(service) == []


@pytest.mark.parametrize("grant", [True, False])
async def test_an_answer_is_written_with_its_author_and_counts_once(grant: bool) -> None:
    service, bucket, _ = await desk(("a", pb.APPROVAL_STATE_PENDING))
    request = pb.ResolveApprovalRequest(approval_id="a", grant=grant, reason="looked at it")
    reply = await service.ResolveApproval(request, None)
    entry = await bucket.get("a")
    assert pb.Approval.FromString(entry.value) == reply.approval
    assert (reply.approval.state == pb.APPROVAL_STATE_GRANTED) is grant
    assert (reply.approval.resolved_by, reply.approval.reason) == (ANONYMOUS, "looked at it")
    request.grant = not grant
    with pytest.raises(Conflict, match="already"):
        await service.ResolveApproval(request, None)


async def test_an_answer_after_the_time_is_refused() -> None:
    service, _, clock = await desk(("a", pb.APPROVAL_STATE_PENDING))
    await clock.advance(61)
    with pytest.raises(Conflict, match="expired"):
        await service.ResolveApproval(pb.ResolveApprovalRequest(approval_id="a", grant=True), None)


async def test_nothing_is_answered_that_was_not_asked() -> None:
    service, _, _ = await desk()
    with pytest.raises(NotFound, match="no approval 'x'"):
        await service.ResolveApproval(pb.ResolveApprovalRequest(approval_id="x", grant=True), None)
