"""A policy whose texts nobody can read ends the job at once, and not in the rollout workers."""

import pytest

from temper.api.job.v1.spec_pb2 import CheckpointRef, JobSpec, ModelSpec, PolicySpec
from temper.runtime.blobs import BlobStore
from temper.runtime.errors import Rejected
from temper.trainer.origin import Origin

GOOD = {
    "config.json": b'{"vocab_size": 4}',
    "model.safetensors": b"not read here",
    "tokenizer.json": b'{"model": {"vocab": {}}}',
    "temper_chat.json": b"{}",
}


@pytest.fixture
def blobs(tmp_path) -> BlobStore:
    return BlobStore(f"file://{tmp_path}")


async def refs(blobs, files):
    return {name: await blobs.put(f"given/{name}", content) for name, content in files.items()}


async def prepare(blobs, files, *, random=False):
    given = await refs(blobs, files)
    if random:
        shape = ModelSpec(
            family="qwen3", hidden_size=64, layers=2, heads=4, kv_heads=2, intermediate_size=128, files=given
        )
        return await Origin.prepare(blobs, "job", JobSpec(policy=PolicySpec(random=shape)))
    return await Origin.prepare(
        blobs, "job", JobSpec(policy=PolicySpec(checkpoint=CheckpointRef(files=given)))
    )


async def test_a_checkpoint_brings_its_config_and_texts(blobs):
    origin = await prepare(blobs, GOOD)
    assert origin.config == {"vocab_size": 4}
    assert sorted(origin.files) == ["config.json", "temper_chat.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tokenizer.json", b"{}", "tokenizer.json has no model"),
        ("tokenizer.json", b"\xff", "tokenizer.json is not JSON"),
        ("temper_chat.json", b"[]", "temper_chat.json is no JSON object"),
        ("temper_chat.json", b"[" * 50_000, "temper_chat.json is not JSON"),
    ],
)
@pytest.mark.parametrize("random", [False, True])
async def test_a_text_that_nobody_can_read_is_refused(blobs, name, content, why, random):
    files = {
        key: value
        for key, value in GOOD.items()
        if not random or key in ("tokenizer.json", "temper_chat.json")
    }
    with pytest.raises(Rejected, match=why):
        await prepare(blobs, files | {name: content}, random=random)


async def test_a_config_that_is_no_object_is_refused(blobs):
    with pytest.raises(Rejected, match=r"config\.json is no JSON object"):
        await prepare(blobs, GOOD | {"config.json": b"3"})
