import asyncio
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.runtime.fake_s3 import Bucket, serving

from temper.api.common.v1.common_pb2 import BlobRef
from temper.runtime.blobs import BlobStore, _translating, content_key
from temper.runtime.config import BlobsConfig
from temper.runtime.errors import Exhausted, Rejected, Unavailable


@dataclass
class Place:
    """A store, and the way to damage what it holds behind its back."""

    store: BlobStore
    overwrite: Callable[[str, bytes], object]
    bucket: Bucket | None = None


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "directory":
        url = f"file://{tmp_path}/objects"
        yield Place(BlobStore(url), lambda key, data: (tmp_path / "objects" / key).write_bytes(data))
        return
    (tmp_path / "id").write_text("key-id")
    (tmp_path / "secret").write_text("key-secret")
    with serving() as (endpoint, bucket):
        config = BlobsConfig(
            url="s3://bucket/prefix",
            endpoint=endpoint,
            allow_http=True,
            access_key_file=tmp_path / "id",
            secret_key_file=tmp_path / "secret",
        )
        yield Place(
            BlobStore.configured(config),
            lambda key, data: bucket.objects.update({f"prefix/{key}": data}),
            bucket,
        )


@pytest.fixture
def store(place: Place) -> BlobStore:
    return place.store


async def test_what_was_put_comes_back(store: BlobStore) -> None:
    ref = await store.put("groups/job-1/job-1-0.binpb", b"tokens")
    assert ref == BlobRef(
        key="groups/job-1/job-1-0.binpb", sha256=hashlib.sha256(b"tokens").hexdigest(), size=len(b"tokens")
    )
    assert await store.get(ref) == b"tokens"


async def test_a_large_object_comes_back_checked(store: BlobStore) -> None:
    data = bytes(range(256)) * 20_000
    assert await store.get(await store.put("large", data)) == data


async def test_a_file_is_stored_without_reading_it_whole(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "weights"
    source.write_bytes(b"w" * 6_000_000)
    ref = await store.put_file("weights/1", source)
    assert ref.size == 6_000_000
    assert await store.get(ref) == source.read_bytes()


async def test_changed_bytes_of_the_same_size_are_refused(store: BlobStore) -> None:
    ref = await store.put("k", b"good")
    await store.put("k", b"evil")
    with pytest.raises(Rejected, match="checksum") as caught:
        await store.get(ref)
    assert caught.value.field == "sha256"


async def test_a_torn_object_is_refused(place: Place) -> None:
    ref = await place.store.put("k", b"whole")
    place.overwrite("k", b"who")
    with pytest.raises(Rejected, match="3 bytes instead of 5"):
        await place.store.get(ref)


async def test_requests_to_s3_are_signed_and_stay_under_the_prefix(place: Place) -> None:
    await place.store.put("k", b"x")
    if place.bucket is not None:
        assert list(place.bucket.objects) == ["prefix/k"]
        assert place.bucket.unsigned == 0


async def test_a_missing_object_is_the_callers_fault(store: BlobStore) -> None:
    with pytest.raises(Rejected, match="no blob at nope"):
        await store.read("nope")
    assert not await store.exists("nope")


async def test_deleting_twice_is_no_error(store: BlobStore) -> None:
    await store.put("k", b"x")
    await store.delete("k")
    await store.delete("k")
    assert not await store.exists("k")


async def test_a_listing_has_the_keys_of_the_folder_and_their_sizes(store: BlobStore) -> None:
    for key in ("a/2", "a/1", "b/1"):
        await store.put(key, b"xy")
    assert [(ref.key, ref.size) async for ref in store.list("a")] == [("a/1", 2), ("a/2", 2)]
    assert [ref.key async for ref in store.list("none")] == []


async def test_concurrent_writers_of_one_key_leave_one_whole_object(store: BlobStore) -> None:
    versions = [bytes([n]) * 100_000 for n in range(8)]
    await asyncio.gather(*(store.put("k", data) for data in versions))
    assert await store.read("k") in versions


@pytest.mark.parametrize("key", ["", "/abs", "../up", "a/../../b", "sp ace", "nul\0"])
async def test_a_key_that_leaves_the_store_is_refused(store: BlobStore, key: str) -> None:
    with pytest.raises(Rejected, match="not a blob key"):
        await store.put(key, b"x")
    with pytest.raises(Rejected, match="not a blob key"):
        await store.read(key)


def test_equal_content_has_an_equal_key() -> None:
    assert content_key(b"a") == content_key(b"a") != content_key(b"b")


@pytest.mark.parametrize("url", ["objects", "http://x", "file://host/x", "file:relative", "s3:"])
def test_an_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(Rejected, match="not a place for objects"):
        BlobStore.configured(BlobsConfig(url=url))


def test_a_full_disk_is_a_limit_with_a_way_out() -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(Exhausted, match="object storage is full") as caught:
        _translating("k", full)
    assert caught.value.hint


async def test_a_store_that_does_not_answer_is_unavailable(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    keys: dict[str, Any] = {
        "access_key_id": "a",
        "secret_access_key": "b",
        "client_options": {"allow_http": True},
    }
    store = BlobStore("s3://bucket", endpoint=url, region="r", retry_config={"max_retries": 0}, **keys)
    with pytest.raises(Unavailable, match="failed for k"):
        await store.put("k", b"x")


def test_a_store_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot open"):
        BlobStore(f"file://{tmp_path}/file/under")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=4096))
def test_any_bytes_come_back_unchanged(tmp_path: Path, data: bytes) -> None:
    async def round_trip() -> bytes:
        store = BlobStore(f"file://{tmp_path}/any")
        return await store.get(await store.put(content_key(data), data))

    assert asyncio.run(round_trip()) == data
