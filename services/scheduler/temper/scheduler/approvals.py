"""`temper.api.sandbox.v1.ApprovalService`: what waits for a person, and the person's word.

The sandbox service asks (KV `approvals`); this is where the answer is written, by compare-and-set, so it may be away.
"""

from __future__ import annotations

from typing import Any

from temper.api.sandbox.v1 import approval_pb2, approval_pb2_grpc
from temper.api.sandbox.v1.approval_pb2 import Approval
from temper.runtime.errors import Conflict, NotFound
from temper.scheduler.groups import timestamp
from temper.scheduler.surroundings import Surroundings

BUCKET = "approvals"
ANONYMOUS = "someone with the platform's token"


class ApprovalService(approval_pb2_grpc.ApprovalServiceServicer):
    """Lists questions and answers them once."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def ListApprovals(
        self, request: approval_pb2.ListApprovalsRequest, context: Any
    ) -> approval_pb2.ListApprovalsResponse:
        """Oldest first; without `all`, those that an answer still changes."""
        bucket = await self._around.bus.kv(BUCKET)
        entries = [await bucket.get(key) for key in await bucket.keys()]
        records = [Approval.FromString(entry.value) for entry in entries if entry is not None]
        shown = [record for record in records if request.all or self._open(record)]
        shown.sort(key=lambda each: (each.asked_at.seconds, each.asked_at.nanos, each.approval_id))
        return approval_pb2.ListApprovalsResponse(approvals=shown)

    async def ResolveApproval(
        self, request: approval_pb2.ResolveApprovalRequest, context: Any
    ) -> approval_pb2.ResolveApprovalResponse:
        """Writes the answer. Conflict if there is one already, or the time is up."""
        bucket = await self._around.bus.kv(BUCKET)
        entry = await bucket.get(request.approval_id)
        if entry is None:
            raise NotFound(
                f"no approval {request.approval_id!r}", field="approval_id", hint="temper approvals list"
            )
        record = Approval.FromString(entry.value)
        self._require_open(record)
        yes, no = approval_pb2.APPROVAL_STATE_GRANTED, approval_pb2.APPROVAL_STATE_DENIED
        record.state = yes if request.grant else no
        record.resolved_by, record.reason = request.resolved_by or ANONYMOUS, request.reason
        record.resolved_at.CopyFrom(timestamp(self._around.clock.now()))
        await bucket.update(request.approval_id, record.SerializeToString(), entry.revision)
        return approval_pb2.ResolveApprovalResponse(approval=record)

    def _require_open(self, record: Approval) -> None:
        if record.state != approval_pb2.APPROVAL_STATE_PENDING:
            name = approval_pb2.ApprovalState.Name(record.state).removeprefix("APPROVAL_STATE_").lower()
            raise Conflict(f"approval {record.approval_id} is {name} already", field="approval_id")
        if not self._open(record):
            raise Conflict(f"approval {record.approval_id} has expired", field="approval_id")

    def _open(self, record: Approval) -> bool:
        until = record.expires_at.seconds + record.expires_at.nanos / 1e9
        return record.state == approval_pb2.APPROVAL_STATE_PENDING and self._around.clock.now() < until
