"""A trainer publishes full weights and deltas, workers take them up in any order: all end with the same bits, or refuse."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rollout.world import group, make_world
from tests.unit.trainer import world as trainer_world

from temper.api.rollout.v1.rollout_pb2 import PolicyLoaded
from temper.api.trainer.v1.trainer_pb2 import PolicyRecord, StartTraining, WeightManifest
from temper.client.runs.submit import base_of
from temper.rollout.chat import byte_chat, byte_tokenizer
from temper.rollout.publication import Weights, build_on, fetch_weights, policy_files
from temper.runtime.blobs import BlobStore
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Rejected
from temper.trainer.config import PublicationConfig
from temper.trainer.engine.base import NamedTensor
from temper.trainer.engine.fake import FakeEngine
from temper.trainer.session import Session
from temper.trainer.weights import Publisher, safetensors

JOB = "job-1"
SHAPES = {"a.weight": ("F32", (40, 5)), "b.weight": ("BF16", (300,)), "c.bias": ("F32", (7,))}


def weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    kinds = {"F32": np.uint32, "BF16": np.uint16}
    return {
        name: rng.integers(0, 2**16, shape).astype(kinds[dtype]) for name, (dtype, shape) in SHAPES.items()
    }


def named(values: dict[str, np.ndarray]) -> list[NamedTensor]:
    return [NamedTensor(name, SHAPES[name][0], SHAPES[name][1], v.tobytes()) for name, v in values.items()]


def changed(values: dict[str, np.ndarray], seed: int, share: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def noise(old: np.ndarray) -> np.ndarray:
        return rng.integers(1, np.iinfo(old.dtype).max, old.shape).astype(old.dtype)

    return {name: np.where(rng.random(v.shape) < share, v ^ noise(v), v) for name, v in values.items()}


@dataclass
class Trainer:
    """Publishes one version after another."""

    blobs: BlobStore
    settings: PublicationConfig
    values: dict[str, np.ndarray] = field(default_factory=lambda: weights(0))
    record: PolicyRecord = field(default_factory=PolicyRecord)
    version: int = -1
    publisher: Publisher | None = None

    async def publish(self, share: float = 0.02, *, full: bool = False) -> PolicyRecord:
        if self.publisher is None:
            files = {"config.json": await self.blobs.put("config.json", b'{"vocab_size":9}')}
            self.publisher = Publisher(self.blobs, JOB, files, self.settings)
        self.version += 1
        self.values = changed(self.values, self.version, share)
        manifest = await self.publisher.publish(self.version, named(self.values), now=1.0, full=full)
        await self.publisher.forget(self.version)
        self.record = PolicyRecord(job_id=JOB, version=self.version, manifest=manifest)
        return self.record

    async def manifest(self) -> WeightManifest:
        return json_format.Parse(await self.blobs.get(self.record.manifest), WeightManifest())

    @property
    def whole(self) -> tuple[bytes]:
        return (safetensors(named(self.values)),)


def trainer(folder: Path, **settings) -> Trainer:
    return Trainer(BlobStore(folder.as_uri()), PublicationConfig.model_validate({"full_every": 4} | settings))


@given(
    moves=st.lists(
        st.sampled_from(["publish", "publish", "full", "dense", "read 0", "read 1", "restart"]), max_size=25
    ),
    full_every=st.integers(1, 6),
    keep=st.integers(2, 4),
    kind=st.sampled_from(["xor", "overwrite"]),
)
@settings(max_examples=40, deadline=None)
def test_whoever_reads_whenever_has_the_weights_bit_by_bit(tmp_path_factory, moves, full_every, keep, kind):
    async def check() -> None:
        made = trainer(
            tmp_path_factory.mktemp("objects"), full_every=full_every, keep_versions=keep, delta=kind
        )
        held: dict[str, Weights | None] = {"read 0": None, "read 1": None}
        await made.publish()
        for move in [*moves, "read 0", "read 1", "new"]:
            match move:
                case "publish":
                    await made.publish()
                case "full":
                    await made.publish(full=True)
                case "dense":
                    await made.publish(1.0)
                case "restart":
                    made.publisher = None
                case _:
                    now = held[move] = await fetch_weights(made.blobs, made.record, held.get(move))
                    assert now.shards == made.whole
                    assert now.manifest.version == made.version
        stored = [ref.key async for ref in made.blobs.list(f"policies/{JOB}")]
        assert len({key.split("/")[2] for key in stored}) <= keep + full_every + 1

    asyncio.run(check())


async def test_every_nth_publication_is_full_and_so_are_the_last_and_one_that_changed_everything(tmp_path):
    made, kinds = trainer(tmp_path, full_every=3), list[str]()
    for share, full in [(0.02, False)] * 5 + [(1.0, False), (0.02, False), (0.02, True), (0.0, False)]:
        await made.publish(share, full=full)
        kinds.append((await made.manifest()).delta or "full")
    assert kinds == ["full", "xor", "xor", "full", "xor", "full", "xor", "full", "xor"]


async def test_a_delta_is_small_and_a_holder_of_its_base_fetches_no_more(tmp_path):
    made = trainer(tmp_path)
    before = await fetch_weights(made.blobs, await made.publish())
    after = await fetch_weights(made.blobs, await made.publish(), before)
    late = await fetch_weights(made.blobs, made.record)
    assert after.shards == late.shards == made.whole
    assert after.fetched_bytes < 0.3 * before.fetched_bytes
    assert late.fetched_bytes == before.fetched_bytes + after.fetched_bytes
    assert (await policy_files(made.blobs, after)).config == {"vocab_size": 9}


async def test_a_delta_on_a_wrong_base_is_refused_and_the_base_stays_as_it_is(tmp_path):
    made, other = trainer(tmp_path / "one"), trainer(tmp_path / "two")
    other.values = weights(8)
    wrong = await fetch_weights(other.blobs, await other.publish())
    await made.publish()
    await made.publish()
    manifest = await made.manifest()
    parts = [await made.blobs.get(ref) for ref in manifest.shards]
    with pytest.raises(Rejected, match="a delta on another version"):
        build_on(wrong, manifest, "0" * 64, parts)
    assert wrong.shards == other.whole
    # An honest base whose bytes are not what its manifest says is caught by the checksum of the result.
    base = await fetch_weights(made.blobs, PolicyRecord(version=0, manifest=manifest.base_manifest))
    spoilt = bytes([*base.shards[0][:-1], base.shards[0][-1] ^ 1])
    harmed = Weights(base.manifest, base.digest, (spoilt,), 0)
    manifest.tensors[-1].sha256 = "0" * 64
    with pytest.raises(Rejected, match="checksum after the delta"):
        build_on(harmed, manifest, "0" * 64, parts)


@pytest.mark.parametrize("harm", ["cut", "missing", "flip"])
async def test_a_spoilt_delta_is_refused(tmp_path, harm: str):
    made = trainer(tmp_path)
    await made.publish()
    before = await fetch_weights(made.blobs, made.record)
    await made.publish()
    (path,) = tmp_path.rglob("delta.*.safetensors")
    match harm:
        case "cut":
            path.write_bytes(path.read_bytes()[:-3])
        case "flip":
            path.write_bytes(path.read_bytes()[:-1] + b"\x5a")
        case _:
            path.unlink()
    with pytest.raises(Rejected):
        await fetch_weights(made.blobs, made.record, before)
    assert before.shards[0] != made.whole[0]
    assert (await fetch_weights(made.blobs, await made.publish(full=True), before)).shards == made.whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"delta": "zip"}, "unknown kind"),
        ({"delta": ""}, "builds on and how"),
        ({"baseVersion": "1"}, "does not come before"),
        ({"baseManifest": None}, "names no base"),
    ],
)
async def test_a_manifest_that_makes_no_sense_is_refused(tmp_path, changes: dict[str, str], words: str):
    made = trainer(tmp_path)
    await made.publish()
    await made.publish()
    told = json.loads(await made.blobs.get(made.record.manifest)) | changes
    text = json.dumps({key: value for key, value in told.items() if value is not None}).encode()
    record = PolicyRecord(version=1, manifest=await made.blobs.put("told.json", text))
    with pytest.raises(Rejected, match=words):
        await fetch_weights(made.blobs, record)


async def test_a_reader_that_finds_a_manifest_finds_all_that_it_builds_on(tmp_path):
    """Old versions go, but never one that a kept delta needs."""
    made = trainer(tmp_path, full_every=6, keep_versions=2)
    for _ in range(20):
        await made.publish()
        for manifest in tmp_path.rglob("manifest.*.json"):
            told = json_format.Parse(manifest.read_bytes(), WeightManifest())
            record = PolicyRecord(version=told.version)
            record.manifest.key = manifest.relative_to(tmp_path).as_posix()
            record.manifest.sha256 = hashlib.sha256(manifest.read_bytes()).hexdigest()
            record.manifest.size = manifest.stat().st_size
            if told.version >= made.version - 1:
                await fetch_weights(made.blobs, record)


async def test_whoever_starts_from_a_running_job_is_led_to_its_newest_full_weights(tmp_path):
    made = trainer(tmp_path)
    for _ in range(3):
        await made.publish()
    content = await made.blobs.get(made.record.manifest)
    while (base := base_of(content)) is not None:
        content = await made.blobs.get(base)
    assert json_format.Parse(content, WeightManifest()).version == 0


class Wide(FakeEngine):
    """A policy of which a step changes a few numbers only."""

    def export(self) -> Iterator[NamedTensor]:
        (small,) = super().export()
        yield NamedTensor(small.name, "F32", (4096,), small.data + bytes(4096 * 4 - len(small.data)))


async def test_a_job_publishes_deltas_ends_with_full_weights_and_names_its_swap_policy(
    tmp_path, memory_platform
):
    world = trainer_world.World(tmp_path / "objects", memory_platform.bus)
    for index in range(8):
        await world.group(index, version=max(0, index // 2 - 1))
    job = trainer_world.spec()
    job.rollout.swap_policy = "requeue"
    settings = PublicationConfig(full_every=3, keep_versions=8)
    around = world.around()
    around = replace(around, config=around.config.model_copy(update={"publication": settings}))
    session = Session(StartTraining(job_id=trainer_world.JOB, spec=job, fence=1), around, Wide())
    async with asyncio.timeout(60):
        assert await session.run()
    record = await world.record()
    assert record is not None
    assert record.swap_policy == "requeue"
    made = sorted((tmp_path / "objects" / "policies").rglob("manifest.*.json"))
    told = [json_format.Parse(path.read_bytes(), WeightManifest()) for path in made]
    assert [manifest.delta or "full" for manifest in told] == ["full", "xor", "xor", "full", "full"]
    assert record.version == 4


async def test_a_worker_takes_deltas_up_and_says_how_little_it_fetched(memory_platform):
    clock = SystemClock()
    bus = type(memory_platform.bus)(clock, name="rollout/w1")
    await bus.connect()
    world = await make_world(bus, type(memory_platform.log)(clock), memory_platform.directory, clock)
    told = bus.events("temper.v1.evt.rollout.>", after=0)
    files = {
        "config.json": json.dumps({"vocab_size": 264, "max_position_embeddings": 512}).encode(),
        "tokenizer.json": byte_tokenizer(),
        "temper_chat.json": byte_chat(),
    }
    refs = {name: await world.blobs.put(f"files/{name}", content) for name, content in files.items()}
    publisher = Publisher(world.blobs, JOB, refs, PublicationConfig(full_every=8))
    world.start()
    values, events = weights(0), list[PolicyLoaded]()
    for version in range(4):
        values = changed(values, version, 0.02)
        manifest = await publisher.publish(version, named(values), now=1.0)
        record = PolicyRecord(job_id=JOB, version=version, manifest=manifest, fence=1)
        await (await bus.kv("policies")).put(JOB, record.SerializeToString())
        if version == 0:
            await world.order(group(0))
        events.append((await anext(told)).message(PolicyLoaded))
    sizes = [event.fetched_bytes for event in events]
    assert [event.version for event in events] == [0, 1, 2, 3]
    assert sizes[1] > sizes[0]  # no base is held before a job's first delta has been seen
    assert max(sizes[2:]) < 0.3 * sizes[0]
    await world.stop()
    await bus.close()
