import hashlib

import numpy as np
import pytest
from safetensors.numpy import save
from tests.unit.rollout.world import JOB, Publisher

from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, TensorEntry
from temper.rollout.publication import fetch_manifest, fetch_weights, policy_files, verify
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, np.float32)


def entry(name: str, value: np.ndarray, shard: int = 0, **changes) -> TensorEntry:
    digest = hashlib.sha256(value.tobytes()).hexdigest()
    made = TensorEntry(name=name, shard=shard, dtype=changes.get("dtype", "F32"), sha256=digest)
    made.shape.extend(changes.get("shape", value.shape))
    return made


def test_what_matches_passes():
    verify([entry("a", A), entry("b", B, 1)], [save({"a": A}), save({"b": B})])


@pytest.mark.parametrize(
    ("entries", "shards", "words"),
    [
        ([entry("a", A), entry("b", B)], [save({"a": A})], "partial"),
        ([entry("a", A, 1)], [save({"a": A})], "partial"),
        ([entry("a", A)], [save({"a": A, "b": B})], "not in the manifest"),
        ([entry("a", A, shape=[3, 2])], [save({"a": A})], "the manifest says otherwise"),
        ([entry("a", A, dtype="BF16")], [save({"a": A})], "the manifest says otherwise"),
        ([entry("a", A)], [save({"a": A + 1})], "checksum"),
        ([entry("a", A)], [b"not safetensors"], "not a safetensors file"),
        ([entry("a", A)], [save({"a": A})[:-1]], "checksum"),
        ([entry("a", A)], [b"\xff" * 8], "not a safetensors file"),
        ([entry("a", A)], [b"\x02\0\0\0\0\0\0\0[]"], "not a safetensors file"),
    ],
)
def test_what_does_not_match_is_refused(entries, shards, words: str):
    with pytest.raises(Rejected, match=words):
        verify(entries, shards)


async def test_a_manifest_of_another_version_is_refused(memory_platform):
    blobs = BlobStore(f"file://{memory_platform.directory}/objects")
    await Publisher(blobs, memory_platform.bus).publish(3)
    entry = await (await memory_platform.bus.kv("policies")).get(JOB)
    record = PolicyRecord.FromString(entry.value)
    files = await policy_files(blobs, await fetch_weights(blobs, record))
    assert (files.version, files.config["vocab_size"], len(files.shards)) == (3, 264, 1)
    record.version = 4
    with pytest.raises(Rejected, match="of version 3, not 4"):
        await fetch_manifest(blobs, record)


async def test_bytes_that_are_no_manifest_are_refused(tmp_path):
    blobs = BlobStore(f"file://{tmp_path}/objects")
    record = PolicyRecord(version=0, manifest=await blobs.put("m.json", b"nope"))
    with pytest.raises(Rejected, match="not a WeightManifest"):
        await fetch_manifest(blobs, record)
