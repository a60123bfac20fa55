"""Snapshots: one atomic cut of everything that the next step depends on, in one place that keeps them.

    snapshots/<job>/<step>/<writer>.weights.safetensors, <writer>.optimizer.safetensors, <writer>.state.json     the parts
    snapshots/<job>/<step>/manifest.json                written last, with the name and SHA-256 of each part

A snapshot without manifest does not exist. Parts are read back and compared with their checksums before the manifest is written, and
only then are older ones forgotten; whatever a writer that died left behind goes with them. Every writer has names of its own: a step that
is made again cannot tear the snapshot that is there. No pickle anywhere.
"""

import asyncio
import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temper.api.common.v1.common_pb2 import BlobRef
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected, TemperError
from temper.trainer.engine.base import EngineState

KEEP = 2  # the newest, and the one before it in case the newest turns out to be broken
FORMAT = 2
MANIFEST, STATE = "manifest.json", "state.json"
ROOT = "snapshots"


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


class Snapshots:
    """The snapshots of one job in one place."""

    def __init__(self, blobs: BlobStore, job_id: str, *, keep: int = KEEP, read_back: bool = True) -> None:
        """``read_back``: whether parts are read and compared before they count."""
        self._blobs = blobs
        self._root = f"{ROOT}/{job_id}"
        self._keep = keep
        self._read_back = read_back

    async def save(self, snapshot: Snapshot) -> None:
        """Write, verify, then forget the oldest. Raises Unavailable or Exhausted; a failed save leaves the others as they are."""
        folder = self._folder(snapshot.step)
        writer = secrets.token_hex(4)
        state = {"engine": snapshot.engine.facts, "config": snapshot.config, "facts": snapshot.facts}
        parts = {**snapshot.engine.files, STATE: json.dumps(state, sort_keys=True).encode()}
        try:
            refs = {
                name: await self._write(f"{folder}/{writer}.{name}", data) for name, data in parts.items()
            }
            manifest = {
                "format": FORMAT,
                "step": snapshot.step,
                "parts": {
                    name: {"key": ref.key, "sha256": ref.sha256, "size": ref.size}
                    for name, ref in refs.items()
                },
            }
            await self._blobs.put(f"{folder}/{MANIFEST}", json.dumps(manifest, sort_keys=True).encode())
        except TemperError:
            await self._discard([f"{folder}/{writer}.{name}" for name in parts])
            await self._leave(folder)
            raise
        await self._forget(snapshot.step)

    async def _write(self, key: str, data: bytes) -> BlobRef:
        ref = await self._blobs.put(key, data)
        if self._read_back:
            await self._blobs.get(ref)  # what cannot be read back must not become the only copy
        return ref

    async def _discard(self, keys: list[str]) -> None:
        """Parts that will be no snapshot take no room: the next try may need it."""
        with suppress(TemperError):
            for key in keys:
                await self._blobs.delete(key)

    async def steps(self) -> list[int]:
        """Steps of snapshots that have a manifest, newest first."""
        return sorted((step for step, whole in (await self._held()).items() if whole), reverse=True)

    async def load(self, step: int) -> Snapshot:
        """A snapshot, every byte compared with its checksum. Raises Rejected naming the part that is not whole."""
        folder = self._folder(step)
        manifest = await self._manifest(f"{folder}/{MANIFEST}", step)
        data = {name: await self._blobs.get(ref) for name, ref in manifest.items()}
        try:
            state = json.loads(data.pop(STATE))
            return Snapshot(step, EngineState(data, state["engine"]), state["config"], state["facts"])
        except (ValueError, KeyError, TypeError) as error:
            raise Rejected(f"it holds no {error}", field=STATE) from None

    async def _manifest(self, key: str, step: int) -> dict[str, BlobRef]:
        """The parts by name."""
        try:
            manifest = json.loads(await self._blobs.read(key))
            known, own = int(manifest["format"]), int(manifest["step"])
            refs = {
                str(name): BlobRef(key=str(part["key"]), sha256=str(part["sha256"]), size=int(part["size"]))
                for name, part in manifest["parts"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Rejected(f"manifest is not readable: {error}", field=MANIFEST) from None
        if known != FORMAT:
            raise Rejected(f"it has format {known}, this trainer reads format {FORMAT}", field=MANIFEST)
        if own != step:
            raise Rejected(f"manifest is that of step {own}", field=MANIFEST)
        return refs

    async def remove(self, steps: Iterable[int]) -> None:
        """Forget some."""
        for step in steps:
            await self._delete(step)

    async def clear(self) -> None:
        """Forget all of them: the job is over."""
        for step in await self._held():
            await self._delete(step)
        await self._leave(self._root)

    async def _held(self) -> dict[int, bool]:
        """Steps of which anything is there, and whether that is a snapshot."""
        held: dict[int, bool] = {}
        async for ref in self._blobs.list(self._root):
            *_, step, name = ref.key.split("/")
            if step.isdigit():
                held[int(step)] = held.get(int(step), False) or name == MANIFEST
        return held

    async def _forget(self, newest: int) -> None:
        """Of what is no newer, keep the last few; the rest goes, and so does what never became a snapshot."""
        older = {step: whole for step, whole in (await self._held()).items() if step <= newest}
        kept = sorted(step for step, whole in older.items() if whole)[-self._keep :]
        for step in older.keys() - set(kept):
            await self._delete(step)

    async def _delete(self, step: int) -> None:
        folder = self._folder(step)
        await self._blobs.delete(f"{folder}/{MANIFEST}")  # first: the rest is then no snapshot any more
        for key in [ref.key async for ref in self._blobs.list(folder)]:
            await self._blobs.delete(key)
        await self._leave(folder)

    async def _leave(self, folder: str) -> None:
        """On a disk an empty directory would stay for each step of a job."""
        if (place := self._blobs.local_path(folder)) is not None:
            with suppress(OSError):  # it is gone, or somebody else has put something there
                await asyncio.to_thread(place.rmdir)

    def _folder(self, step: int) -> str:
        return f"{self._root}/{step:010d}"
