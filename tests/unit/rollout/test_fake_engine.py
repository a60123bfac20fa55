"""What the twin has on top of the engine suite: time on a clock, and lengths with a tail."""

import asyncio
import statistics

import pytest

from temper.rollout.engine.base import FinishReason, PolicyFiles, Request, Sampling
from temper.rollout.engine.fake import FakeEngine
from temper.rollout.engine.made_up import Lengths
from temper.runtime.clock import FakeClock

STOP = 62


async def engine_on(clock: FakeClock, lengths: Lengths | None = None, slots: int = 100) -> FakeEngine:
    engine = FakeEngine(clock, slots=slots, step_seconds=0.5, lengths=lengths)
    await engine.start()
    await engine.load(PolicyFiles(0, {"vocab_size": 64}, (b"weights",)))
    await engine.swap(0)
    return engine


def ask(index: int, count: int = 400, **fields) -> Request:
    return Request(f"r{index}", (1, 2), Sampling(count, stop_token_ids=(STOP,)), 7, index, **fields)


async def test_a_step_takes_its_time_for_all_sequences_together():
    clock = FakeClock()
    engine = await engine_on(clock)
    requests = [Request(f"r{i}", (1,), Sampling(10), 0, i) for i in range(5)]
    done = asyncio.gather(*(engine.submit(each) for each in requests))
    await clock.advance(4.9)
    assert not done.done()
    await clock.advance(0.1)
    assert [len(one.tokens) for one in await done] == [10] * 5
    assert engine.stats().busy_seconds == pytest.approx(5.0)
    await engine.close()


async def test_more_sequences_than_slots_wait():
    clock = FakeClock()
    engine = await engine_on(clock, slots=2)
    done = [engine.submit(Request(f"r{i}", (1,), Sampling(2), 0, i)) for i in range(3)]
    await clock.advance(1.0)
    assert [each.done() for each in done] == [True, True, False]
    await clock.advance(1.0)
    assert done[2].done()
    await engine.close()


async def test_lengths_are_log_normal_and_belong_to_the_sample():
    clock = FakeClock()
    lengths = Lengths(median=20, sigma=0.9)
    engine = await engine_on(clock, lengths)
    done = asyncio.gather(*(engine.submit(ask(i)) for i in range(100)))
    await clock.advance(400)
    sizes = [len(one.tokens) for one in await done]
    assert sizes == [min(400, lengths.draw(ask(i))) for i in range(100)]
    assert 14 < statistics.median(sizes) < 29
    assert max(sizes) > 60
    assert all(one.finish is FinishReason.STOP and one.tokens[-1] == STOP for one in await done)
    assert all(STOP not in one.tokens[:-1] for one in await done)
    await engine.close()


async def test_a_deadline_is_on_the_engines_clock():
    clock = FakeClock()
    engine = await engine_on(clock)
    late = engine.submit(Request("r", (1,), Sampling(50), 0, 0, deadline=clock.monotonic() + 2.2))
    await clock.advance(3)
    assert (await late).finish is FinishReason.DEADLINE
    assert len((await late).tokens) == 4
    await engine.close()
