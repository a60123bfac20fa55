"""Leases over every bus: the bucket's compare-and-set is all they need."""

from __future__ import annotations

import asyncio

from tests.contract.harness import Side

from temper.runtime.bus.base import Bus
from temper.runtime.lease import Lease

TTL_S = 0.6


async def lease(side: Side, bus: Bus, owner: str, ttl_s: float = TTL_S) -> Lease:
    return Lease(await bus.kv("leases"), "job.1", owner=owner, ttl_s=ttl_s, clock=side.clock)


async def test_of_many_candidates_one_gets_it(side: Side):
    candidates = [await lease(side, side.bus, f"c{number}", ttl_s=60) for number in range(10)]
    fences = await asyncio.gather(*(each.acquire() for each in candidates))
    assert sum(fence is not None for fence in fences) == 1
    for each in candidates:
        await each.release()


async def test_a_released_lease_goes_to_the_next_with_a_higher_fence(side: Side):
    one, other = await lease(side, side.bus, "one", ttl_s=60), await lease(side, side.bus, "other", ttl_s=60)
    first = await one.acquire()
    assert await other.acquire() is None
    await one.release()
    second = await other.acquire()
    assert first is not None
    assert second is not None
    assert second > first
    await other.release()


async def test_a_lease_whose_owner_is_silent_is_taken_over(side: Side):
    one, other = await lease(side, side.bus, "one"), await lease(side, side.bus, "other")
    first = await one.acquire()
    await one._stop_renewal()  # the process is asleep
    taken = asyncio.Event()

    async def stand_by() -> int:
        fence = await other.acquired()
        taken.set()
        return fence

    standing_by = asyncio.ensure_future(stand_by())
    await side.until(taken)
    assert not one.held
    assert await standing_by > (first or 0)
    await other.release()


async def test_a_renewed_lease_stays_through_many_durations(side: Side):
    one = await lease(side, side.bus, "one")
    fence = await one.acquire()
    kv = await side.bus.kv("leases")
    revisions: set[int] = set()
    enough = asyncio.Event()

    async def look() -> None:
        async for item in kv.watch():
            revisions.add(getattr(item, "revision", 0))
            if len(revisions) >= 10:  # nine renewals are three durations
                enough.set()

    looking = asyncio.ensure_future(look())
    await side.until(enough)
    assert one.fence == fence
    looking.cancel()
    await asyncio.wait({looking})
    await one.release()
