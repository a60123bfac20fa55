"""Publication of policy versions: safetensors and a manifest with a checksum per tensor, in the Hugging Face layout.

    policies/<job>/<version>/model.<writer>.safetensors     full weights, or
    policies/<job>/<version>/delta.<writer>.safetensors     what changed since the version before
    policies/<job>/<version>/manifest.<writer>.json         canonical JSON of WeightManifest, written last

Every ``full_every``-th publication is full, and so is the first of a process, the last of a job, and any whose delta would not be
worth it. A delta names the manifest it builds on by its checksum and gives the checksum of every tensor it leads to, so that it can be
applied to nothing else, and what comes of it is known to be right. A delta's file holds one tensor of bytes (``temper.runtime.delta``)
for each tensor that changed.

Every writer has names of its own, so what a policy record names is never overwritten, not even by a trainer that does not know yet that
it was replaced.

The files that make a policy directory whole (config.json, tokenizer.json, temper_chat.json) are put once and named by every
manifest. Readers hold on to a version while they load it, so the last few stay, with all that they build on; version 0 stays for
comparison.
"""

import asyncio
import hashlib
import json
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import TensorEntry, WeightManifest
from temper.runtime.blobs import BlobStore
from temper.runtime.delta import Kind, encode
from temper.trainer.config import PublicationConfig
from temper.trainer.engine.base import NamedTensor

POLICIES, REWARD_MODELS = "policies", "reward_models"
"""Roots of what jobs publish."""
ALIGNMENT = 8  # safetensors wants the data to begin at a multiple of eight bytes
WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1}
KINDS = {"xor": Kind.XOR, "overwrite": Kind.OVERWRITE}


def safetensors(tensors: Sequence[NamedTensor]) -> bytes:
    """One safetensors file. The format is a length, a JSON header, the bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        end = at + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return b"".join((struct.pack("<Q", len(text)), text, *(tensor.data for tensor in tensors)))


def entries(tensors: Sequence[NamedTensor]) -> list[TensorEntry]:
    """The manifest's line for each tensor."""
    return [
        TensorEntry(name=t.name, dtype=t.dtype, shape=t.shape, sha256=hashlib.sha256(t.data).hexdigest())
        for t in tensors
    ]


@dataclass(frozen=True, slots=True)
class _Base:
    """The last publication: what the next one may be a delta to."""

    version: int
    manifest: BlobRef
    tensors: Sequence[NamedTensor]
    deltas: int
    """Deltas since the last full one, itself included."""


class Publisher:
    """Writes the versions of one job."""

    def __init__(
        self,
        blobs: BlobStore,
        job_id: str,
        files: Mapping[str, BlobRef],
        settings: PublicationConfig,
        *,
        root: str = POLICIES,
    ) -> None:
        self._blobs = blobs
        self._job = job_id
        self._root = f"{root}/{job_id}"
        self._files = dict(files)
        self._settings = settings
        self._writer = secrets.token_hex(4)
        self._base: _Base | None = None

    async def publish(
        self, version: int, tensors: Sequence[NamedTensor], *, now: float, full: bool = False
    ) -> BlobRef:
        """Put one version; returns the manifest. Nobody sees a half-written one: the manifest comes last.

        ``full``: no delta, whatever the settings say.
        """
        base = None if full else self._base_for(version, tensors)
        hashing = asyncio.to_thread(
            entries, tensors
        )  # beside what else takes time: threads that run side by side
        if base is None:
            shard, lines = await asyncio.gather(self._put(version, "model", tensors), hashing)
        else:
            changes, lines = await asyncio.gather(
                asyncio.to_thread(self._changes, base.tensors, tensors), hashing
            )
            if changes is None:
                base, shard = None, await self._put(version, "model", tensors)
            else:
                shard = await self._put(version, "delta", changes)
        manifest = self._manifest(version, shard, lines, base, now)
        ref = await self._blobs.put(
            f"{self._folder(version)}/manifest.{self._writer}.json", canonical_json(manifest)
        )
        if self._settings.full_every > 1:
            self._base = _Base(version, ref, tensors, 0 if base is None else base.deltas + 1)
        return ref

    def _base_for(self, version: int, tensors: Sequence[NamedTensor]) -> _Base | None:
        """What this version may be a delta to; None when it is time for full weights, or the model has another shape."""
        base = self._base
        if base is None or base.version >= version or base.deltas + 2 > self._settings.full_every:
            return None
        same = [(t.name, t.dtype, t.shape) for t in base.tensors] == [
            (t.name, t.dtype, t.shape) for t in tensors
        ]
        return base if same else None

    async def _put(self, version: int, kind: str, tensors: Sequence[NamedTensor]) -> BlobRef:
        return await self._blobs.put(
            f"{self._folder(version)}/{kind}.{self._writer}.safetensors", safetensors(tensors)
        )

    def _changes(
        self, before: Sequence[NamedTensor], after: Sequence[NamedTensor]
    ) -> Sequence[NamedTensor] | None:
        """The delta's tensors; None when they save too little. Stops as soon as that is certain."""
        bound = self._settings.delta_max_ratio * sum(len(tensor.data) for tensor in after)
        kind, changed, size = KINDS[self._settings.delta], list[NamedTensor](), 0
        for old, new in zip(before, after, strict=True):
            data = encode(old.data, new.data, width=WIDTHS.get(new.dtype, 1), kind=kind)
            if data is not None:
                changed.append(NamedTensor(new.name, "U8", (len(data),), data))
                size += len(data)
            if size > bound:
                return None
        return changed

    def _manifest(
        self, version: int, shard: BlobRef, lines: Iterable[TensorEntry], base: _Base | None, now: float
    ) -> WeightManifest:
        created = Timestamp()
        created.FromNanoseconds(int(now * 1e9))
        manifest = WeightManifest(
            job_id=self._job,
            version=version,
            shards=[shard],
            tensors=lines,
            files=self._files,
            created_at=created,
        )
        if base is not None:
            manifest.delta, manifest.base_version = self._settings.delta, base.version
            manifest.base_manifest.CopyFrom(base.manifest)
        return manifest

    async def forget(self, newest: int, needed: Iterable[int] = ()) -> None:
        """Delete versions that nobody may still need: all but 0, the last few, the ``needed`` ones, and what those build on."""
        root = f"{self._root}/"
        oldest = newest - self._settings.keep_versions + 1
        held: dict[str, int] = {}
        async for ref in self._blobs.list(root.rstrip("/")):
            version = ref.key.removeprefix(root).partition("/")[0]
            if version.isdigit():
                held[ref.key] = int(version)
        full = {number for key, number in held.items() if key.rpartition("/")[2].startswith("model.")}
        first = max((number for number in full if number <= oldest), default=0)
        kept: set[int] = set()
        for version in needed:
            kept.update(range(max((number for number in full if number <= version), default=0), version + 1))
        for key in sorted(held, key=lambda key: not key.endswith(".json")):
            if 0 < held[key] < first and held[key] not in kept:
                await self._blobs.delete(key)

    def _folder(self, version: int) -> str:
        return f"{self._root}/{version:010d}"


def canonical_json(manifest: WeightManifest) -> bytes:
    """Sorted keys, no spaces: equal manifests are equal bytes."""
    return json.dumps(MessageToDict(manifest), sort_keys=True, separators=(",", ":")).encode()
