"""Weights as a trainer publishes them, over HTTP: whole and as deltas, checked to the byte, from the object store."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from safetensors.numpy import save
from tests.unit.rollout.serving.world import served, store_beside, write_directory

from temper.api.common.v1.common_pb2 import BlobRef
from temper.api.trainer.v1.trainer_pb2 import TensorEntry, WeightManifest
from temper.rollout.chat import byte_tokenizer
from temper.runtime.blobs import BlobStore
from temper.runtime.delta import Kind, encode

GENERATE: dict[str, Any] = {"tokens": [1, 2], "sampling": {"max_tokens": 6}, "seed": 1}
Change = Callable[[WeightManifest], None]
Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Published:
    """A version and where its manifest lies."""

    version: int
    tensors: Tensors
    ref: BlobRef


class Trainer:
    """Publishes the model of a directory with other numbers in it."""

    def __init__(self, directory: Path) -> None:
        self.blobs: BlobStore = store_beside(directory)
        self.config = (directory / "config.json").read_bytes()
        self.last: Published | None = None

    async def publish(self, version: int, *, delta: bool = False, change: Change | None = None) -> BlobRef:
        """A version whose numbers follow from it. ``change`` spoils the manifest before it is stored."""
        tensors = {"a": np.full((4, 4), version, np.float32), "b": np.arange(8, dtype=np.float32)}
        manifest = WeightManifest(job_id="job-1", version=version)
        for name, value in tensors.items():
            digest = hashlib.sha256(value.tobytes()).hexdigest()
            manifest.tensors.append(TensorEntry(name=name, dtype="F32", shape=value.shape, sha256=digest))
        content = tensors
        if delta:
            assert self.last is not None
            manifest.delta, manifest.base_version = "xor", self.last.version
            manifest.base_manifest.CopyFrom(self.last.ref)
            content = changes(self.last.tensors, tensors)
        manifest.shards.append(await self.blobs.put(f"w/{version}.safetensors", save(content)))
        manifest.files["config.json"].CopyFrom(await self.blobs.put("f/config.json", self.config))
        if change is not None:
            change(manifest)
        ref = await self.blobs.put(f"w/{version}.json", json_format.MessageToJson(manifest).encode())
        self.last = Published(version, tensors, ref)
        return ref


def changes(before: Tensors, after: Tensors) -> Tensors:
    """The tensors of a delta's file."""
    found = {
        name: encode(before[name].tobytes(), each.tobytes(), width=4, kind=Kind.XOR)
        for name, each in after.items()
    }
    return {name: np.frombuffer(each, np.uint8) for name, each in found.items() if each is not None}


def told(ref: BlobRef) -> dict[str, Any]:
    """What a client writes."""
    return {"key": ref.key, "sha256": ref.sha256, "size": ref.size}


async def test_a_manifest_and_a_directory_of_the_same_weights_are_the_same(directory: Path) -> None:
    trainer = Trainer(directory)
    ref = await trainer.publish(4)
    write_directory(directory.parent / "same")
    weights = await trainer.blobs.read("w/4.safetensors")
    (directory.parent / "same" / "model.safetensors").write_bytes(weights)
    async with served(directory) as server:
        published = (await server.post("/v1/weights", {"manifest": told(ref), "policy": "abort"})).json()
        one = (await server.post("/v1/generate", GENERATE)).json()
        written = (await server.post("/v1/weights", {"directory": "same"})).json()
        two = (await server.post("/v1/generate", GENERATE)).json()
    assert (published["version"], published["policy"], written["version"]) == (4, "abort", 5)
    assert (published["digest"], published["probe"]) == (written["digest"], written["probe"])
    assert (one["version"], one["tokens"]) == (4, two["tokens"])


