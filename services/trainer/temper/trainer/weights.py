"""Publication of policy versions: safetensors and a manifest with a checksum per tensor, in the Hugging Face layout.

    policies/<job>/<version>/model.<writer>.safetensors
    policies/<job>/<version>/manifest.<writer>.json     canonical JSON of WeightManifest, written last

Every writer has names of its own, so what a policy record names is never overwritten, not even by a trainer that does not know yet that
it was replaced.

The files that make a policy directory whole (config.json, tokenizer.json, temper_chat.json) are put once and named by every
manifest. Readers hold on to a version while they load it, so the last few stay; version 0 stays for comparison.
"""

import asyncio
import hashlib
import json
import secrets
import struct
from collections.abc import Mapping, Sequence

from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import TensorEntry, WeightManifest
from temper.runtime.blobs import BlobStore
from temper.trainer.engine.base import NamedTensor

ALIGNMENT = 8  # safetensors wants the data to begin at a multiple of eight bytes


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


class Publisher:
    """Writes the versions of one job."""

    def __init__(self, blobs: BlobStore, job_id: str, files: Mapping[str, BlobRef], *, keep: int) -> None:
        self._blobs = blobs
        self._job = job_id
        self._files = dict(files)
        self._keep = keep
        self._writer = secrets.token_hex(4)

    async def publish(self, version: int, tensors: Sequence[NamedTensor], *, now: float) -> BlobRef:
        """Put one version; returns the manifest. Nobody sees a half-written one: the manifest comes last."""
        folder = self._folder(version)
        data = safetensors(tensors)
        (
            shard,
            lines,
        ) = await asyncio.gather(  # both are hashing for the most part, on threads that run side by side
            self._blobs.put(f"{folder}/model.{self._writer}.safetensors", data),
            asyncio.to_thread(entries, tensors),
        )
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
        return await self._blobs.put(f"{folder}/manifest.{self._writer}.json", canonical_json(manifest))

    async def forget(self, newest: int) -> None:
        """Delete versions that nobody may still be loading: all but 0 and the last few."""
        root = f"policies/{self._job}/"
        kept = {0, *range(newest - self._keep + 1, newest + 1)}
        keys = [ref.key async for ref in self._blobs.list(root.rstrip("/"))]
        for key in sorted(keys, key=lambda key: not key.endswith(".json")):
            version = key.removeprefix(root).partition("/")[0]
            if version.isdigit() and int(version) not in kept and int(version) < newest:
                await self._blobs.delete(key)

    def _folder(self, version: int) -> str:
        return f"policies/{self._job}/{version:010d}"


def canonical_json(manifest: WeightManifest) -> bytes:
    """Sorted keys, no spaces: equal manifests are equal bytes."""
    return json.dumps(MessageToDict(manifest), sort_keys=True, separators=(",", ":")).encode()
