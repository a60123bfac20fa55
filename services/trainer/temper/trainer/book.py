"""The job's PolicyRecord in KV, written by compare-and-set: whoever writes last without seeing the other's write has lost.

That is the trainer's fence. A worker that was thought dead and comes back finds a revision that is not its own, gets Stale, and stops;
so two trainers of one job can both compute, but only one of them can publish.
"""

from __future__ import annotations

from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.runtime.bus.base import KeyValue
from temper.runtime.errors import Conflict, Stale
from temper.trainer.patience import Patience

BUCKET = "policies"


class PolicyBook:
    """The last value of one job, and the right to write the next one."""

    def __init__(self, kv: KeyValue, job_id: str, instance: str, patience: Patience) -> None:
        self._kv = kv
        self._job = job_id
        self._instance = instance
        self._patience = patience
        self._revision = 0
        self.last: PolicyRecord | None = None
        """What is known to be in the bucket."""

    async def open(self) -> PolicyRecord | None:
        """Read what is there; None when the job has never been trained."""
        entry = await self._patience(lambda: self._kv.get(self._job), "policy record")
        if entry is not None:
            self._revision = entry.revision
            self.last = PolicyRecord.FromString(entry.value)
        return self.last

    async def write(self, record: PolicyRecord) -> None:
        """Replace the record. Raises Stale when somebody else wrote since, or the job actor's fence is an older one."""
        if self.last is not None and record.fence < self.last.fence:
            raise Stale(f"job {self._job} has a newer owner: fence {self.last.fence}, ours is {record.fence}")
        value = record.SerializeToString(deterministic=True)
        await self._patience(lambda: self._put(value), "policy record")
        self.last = record

    async def _put(self, value: bytes) -> None:
        try:
            if self._revision:
                self._revision = await self._kv.update(self._job, value, self._revision)
            else:
                self._revision = await self._kv.create(self._job, value)
        except Conflict:
            entry = await self._kv.get(self._job)
            if entry is None or entry.value != value:  # equal: our own write whose answer got lost
                raise Stale(
                    f"another trainer writes the policy of job {self._job}; {self._instance} stops"
                ) from None
            self._revision = entry.revision
