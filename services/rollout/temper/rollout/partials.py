"""Samples that are not finished yet, in object storage, so that a redelivered group need not begin from nothing.

    partials/<job>/<group>/<task>-<sample>.binpb     PartialSample: all whole turns so far

A sample is written at the end of a turn, before the turn's tool call is executed. Whoever goes on from it plays the recorded turns
again, calls included, in a sandbox of its own, and must see what was seen then; if anything differs, or a version in it has become too
old, the sample begins anew from the group's id and seed, which is always right. So a partial can only save work: it may be lost,
late or absent, and two workers that write the same one do no harm.

Cleared with the group's record, and with the job's end for groups that never had one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from temper.api.rollout.v1.rollout_pb2 import GroupCommand, PartialSample, SampleTokens
from temper.rollout.trajectory import Trajectory
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import TemperError
from temper.runtime.telemetry import get_logger

ROOT = "partials"
Spot = tuple[int, int]
"""Number of the task in the command, number of the sample."""


class Partials:
    """The partial samples of all groups of a worker. ``flush_tokens``: 0 writes none."""

    def __init__(self, blobs: BlobStore, *, flush_tokens: int) -> None:
        self._blobs, self.flush_tokens = blobs, flush_tokens
        self._written: set[str] = set()
        self._log = get_logger()

    async def read(self, command: GroupCommand) -> Mapping[Spot, SampleTokens]:
        """What earlier deliveries left of a group. What cannot be read is as good as absent."""
        found: dict[Spot, SampleTokens] = {}
        try:
            for key in await self._keys(_folder(command)):
                partial = PartialSample.FromString(await self._blobs.read(key))
                if partial.group_id == command.group_id:
                    found[partial.task_number, partial.tokens.sample_index] = partial.tokens
        except (TemperError, DecodeError) as error:
            self._log.warning("partial.unreadable", group=command.group_id, error=str(error))
        return found

    async def save(self, command: GroupCommand, spot: Spot, task_index: int, sample: Trajectory) -> None:
        """Write a sample as far as it is. Raises nothing: without it, only work is lost."""
        task, number = spot
        partial = PartialSample(
            group_id=command.group_id,
            task_number=task,
            tokens=sample.table_row(task_index, number),
            min_version=sample.version_range[0],
        )
        self._written.add(command.group_id)
        key = f"{_folder(command)}/{task}-{number}.binpb"
        try:
            await self._blobs.put(key, partial.SerializeToString())
        except TemperError as error:
            self._log.warning("partial.unsaved", group=command.group_id, error=str(error))

    async def clear(self, command: GroupCommand, *, attempt: int) -> None:
        """Delete what a group left: it has its record, or nobody wants it."""
        if command.group_id in self._written or attempt > 1:
            self._written.discard(command.group_id)
            await self._delete(_folder(command))

    async def clear_job(self, job_id: str) -> None:
        """Delete everything of a job that is over."""
        await self._delete(f"{ROOT}/{job_id}")

    async def _keys(self, folder: str) -> list[str]:
        return sorted([ref.key async for ref in self._blobs.list(folder)])

    async def _delete(self, folder: str) -> None:
        try:
            for key in await self._keys(folder):
                await self._blobs.delete(key)
        except TemperError as error:
            self._log.warning("partial.left", folder=folder, error=str(error))


@dataclass(slots=True)
class Journal:
    """The partial of one sample while it is played."""

    partials: Partials
    """Where it is written."""
    command: GroupCommand
    """Its group."""
    spot: Spot
    """Its place in the group."""
    task_index: int
    """Its task in the split."""
    recorded: SampleTokens | None = None
    """What an earlier delivery left."""
    _flushed: int = field(default=0)

    async def turn_ended(self, sample: Trajectory) -> None:
        """Write the sample when enough was generated since it was written last."""
        bound = self.partials.flush_tokens
        if bound and sample.action_tokens - self._flushed >= bound:
            self._flushed = sample.action_tokens
            await self.partials.save(self.command, self.spot, self.task_index, sample)


def _folder(command: GroupCommand) -> str:
    return f"{ROOT}/{command.job_id}/{command.group_id}"
