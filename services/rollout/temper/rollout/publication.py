"""What a trainer published, fetched and verified: nothing that is partial or altered reaches an engine.

A version is whole, or a delta on the one before. :func:`fetch_weights` walks from the newest manifest back to what is held already, or
to full weights, and applies the deltas on the way forth. Each names its base by the checksum of the base's manifest and every tensor by
the checksum of what it must become, so a delta on a wrong base is refused before anything is computed, and a wrong result after.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TensorEntry, WeightManifest
from temper.rollout.codec import Codec
from temper.rollout.engine.base import PolicyFiles
from temper.runtime.blobs import BlobStore
from temper.runtime.delta import apply
from temper.runtime.errors import Rejected

_CHAT_FILES = ("tokenizer.json", "temper_chat.json")
_HEADER = struct.Struct("<Q")  # a safetensors file starts with the length of its JSON header
_WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1}
_DELTAS = ("xor", "overwrite")


@dataclass(frozen=True, slots=True)
class Weights:
    """One version as a worker holds it: verified."""

    manifest: WeightManifest
    """Of this version."""
    digest: str
    """SHA-256 of the manifest: what a delta on it must name."""
    shards: tuple[bytes, ...] = field(repr=False)
    """Full safetensors files."""
    fetched_bytes: int
    """Bytes of weights that came over the wire for it."""


async def fetch_manifest(blobs: BlobStore, record: PolicyRecord) -> WeightManifest:
    """The manifest that a policy record names. Raises ``Rejected`` if it is not one, or speaks of another version."""
    return await _manifest(blobs, record.manifest, record.version)


async def _manifest(blobs: BlobStore, ref: BlobRef, version: int) -> WeightManifest:
    manifest = await read_manifest(blobs, ref)
    if manifest.version != version:
        raise Rejected(f"manifest {ref.key} is of version {manifest.version}, not {version}")
    return manifest


async def read_manifest(blobs: BlobStore, ref: BlobRef) -> WeightManifest:
    """A manifest by itself. Raises ``Rejected`` if it is not one, or contradicts itself."""
    raw = await blobs.get(ref)
    try:
        manifest = json_format.Parse(raw, WeightManifest())
    except json_format.ParseError as broken:
        raise Rejected(f"manifest {ref.key} is not a WeightManifest: {broken}") from None
    if manifest.HasField("base_version") != bool(manifest.delta):
        raise Rejected(f"manifest {ref.key} does not say what it builds on and how")
    if manifest.delta and (manifest.delta not in _DELTAS or not manifest.HasField("base_manifest")):
        raise Rejected(
            f"manifest {ref.key} is a delta of an unknown kind ({manifest.delta!r}) or names no base"
        )
    if manifest.delta and manifest.base_version >= manifest.version:
        raise Rejected(
            f"manifest {ref.key} builds on version {manifest.base_version}, which does not come before"
        )
    return manifest


async def fetch_codec(blobs: BlobStore, manifest: WeightManifest) -> Codec:
    """Tokenizer and chat format that travel with the weights."""
    files = {name: await blobs.get(manifest.files[name]) for name in _CHAT_FILES if name in manifest.files}
    return Codec.read(files)


async def fetch_weights(blobs: BlobStore, record: PolicyRecord, held: Weights | None = None) -> Weights:
    """The weights that a policy record names. What is ``held`` is built on where it is in the way.

    Raises ``Rejected`` for anything that is partial, altered, or does not fit together.
    """
    ref = record.manifest
    manifest = await _manifest(blobs, ref, record.version)
    steps: list[tuple[WeightManifest, str]] = []
    while manifest.delta and not (held is not None and held.digest == ref.sha256):
        steps.append((manifest, ref.sha256))
        ref = manifest.base_manifest
        manifest = await _manifest(blobs, ref, manifest.base_version)
    if held is not None and held.digest == ref.sha256:
        weights = Weights(held.manifest, held.digest, held.shards, 0)
    else:
        shards = [await blobs.get(shard) for shard in manifest.shards]
        await asyncio.to_thread(verify, manifest.tensors, shards)
        weights = Weights(manifest, ref.sha256, tuple(shards), sum(map(len, shards)))
    for manifest, digest in reversed(steps):
        parts = [await blobs.get(shard) for shard in manifest.shards]
        weights = await asyncio.to_thread(build_on, weights, manifest, digest, parts)
    return weights


async def policy_files(blobs: BlobStore, weights: Weights) -> PolicyFiles:
    """What an engine takes."""
    manifest = weights.manifest
    if "config.json" not in manifest.files:
        raise Rejected("the published policy has no config.json", field="files")
    config: Any = json.loads(await blobs.get(manifest.files["config.json"]))
    return PolicyFiles(manifest.version, config, weights.shards)


def build_on(base: Weights, manifest: WeightManifest, digest: str, parts: Sequence[bytes]) -> Weights:
    """The version that a delta leads to. ``base`` stays as it is.

    Raises ``Rejected`` when the delta is of another base, or does not lead to what its manifest says.
    """
    if manifest.base_manifest.sha256 != base.digest:
        raise Rejected(
            f"version {manifest.version} is a delta on another version {manifest.base_version} than the one held "
            f"({base.manifest.version}, manifest {base.digest[:12]})"
        )
    shards = [bytearray(shard) for shard in base.shards]
    found = [dict(_tensors(number, shard)) for number, shard in enumerate(shards)]
    changes = {
        name: each for number, part in enumerate(parts) for name, each in _tensors(number, part).items()
    }
    before = {entry.name: entry for entry in base.manifest.tensors}
    for entry in manifest.tensors:
        old = before.pop(entry.name, None)
        if old is None or (old.dtype, old.shape, old.shard) != (entry.dtype, entry.shape, entry.shard):
            raise Rejected(f"tensor {entry.name} is not in the version that the delta builds on")
        tensor, change = found[entry.shard][entry.name], changes.pop(entry.name, None)
        if change is not None:
            apply(tensor.raw, change.raw, width=_WIDTHS.get(entry.dtype, 1))
        if (entry.sha256 if change is None else _digest(tensor.raw)) != (
            old.sha256 if change is None else entry.sha256
        ):
            raise Rejected(f"tensor {entry.name} does not match its checksum after the delta")
    if before or changes:
        raise Rejected(
            f"tensor {[*before, *changes][0]} is in the base or the delta, and not in the manifest"
        )
    size = base.fetched_bytes + sum(map(len, parts))
    del found  # the views that keep the arrays from being given away
    return Weights(manifest, digest, tuple(map(bytes, shards)), size)


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
        if _digest(tensor.raw) != entry.sha256:
            raise Rejected(f"tensor {entry.name} does not match its checksum")
    extra = [name for tensors in found for name in tensors]
    if extra:
        raise Rejected(f"tensor {extra[0]} is in a shard and not in the manifest")


def _digest(raw: memoryview) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: Sequence[int]
    raw: memoryview


def _tensors(number: int, shard: bytes | bytearray) -> Mapping[str, _Tensor]:
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
