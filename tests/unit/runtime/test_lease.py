"""Leases: never two owners, whatever the network does, and a fence that grows from owner to owner."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from temper.runtime.bus.memory import MemoryBus
from temper.runtime.clock import FakeClock
from temper.runtime.errors import Rejected, Stale, Unavailable
from temper.runtime.lease import FenceGuard, Lease, LeaseRecord
from temper.runtime.testing import MemoryPlatform

KEY, TTL_S = "job.job1", 6.0


async def lease_of(platform: MemoryPlatform, owner: str, ttl_s: float = TTL_S) -> tuple[Lease, MemoryBus]:
    bus = platform.bus.client(owner)
    await bus.connect()
    return Lease(await bus.kv("leases"), KEY, owner=owner, ttl_s=ttl_s, clock=platform.clock), bus


async def test_one_of_two_candidates_gets_it(memory_platform: MemoryPlatform):
    (a, _), (b, _) = await lease_of(memory_platform, "a"), await lease_of(memory_platform, "b")
    fence = await a.acquire()
    assert fence is not None
    assert await b.acquire() is None
    assert (a.held, b.held, a.fence, b.fence) == (True, False, fence, None)
    await a.release()


async def test_it_is_kept_for_as_long_as_it_is_renewed(memory_platform: MemoryPlatform):
    (a, _), (b, _) = await lease_of(memory_platform, "a"), await lease_of(memory_platform, "b")
    fence = await a.acquire()
    for _ in range(100):
        await memory_platform.clock.advance(1)
        assert await b.acquire() is None
        assert a.fence == fence
    await a.release()


async def test_a_released_key_is_free_at_once_and_the_fence_grows(memory_platform: MemoryPlatform):
    (a, _), (b, _) = await lease_of(memory_platform, "a"), await lease_of(memory_platform, "b")
    first = await a.acquire()
    await a.release()
    assert not a.held
    assert not a.lost.is_set()
    second = await b.acquire()
    assert first is not None
    assert second is not None
    assert second > first
    await b.release()


async def test_an_owner_that_is_cut_off_stops_itself_before_another_takes_over(
    memory_platform: MemoryPlatform,
):
    clock = memory_platform.clock
    (a, cut), (b, _) = await lease_of(memory_platform, "a"), await lease_of(memory_platform, "b")
    await a.acquire()
    taking = asyncio.ensure_future(b.acquired())
    await clock.settle()
    cut.cut()
    stopped_at = taken_at = None
    for _ in range(200):
        await clock.advance(0.1)
        assert not (a.held and b.held)
        if stopped_at is None and not a.held:
            stopped_at = clock.monotonic()
        if taken_at is None and taking.done():
            taken_at = clock.monotonic()
    assert stopped_at is not None
    assert taken_at is not None
    assert stopped_at <= TTL_S * 2 / 3 + 0.11
    assert TTL_S <= taken_at <= 2 * TTL_S
    assert a.lost.is_set()
    await b.release()


async def test_an_owner_that_was_away_for_a_moment_keeps_it(memory_platform: MemoryPlatform):
    a, bus = await lease_of(memory_platform, "a")
    fence = await a.acquire()
    bus.cut()
    await memory_platform.clock.advance(TTL_S / 2)
    bus.mend()
    await memory_platform.clock.advance(10 * TTL_S)
    assert a.fence == fence
    await a.release()


async def test_a_renewal_whose_answer_was_lost_is_recognized(memory_platform: MemoryPlatform):
    a, _ = await lease_of(memory_platform, "a")
    fence = await a.acquire()
    real = a._kv.update
    lost = 0

    async def update(key: str, value: bytes, revision: int) -> int:
        nonlocal lost
        written = await real(key, value, revision)
        lost += 1
        if lost == 1:
            raise Unavailable("the answer was lost")
        return written

    a._kv.update = update
    await memory_platform.clock.advance(10 * TTL_S)
    assert lost > 1
    assert a.fence == fence
    await a.release()


async def test_an_owner_whose_record_was_taken_loses_it_at_once(memory_platform: MemoryPlatform):
    a, _ = await lease_of(memory_platform, "a")
    await a.acquire()
    kv = await memory_platform.bus.kv("leases")
    await kv.put(KEY, LeaseRecord("intruder", TTL_S, 0).encode())
    await memory_platform.clock.advance(TTL_S / 3 + 0.01)
    assert a.lost.is_set()
    assert not a.held


async def test_the_duration_in_the_record_counts_not_the_observers_own(memory_platform: MemoryPlatform):
    a, cut = await lease_of(memory_platform, "a", ttl_s=60)
    b, _ = await lease_of(memory_platform, "b", ttl_s=1)
    await a.acquire()
    assert await b.acquire() is None
    cut.cut()
    for _ in range(58):
        await memory_platform.clock.advance(1)
        assert await b.acquire() is None
    await memory_platform.clock.advance(3)
    assert await b.acquire() is not None
    await b.release()


async def test_a_standby_waits_through_an_outage(memory_platform: MemoryPlatform):
    b, bus = await lease_of(memory_platform, "b")
    bus.cut()
    waiting = asyncio.ensure_future(b.acquired())
    await memory_platform.clock.advance(20)
    assert not waiting.done()
    bus.mend()
    await memory_platform.clock.advance(2)
    assert await waiting == b.fence
    await b.release()


async def test_acquiring_what_is_held_changes_nothing(memory_platform: MemoryPlatform):
    a, _ = await lease_of(memory_platform, "a")
    assert await a.acquire() == await a.acquire()
    await a.release()
    await a.release()


def test_a_record_that_is_none_is_rejected():
    for value in (b"", b"{}", b"[]", b"\xff", b'{"owner": "a", "ttl_s": "soon", "beat": 1}'):
        with pytest.raises(Rejected, match="not a lease"):
            LeaseRecord.decode(value)


def test_a_stale_fence_is_refused():
    guard = FenceGuard()
    guard.check("job1", 5)
    guard.check("job1", 5)
    guard.check("job1", 9)
    with pytest.raises(Stale, match="fence 5"):
        guard.check("job1", 5)
    guard.check("job2", 1)
    guard.check("job1", None)


def test_a_guard_forgets_the_key_unused_for_longest():
    guard = FenceGuard(capacity=2)
    for key in ("a", "b", "a", "c"):
        guard.check(key, 5)
    guard.check("b", 1)
    with pytest.raises(Stale):
        guard.check("c", 1)


class Candidates(RuleBasedStateMachine):
    """Three candidates, a network that cuts and mends, clocks that pass, owners that release, fall asleep and wake."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.guard = FenceGuard()
        self.fences: list[int] = []
        self.eager: set[int] = set()

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    @initialize(ttl_s=st.sampled_from([1.0, 6.0]))
    def start(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        first = MemoryBus(self.clock, name="0")
        self.buses = [first, first.client("1"), first.client("2")]
        self.leases = [
            Lease(self.run(bus.kv("leases")), KEY, owner=bus.source, ttl_s=ttl_s, clock=self.clock)
            for bus in self.buses
        ]

    @rule(who=st.integers(0, 2))
    def want(self, who: int) -> None:
        self.eager.add(who)
        self.try_to_acquire(who)

    def try_to_acquire(self, who: int) -> None:
        already = self.leases[who].held
        try:
            fence = self.run(self.leases[who].acquire())
        except Unavailable:
            return
        if fence is not None and not already:
            self.fences.append(fence)

    @rule(who=st.integers(0, 2))
    def release(self, who: int) -> None:
        self.eager.discard(who)
        self.run(self.leases[who].release())

    @rule(whom=st.sampled_from(["the owner", "everybody"]))
    def cut(self, whom: str) -> None:
        for bus, lease in zip(self.buses, self.leases, strict=True):
            if lease.held or whom == "everybody":
                bus.cut()

    @rule(who=st.integers(0, 2))
    def mend(self, who: int) -> None:
        self.buses[who].mend()

    @rule(steps=st.sampled_from([1, 3, 9, 15]))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.run(self.clock.advance(self.ttl_s / 7.3))  # no multiple of anything that the lease does
            for who in sorted(self.eager):
                self.try_to_acquire(who)
            self.at_most_one_owner()

    @precondition(lambda self: any(lease.held for lease in self.leases))
    @rule()
    def act(self) -> None:
        (owner,) = [lease for lease in self.leases if lease.held]
        self.guard.check(KEY, owner.fence)

    @invariant()
    def at_most_one_owner(self) -> None:
        if hasattr(self, "leases"):
            assert sum(lease.held for lease in self.leases) <= 1

    @invariant()
    def fences_grow(self) -> None:
        assert self.fences == sorted(set(self.fences))

    def teardown(self) -> None:
        for bus in getattr(self, "buses", []):
            bus.mend()
        for lease in getattr(self, "leases", []):
            self.run(lease.release())
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(asyncio.sleep(0))
        self.loop.close()


TestCandidates = Candidates.TestCase
TestCandidates.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
