from __future__ import annotations

import asyncio

import pytest

from temper.runtime.errors import Unavailable
from temper.runtime.ledger import IdempotencyLedger, StoredLedger
from temper.runtime.testing import MemoryPlatform


class Effect:
    """Counts how often it happens."""

    def __init__(self, *, failures: int = 0, gate: asyncio.Event | None = None) -> None:
        self.times = 0
        self._failures, self._gate = failures, gate

    async def __call__(self) -> bytes:
        self.times += 1
        if self._gate is not None:
            await self._gate.wait()
        if self.times <= self._failures:
            raise Unavailable("not yet")
        return b"reply %d" % self.times


async def test_the_second_request_gets_the_first_reply():
    ledger, effect = IdempotencyLedger[bytes](), Effect()
    assert [await ledger.once("a", effect) for _ in range(3)] == [b"reply 1"] * 3
    assert effect.times == 1


async def test_ids_are_separate():
    ledger, effect = IdempotencyLedger[bytes](), Effect()
    assert await ledger.once("a", effect) != await ledger.once("b", effect)


async def test_a_request_that_comes_during_the_effect_waits_for_its_reply():
    gate = asyncio.Event()
    ledger, effect = IdempotencyLedger[bytes](), Effect(gate=gate)
    both = asyncio.gather(ledger.once("a", effect), ledger.once("a", effect))
    await asyncio.sleep(0)
    gate.set()
    assert await both == [b"reply 1"] * 2
    assert effect.times == 1


async def test_a_failure_is_not_remembered():
    ledger, effect = IdempotencyLedger[bytes](), Effect(failures=1)
    with pytest.raises(Unavailable):
        await ledger.once("a", effect)
    assert await ledger.once("a", effect) == b"reply 2"


async def test_a_caller_that_gives_up_does_not_take_the_effect_with_it():
    gate = asyncio.Event()
    ledger, effect = IdempotencyLedger[bytes](), Effect(gate=gate)
    first = asyncio.ensure_future(ledger.once("a", effect))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(ledger.once("a", effect))
    gate.set()
    assert await second == b"reply 1"


async def test_the_ledger_is_bounded_and_forgets_the_oldest():
    ledger, effect = IdempotencyLedger[bytes](capacity=2), Effect()
    for each in ("a", "b", "a", "c"):
        await ledger.once(each, effect)
    await asyncio.sleep(0)
    assert len(ledger) == 2
    assert "b" not in ledger
    ledger.forget("a")
    assert "a" not in ledger


async def test_a_stored_reply_holds_across_processes(memory_platform: MemoryPlatform):
    kv, effect = await memory_platform.bus.kv("jobs"), Effect()
    assert await StoredLedger(kv, "requests").once("a", effect) == b"reply 1"
    assert await StoredLedger(kv, "requests").once("a", effect) == b"reply 1"
    assert effect.times == 1


async def test_of_two_processes_at_once_one_reply_counts(memory_platform: MemoryPlatform):
    kv, effect = await memory_platform.bus.kv("jobs"), Effect()
    one, other = StoredLedger(kv, "requests"), StoredLedger(kv, "requests")
    replies = await asyncio.gather(one.once("a", effect), other.once("a", effect))
    assert len(set(replies)) == 1
