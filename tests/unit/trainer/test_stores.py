"""Snapshots, published weights and the policy record, each against its own store."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load as read_safetensors
from tests.unit.trainer.world import JOB

from temper.api.trainer.v1.trainer_pb2 import PolicyRecord
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Conflict, Stale, Unavailable
from temper.trainer.book import PolicyBook
from temper.trainer.config import PublicationConfig
from temper.trainer.engine.base import EngineState, NamedTensor
from temper.trainer.levels import Level, newest
from temper.trainer.patience import Patience
from temper.trainer.snapshot import Snapshot, Snapshots
from temper.trainer.weights import Publisher, entries, safetensors

KEEP_TWO = PublicationConfig(keep_versions=2)


def snapshot(step, data=b"weights"):
    state = EngineState({"weights.safetensors": data, "optimizer.safetensors": b"moments"}, {"rng": "00"})
    return Snapshot(step, state, {"vocab_size": 9}, {"ledger": {"step": step}})


async def anything(_):
    """A job that takes up any snapshot."""


async def look(store, accept=anything):
    return await newest([Level("object storage", store)], accept)


@pytest.fixture
def blobs(tmp_path):
    return BlobStore((tmp_path / "objects").as_uri())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "objects" / "snapshots" / JOB


async def test_what_was_saved_comes_back(blobs):
    await Snapshots(blobs, JOB).save(snapshot(3))
    found = await look(Snapshots(blobs, JOB))
    assert found.snapshot == snapshot(3)
    assert found.problems == []


async def test_only_the_last_two_are_kept(blobs, folder):
    store = Snapshots(blobs, JOB)
    for step in (1, 2, 3, 4):
        await store.save(snapshot(step))
    assert sorted(path.parent.name for path in folder.glob("*/manifest.json")) == ["0000000003", "0000000004"]
    assert not list((folder / "0000000001").glob("*"))


async def test_a_snapshot_without_manifest_does_not_exist(blobs, folder):
    store = Snapshots(blobs, JOB)
    await store.save(snapshot(1))
    await store.save(snapshot(2))
    (folder / "0000000002" / "manifest.json").unlink()
    found = await look(store)
    assert found.snapshot == snapshot(1)
    assert found.problems == []


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("harm", ["truncated", "altered", "missing"])
async def test_a_damaged_file_is_noticed_and_the_one_before_is_used(blobs, folder, name, harm):
    store = Snapshots(blobs, JOB)
    await store.save(snapshot(1))
    await store.save(snapshot(2, data=b"other weights"))
    (victim,) = (folder / "0000000002").glob(name if name == "manifest.json" else f"*.{name}")
    match harm:
        case "truncated":
            victim.write_bytes(victim.read_bytes()[:-2])
        case "altered":
            victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
        case _:
            victim.unlink()
    found = await look(store)
    assert found.snapshot == snapshot(1)
    if (name, harm) != ("manifest.json", "missing"):
        assert len(found.problems) == 1
        assert "step 2" in found.problems[0]


async def test_an_empty_store_has_no_snapshot(blobs):
    assert (await look(Snapshots(blobs, JOB))).snapshot is None


async def test_a_failed_save_leaves_the_older_ones(blobs, monkeypatch):
    store = Snapshots(blobs, JOB)
    await store.save(snapshot(1))
    put = blobs.put

    async def full(key, data):
        if key.endswith("state.json"):
            raise Unavailable("no space")
        return await put(key, data)

    monkeypatch.setattr(blobs, "put", full)
    with pytest.raises(Unavailable):
        await store.save(snapshot(2))
    assert (await look(store)).snapshot == snapshot(1)


def tensors():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    return [
        NamedTensor("a.weight", "F32", (2, 3), values.tobytes()),
        NamedTensor("b", "BF16", (1,), b"\x80\x3f"),
    ]


def test_our_safetensors_are_read_by_the_library():
    found = read_safetensors(safetensors(tensors()))
    assert found["a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].dtype == torch.bfloat16
    assert found["b"].item() == 1.0


def test_each_tensor_has_its_own_checksum():
    one, two = entries(tensors())
    assert len({one.sha256, two.sha256}) == 2


async def test_a_manifest_is_canonical_json_and_names_the_files_that_travel_along(blobs):
    config = await blobs.put("files/config.json", b"{}")
    ref = await Publisher(blobs, JOB, {"config.json": config}, KEEP_TWO).publish(3, tensors(), now=1.7e9)
    text = await blobs.get(ref)
    manifest = json.loads(text)
    assert text == json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    assert manifest["files"]["config.json"]["key"] == "files/config.json"
    assert manifest["version"] == "3"


async def test_two_writers_of_one_version_do_not_touch_each_others_files(blobs):
    first = await Publisher(blobs, JOB, {}, KEEP_TWO).publish(0, tensors(), now=1.0)
    await Publisher(blobs, JOB, {}, KEEP_TWO).publish(0, tensors()[:1], now=2.0)
    assert json.loads(await blobs.get(first))["tensors"][1]["name"] == "b"


class FlakyBucket:
    """A bucket whose answers get lost after the write was made."""

    def __init__(self, inner, losses):
        self._inner = inner
        self._losses = losses

    async def get(self, key):
        return await self._inner.get(key)

    async def create(self, key, value):
        revision = await self._inner.create(key, value)
        return self._answer(revision)

    async def update(self, key, value, revision):
        found = await self._inner.update(key, value, revision)
        return self._answer(found)

    def _answer(self, revision):
        if self._losses:
            self._losses -= 1
            raise Unavailable("the answer got lost")
        return revision


async def test_a_write_whose_answer_got_lost_is_recognised_as_our_own(world):
    book = PolicyBook(FlakyBucket(await world.bus.kv("policies"), 1), JOB, "t1", Patience(world.clock, 5.0))  # type: ignore[arg-type]  # the three methods it uses
    await book.open()
    await book.write(PolicyRecord(job_id=JOB, version=0, fence=1))
    await book.write(PolicyRecord(job_id=JOB, version=1, fence=1))
    assert (await world.record()).version == 1


async def test_a_write_over_somebody_elses_is_stale(world):
    kv = await world.bus.kv("policies")
    book = PolicyBook(kv, JOB, "t1", Patience(world.clock, 5.0))
    await book.open()
    await kv.put(JOB, PolicyRecord(job_id=JOB, trainer="t2").SerializeToString())
    with pytest.raises(Stale, match="another trainer"):
        await book.write(PolicyRecord(job_id=JOB, version=1))
    with pytest.raises(Conflict):
        await kv.create(JOB, b"")


async def test_patience_ends_with_the_last_error(world):
    tries = 0

    async def never():
        nonlocal tries
        tries += 1
        raise Unavailable(f"try {tries}")

    with pytest.raises(Unavailable, match="try"):
        await Patience(world.clock, 0.2)(never, "nothing")
    assert tries > 1