async def test_a_delta_is_applied_to_what_serves_or_to_what_its_manifests_lead_back_to(
    directory: Path,
) -> None:
    trainer = Trainer(directory)
    await trainer.publish(1)
    second = await trainer.publish(2, delta=True)
    third = await trainer.publish(3, delta=True)
    fourth = await trainer.publish(4, delta=True)
    whole = {"w": await Trainer(directory).publish(9)}
    async with served(directory) as server:
        walked = await server.post("/v1/weights", {"manifest": told(second)})
        await trainer.blobs.delete("w/1.safetensors")  # what serves is enough from here
        built = await server.post("/v1/weights", {"manifest": told(third)})
        again = await server.post("/v1/weights", {"manifest": told(fourth), "version": 4})
        full = await server.post("/v1/weights", {"manifest": told(whole["w"])})
    assert [each.status_code for each in (walked, built, again, full)] == [200] * 4, again.text
    assert len({each.json()["digest"] for each in (walked, built, again, full)}) == 4


def spoil_tensor(manifest: WeightManifest) -> None:
    manifest.tensors[0].sha256 = "0" * 64


def forget_tensor(manifest: WeightManifest) -> None:
    manifest.tensors.add(name="c", dtype="F32", shape=[1], sha256="0" * 64)


def forget_config(manifest: WeightManifest) -> None:
    del manifest.files["config.json"]


def spoil_shard(manifest: WeightManifest) -> None:
    manifest.shards[0].sha256 = "0" * 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoil_tensor, "tensor a does not match its checksum"),
        (forget_tensor, "tensor c is not in shard 0"),
        (forget_config, "no config.json"),
        (spoil_shard, "does not match its checksum"),
    ],
)
async def test_what_is_partial_or_altered_is_refused_and_the_old_weights_serve_on(
    directory: Path, change: Change, words: str
) -> None:
    ref = await Trainer(directory).publish(3, change=change)
    async with served(directory) as server:
        refused = await server.post("/v1/weights", {"manifest": told(ref)})
        after = (await server.post("/v1/generate", GENERATE)).json()
    assert refused.status_code == 400
    assert words in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "manifest"
    assert after["version"] == 0


async def test_a_reference_that_is_wrong_is_refused_by_name(directory: Path) -> None:
    trainer = Trainer(directory)
    ref = await trainer.publish(3)
    other = await trainer.blobs.put("f/tokenizer.json", byte_tokenizer())
    foreign = await trainer.publish(4, change=lambda each: each.files["tokenizer.json"].CopyFrom(other))
    wrong: list[tuple[dict[str, Any], str, str | None]] = [
        ({"manifest": told(ref) | {"sha256": "0" * 64}}, "does not match its checksum", "manifest"),
        ({"manifest": told(ref) | {"size": 3}}, "instead of 3", "manifest"),
        ({"manifest": told(ref) | {"key": "w/none.json"}}, "w/none.json", "manifest"),
        ({"manifest": told(ref) | {"key": "../etc/passwd"}}, "key", "manifest"),
        ({"manifest": told(ref) | {"sha256": "x"}}, "sha256", "manifest.sha256"),
        ({"manifest": told(ref), "version": 7}, "is of version 3, not 7", "version"),
        ({"manifest": told(ref), "directory": "next"}, "not both", None),
        ({}, "give directory or manifest", None),
        ({"manifest": told(foreign)}, "tokenizer differs", "manifest"),
    ]
    async with served(directory) as server:
        for body, words, field in wrong:
            refused = await server.post("/v1/weights", body)
            assert refused.status_code == 400, body
            assert words in refused.json()["error"]["message"], refused.text
            assert refused.json()["error"]["param"] == field, refused.text
        unsized = told(ref) | {"size": None}
        assert (await server.post("/v1/weights", {"manifest": unsized})).json()["version"] == 3
        assert (
            await server.post("/v1/weights", {"manifest": unsized})
        ).status_code == 400  # it serves already


async def test_a_canary_may_be_a_published_version(directory: Path) -> None:
    ref = await Trainer(directory).publish(6)
    async with served(directory) as server:
        said = (await server.post("/v1/canary", {"manifest": told(ref), "steps": [0.5]})).json()
        await server.post("/v1/canary/abort", {})
    assert (said["name"], said["phase"], said["share"]) == ("v6", "running", 0.5)
