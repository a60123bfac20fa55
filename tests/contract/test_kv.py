"""What every key-value bucket does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.contract.conftest import MakeSide
from tests.contract.harness import Side, small_topology

from temper.runtime.bus.base import Deleted, Entry, KeyValue, Settled
from temper.runtime.errors import Conflict, Rejected


@pytest.fixture
async def kv(side: Side) -> KeyValue:
    return await side.bus.kv("jobs")


async def test_a_key_that_was_never_written_is_absent(kv: KeyValue):
    assert await kv.get("job1") is None
    assert await kv.keys() == []


async def test_a_value_is_read_back_with_its_revision(kv: KeyValue):
    revision = await kv.put("job1", b"one")
    assert await kv.get("job1") == Entry("job1", b"one", revision)


async def test_an_empty_value_is_a_value(kv: KeyValue):
    revision = await kv.put("job1", b"")
    assert await kv.get("job1") == Entry("job1", b"", revision)


async def test_revisions_grow_across_keys(kv: KeyValue):
    revisions = [await kv.put(key, b"x") for key in ("a", "b", "a")]
    assert revisions == sorted(set(revisions))


async def test_a_key_can_be_created_once(kv: KeyValue):
    await kv.create("job1", b"first")
    with pytest.raises(Conflict):
        await kv.create("job1", b"second")
    found = await kv.get("job1")
    assert found is not None
    assert found.value == b"first"


async def test_a_deleted_key_is_absent_and_can_be_created_again_with_a_higher_revision(kv: KeyValue):
    first = await kv.create("job1", b"first")
    await kv.delete("job1")
    assert await kv.get("job1") is None
    assert await kv.keys() == []
    assert await kv.create("job1", b"second") > first


async def test_an_update_needs_the_revision_that_was_read(kv: KeyValue):
    revision = await kv.put("job1", b"one")
    await kv.update("job1", b"two", revision)
    with pytest.raises(Conflict):
        await kv.update("job1", b"three", revision)


async def test_a_deletion_can_need_the_revision_that_was_read(kv: KeyValue):
    revision = await kv.put("job1", b"one")
    await kv.put("job1", b"two")
    with pytest.raises(Conflict):
        await kv.delete("job1", revision)
    assert await kv.keys() == ["job1"]


async def test_of_many_creators_one_wins(kv: KeyValue):
    outcomes = await asyncio.gather(
        *(kv.create("job1", b"%d" % n) for n in range(20)), return_exceptions=True
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(winners) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19


async def test_of_many_updaters_one_wins(kv: KeyValue):
    revision = await kv.put("job1", b"start")
    writes = (kv.update("job1", b"%d" % n, revision) for n in range(20))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1


async def test_keys_are_listed_by_prefix_and_sorted(kv: KeyValue):
    for key in ("rg.chain_sum", "calc", "rg.products", "rgb"):
        await kv.put(key, b"x")
    assert await kv.keys() == ["calc", "rg.chain_sum", "rg.products", "rgb"]
    assert await kv.keys("rg.") == ["rg.chain_sum", "rg.products"]
    assert await kv.keys("rg") == ["rg.chain_sum", "rg.products", "rgb"]


@pytest.mark.parametrize("key", ["", "a b", "a..b", ".a", "a.", "a*", "a.>", "ä", "a/b"])
async def test_a_key_that_is_no_key_is_rejected(kv: KeyValue, key: str):
    with pytest.raises(Rejected, match="cannot be a key"):
        await kv.put(key, b"x")


async def test_the_key_of_an_environment_version_is_a_key(kv: KeyValue):
    await kv.put("rg.chain_sum@1.0.0", b"x")
    assert await kv.keys("rg.chain_sum@") == ["rg.chain_sum@1.0.0"]


async def test_a_bucket_that_is_not_in_the_topology_is_rejected(side: Side):
    with pytest.raises(Rejected, match="no bucket"):
        await side.bus.kv("nonsense")


async def test_a_watch_of_nothing_settles_at_once(side: Side, kv: KeyValue):
    async with aclosing(kv.watch()) as items:
        assert await side.next(items) == Settled()


async def test_a_watch_begins_with_what_is_there_then_settles_then_follows(side: Side, kv: KeyValue):
    one, two = await kv.put("a", b"1"), await kv.put("b", b"2")
    async with aclosing(kv.watch()) as items:
        assert [await side.next(items) for _ in range(3)] == [
            Entry("a", b"1", one),
            Entry("b", b"2", two),
            Settled(),
        ]
        three = await kv.update("a", b"3", one)
        assert await side.next(items) == Entry("a", b"3", three)
        await kv.delete("b")
        assert await side.next(items) == Deleted("b", three + 1)
        await side.nothing(items)


async def test_a_watch_sees_its_prefix_only(side: Side, kv: KeyValue):
    await kv.put("calc.x", b"other")
    mine = await kv.put("rg.x", b"mine")
    async with aclosing(kv.watch("rg.")) as items:
        assert [await side.next(items), await side.next(items)] == [Entry("rg.x", b"mine", mine), Settled()]
        await kv.put("calc.x", b"other again")
        changed = await kv.put("rg.y", b"new")
        assert await side.next(items) == Entry("rg.y", b"new", changed)


async def test_a_watch_whose_prefix_matches_nothing_settles_though_other_keys_exist(side: Side, kv: KeyValue):
    await kv.put("calc", b"x")
    async with aclosing(kv.watch("rg")) as items:
        assert await side.next(items) == Settled()


async def test_every_watcher_sees_every_key(side: Side, kv: KeyValue):
    other = await (await side.client("other")).kv("jobs")
    async with aclosing(kv.watch()) as mine, aclosing(other.watch()) as theirs:
        assert await side.next(mine) == await side.next(theirs) == Settled()
        for number in range(50):
            await kv.put(f"job{number}", b"x")
        for items in (mine, theirs):
            assert len({(await side.next(items)).key for _ in range(50)}) == 50  # type: ignore[union-attr]  # only entries come here


async def test_a_value_that_grows_too_old_is_gone_and_watchers_are_told(make_side: MakeSide):
    shape = small_topology()
    buckets = tuple(replace(each, ttl_s=1.0) if each.name == "presence" else each for each in shape.buckets)
    side = await make_side(replace(shape, buckets=buckets))
    kv = await side.bus.kv("presence")
    await kv.put("rollout.a", b"alive")
    async with aclosing(kv.watch()) as items:
        assert [type(await side.next(items)) for _ in range(2)] == [Entry, Settled]
        gone = await side.next(items)
        assert isinstance(gone, Deleted)
        assert gone.key == "rollout.a"
    assert await kv.get("rollout.a") is None
    assert await kv.keys() == []
    await kv.create("rollout.a", b"back")


async def test_the_last_of_many_quick_changes_is_seen(side: Side, kv: KeyValue):
    async with aclosing(kv.watch()) as items:
        assert await side.next(items) == Settled()
        for number in range(200):
            await kv.put("job1", b"%d" % number)
        while (await side.next(items)).value != b"199":  # type: ignore[union-attr]  # only entries come here
            pass
