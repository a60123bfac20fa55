"""What a trainer published, fetched and verified: nothing that is partial or altered reaches an engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TensorEntry, WeightManifest
from temper.rollout.codec import Codec
from temper.rollout.engine.base import PolicyFiles
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected

_CHAT_FILES = ("tokenizer.json", "temper_chat.json")
_HEADER = struct.Struct("<Q")  # a safetensors file starts with the length of its JSON header


async def fetch_manifest(blobs: BlobStore, record: PolicyRecord) -> WeightManifest:
    """The manifest that a policy record names. Raises ``Rejected`` if it is not one, or speaks of another version."""
    raw = await blobs.get(record.manifest)
    try:
        manifest = json_format.Parse(raw, WeightManifest())
    except json_format.ParseError as broken:
        raise Rejected(f"manifest {record.manifest.key} is not a WeightManifest: {broken}") from None
    if manifest.version != record.version:
        raise Rejected(
            f"manifest {record.manifest.key} is of version {manifest.version}, not {record.version}"
        )
    if manifest.HasField("base_version"):
        raise Rejected(f"manifest {record.manifest.key} is a delta; only full weights are understood")
    return manifest


async def fetch_codec(blobs: BlobStore, manifest: WeightManifest) -> Codec:
    """Tokenizer and chat format that travel with the weights."""
    files = {name: await blobs.get(manifest.files[name]) for name in _CHAT_FILES if name in manifest.files}
    return Codec.read(files)


async def fetch_weights(blobs: BlobStore, manifest: WeightManifest) -> PolicyFiles:
    """Config and shards, each tensor against its checksum."""
    if "config.json" not in manifest.files:
        raise Rejected("the published policy has no config.json", field="files")
    config: Any = json.loads(await blobs.get(manifest.files["config.json"]))
    shards = [await blobs.get(ref) for ref in manifest.shards]
    await asyncio.to_thread(verify, manifest.tensors, shards)
    return PolicyFiles(manifest.version, config, tuple(shards))


def verify(entries: Sequence[TensorEntry], shards: Sequence[bytes]) -> None:
    """Check that the shards hold exactly the tensors of the manifest, byte for byte. Raises ``Rejected``."""
    found = [dict(_tensors(number, shard)) for number, shard in enumerate(shards)]
    for entry in entries:
        if entry.shard >= len(found) or entry.name not in found[entry.shard]:
            raise Rejected(f"tensor {entry.name} is not in shard {entry.shard}: the publication is partial")
        tensor = found[entry.shard].pop(entry.name)
        if tensor.dtype != entry.dtype or list(tensor.shape) != list(entry.shape):
            raise Rejected(
                f"tensor {entry.name} is {tensor.dtype}{list(tensor.shape)}, the manifest says otherwise"
            )
        if hashlib.sha256(tensor.raw).hexdigest() != entry.sha256:
            raise Rejected(f"tensor {entry.name} does not match its checksum")
    extra = [name for tensors in found for name in tensors]
    if extra:
        raise Rejected(f"tensor {extra[0]} is in a shard and not in the manifest")


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: Sequence[int]
    raw: memoryview


def _tensors(number: int, shard: bytes) -> Mapping[str, _Tensor]:
    """Tensors of a safetensors file, without a tensor library."""
    try:
        (length,) = _HEADER.unpack_from(shard)
        header: Any = json.loads(shard[_HEADER.size : _HEADER.size + length])
        body = memoryview(shard)[_HEADER.size + length :]
        return {
            name: _Tensor(each["dtype"], each["shape"], body[slice(*each["data_offsets"])])
            for name, each in header.items()
            if name != "__metadata__"
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as broken:
        raise Rejected(f"shard {number} is not a safetensors file: {broken!r}") from None
