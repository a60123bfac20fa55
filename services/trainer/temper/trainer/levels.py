"""Where snapshots are kept: memory of the machine, its disk, the object store. Nearer is quicker and loses more.

| level | survives the loss of | how often |
| --- | --- | --- |
| memory | the process: files in a tmpfs | ``snapshots.memory_every`` steps |
| disk | the process and a restart of the machine | ``snapshots.disk_every`` steps |
| object storage | the machine | ``snapshot_every`` steps of the phase, in the job file |

A restart takes the newest snapshot of all levels that is whole and fits the job, of equal ones the nearest. One that is not is named
and the next is tried. A level that does not answer is passed over, but for the object store: without it nothing is certain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected, TemperError
from temper.trainer.config import SnapshotsConfig
from temper.trainer.snapshot import ROOT, Snapshot, Snapshots

MEMORY, DISK, STORE = "memory", "disk", "object storage"

Accept = Callable[[Snapshot], Awaitable[None]]
"""Takes a snapshot up; raises Rejected for one that does not fit."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Level:
    """One place of a job's snapshots."""

    name: str
    snapshots: Snapshots
    every: int | None = None
    """Steps between two; None: what the phase says."""

    @property
    def last(self) -> bool:
        """Whether nothing is kept behind it."""
        return self.name == STORE


@dataclass(slots=True)
class Found:
    """What a restart found."""

    snapshot: Snapshot | None = None
    level: str = ""
    """Where it was."""
    problems: list[str] = field(default_factory=list[str])
    """Newer snapshots that cannot be used, and levels that cannot be opened, for people."""


def levels(blobs: BlobStore, job_id: str, settings: SnapshotsConfig) -> tuple[Sequence[Level], Sequence[str]]:
    """The levels that the settings name, nearest first, and what is wrong with those that are left out."""
    made: list[Level] = []
    problems: list[str] = []
    for near in _near(settings):
        try:
            store = BlobStore(Path(near.directory).as_uri())
        except TemperError as error:
            problems.append(f"snapshots.{near.name}_dir: {error}; there is no level {near.name}")
            continue
        kept = Snapshots(store, job_id, keep=near.keep, read_back=near.name != MEMORY)
        made.append(Level(near.name, kept, near.every))
    made.append(Level(STORE, Snapshots(blobs, job_id, keep=settings.keep)))
    return made, problems


@dataclass(frozen=True, slots=True)
class _Near:
    """A level on this machine, as the settings have it."""

    name: str
    directory: str
    every: int
    keep: int


def _near(settings: SnapshotsConfig) -> Sequence[_Near]:
    memory = _Near(MEMORY, settings.memory_dir, settings.memory_every, settings.memory_keep)
    disk = _Near(DISK, settings.disk_dir, settings.disk_every, settings.disk_keep)
    return [level for level in (memory, disk) if level.directory]


async def sweep(settings: SnapshotsConfig, over: Callable[[str], Awaitable[bool]]) -> list[str]:
    """Delete what jobs that are over left on this machine: another one may have ended them. Gives their ids."""
    swept: set[str] = set()
    for near in _near(settings):
        try:
            store = BlobStore(Path(near.directory).as_uri())
            jobs = {ref.key.split("/")[1] async for ref in store.list(ROOT)}
            for job_id in sorted(jobs):
                if await over(job_id):
                    await Snapshots(store, job_id).clear()
                    swept.add(job_id)
        except TemperError as error:
            _log.warning("snapshot.not_swept", place=near.name, error=str(error))
    return sorted(swept)


async def newest(places: Sequence[Level], accept: Accept) -> Found:
    """Take up the newest snapshot that is whole and fits. Raises Unavailable when the last level does not answer."""
    found = Found()
    held: list[tuple[int, int]] = []
    for number, level in enumerate(places):
        try:
            held += [(-step, number) for step in await level.snapshots.steps()]
        except TemperError as error:
            if level.last:
                raise
            found.problems.append(f"{level.name}: {error}")
    for behind, number in sorted(held):
        level = places[number]
        try:
            snapshot = await level.snapshots.load(-behind)
            await accept(snapshot)
        except TemperError as error:
            if level.last and not isinstance(error, Rejected):
                raise
            found.problems.append(f"snapshot of step {-behind} ({level.name}): {error}")
            _log.warning("snapshot.refused", place=level.name, step=-behind, error=str(error))
        else:
            found.snapshot, found.level = snapshot, level.name
            break
    return found


async def clear(places: Sequence[Level]) -> None:
    """Forget all snapshots: the job is over. Raises Unavailable when the last level does not answer."""
    for level in places:
        try:
            await level.snapshots.clear()
        except TemperError as error:
            if level.last:
                raise
            _log.warning("snapshot.not_cleared", place=level.name, error=str(error))
