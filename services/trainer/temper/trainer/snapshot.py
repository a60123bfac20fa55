"""Snapshots: one atomic cut of everything that the next step depends on.

    snapshots/<job>/<step>/weights.safetensors, optimizer.safetensors, state.json     the parts
    snapshots/<job>/<step>/manifest.json                                              written last, with SHA-256 of each part

A snapshot without manifest does not exist. After a write the parts are read back and compared with their checksums; only then are
older ones forgotten. ``newest`` verifies before it returns, and falls back to the one before, saying so. No pickle anywhere.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from temper.api.common.v1.common_pb2 import BlobRef
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected
from temper.trainer.engine.base import EngineState

KEEP = 2  # the newest, and the one before it in case the newest turns out to be broken
FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One cut."""

    step: int
    """Optimizer steps taken when it was made; its place in the store."""
    engine: EngineState
    """Weights, optimizer, RNG."""
    config: Mapping[str, Any]
    """The model's ``config.json``."""
    facts: Mapping[str, Any]
    """The ledger and the session's counters, as JSON values."""


@dataclass(slots=True)
class Recovery:
    """What ``newest`` found."""

    snapshot: Snapshot | None = None
    broken: list[str] = field(default_factory=list[str])
    """What was wrong with newer snapshots, for people."""


class Snapshots:
    """The snapshots of one job in object storage."""

    def __init__(self, blobs: BlobStore, job_id: str, *, keep: int = KEEP) -> None:
        self._blobs = blobs
        self._root = f"snapshots/{job_id}"
        self._keep = keep

    async def save(self, snapshot: Snapshot) -> None:
        """Write, verify, then forget the oldest. Raises Unavailable or Exhausted; a failed save leaves the others as they are."""
        folder = self._folder(snapshot.step)
        state = {"engine": snapshot.engine.facts, "config": snapshot.config, "facts": snapshot.facts}
        parts = {**snapshot.engine.files, STATE: json.dumps(state, sort_keys=True).encode()}
        refs = {name: await self._blobs.put(f"{folder}/{name}", data) for name, data in parts.items()}
        for ref in refs.values():
            await self._blobs.get(ref)  # what cannot be read back must not become the only copy
        manifest = {
            "format": FORMAT,
            "step": snapshot.step,
            "parts": {name: {"sha256": ref.sha256, "size": ref.size} for name, ref in refs.items()},
        }
        await self._blobs.put(f"{folder}/{MANIFEST}", json.dumps(manifest, sort_keys=True).encode())
        await self._forget(snapshot.step)

    async def newest(self) -> Recovery:
        """The newest whole snapshot, and what was wrong with the ones that are newer."""
        found = Recovery()
        for step in sorted(await self._steps(), reverse=True):
            try:
                found.snapshot = await self._load(step)
            except Rejected as error:
                found.broken.append(f"snapshot of step {step}: {error}")
                _log.warning("snapshot.broken", root=self._root, step=step, error=str(error))
            else:
                break
        return found

    async def clear(self) -> None:
        """Forget all of them: the job is over."""
        for step in await self._steps():
            await self._delete(step)

    async def _load(self, step: int) -> Snapshot:
        folder = self._folder(step)
        try:
            manifest = json.loads(await self._blobs.read(f"{folder}/{MANIFEST}"))
            parts = {
                name: (str(part["sha256"]), int(part["size"])) for name, part in manifest["parts"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Rejected(f"manifest is not readable: {error}", field=MANIFEST) from None
        data = {
            name: await self._blobs.get(BlobRef(key=f"{folder}/{name}", sha256=digest, size=size))
            for name, (digest, size) in parts.items()
        }
        state = json.loads(data.pop(STATE))
        return Snapshot(step, EngineState(data, state["engine"]), state["config"], state["facts"])

    async def _steps(self) -> list[int]:
        """Steps of snapshots that have a manifest."""
        keys = [ref.key async for ref in self._blobs.list(self._root)]
        return [int(key.split("/")[-2]) for key in keys if key.endswith(f"/{MANIFEST}")]

    async def _forget(self, newest: int) -> None:
        older = sorted(step for step in await self._steps() if step <= newest)
        for step in older[: -self._keep]:
            await self._delete(step)

    async def _delete(self, step: int) -> None:
        folder = self._folder(step)
        await self._blobs.delete(f"{folder}/{MANIFEST}")  # first: the rest is then no snapshot any more
        for key in [ref.key async for ref in self._blobs.list(folder)]:
            await self._blobs.delete(key)

    def _folder(self, step: int) -> str:
        return f"{self._root}/{step:010d}"
