"""Cancel, pause, duplicates, limits: a request ends once, at whatever moment, and nobody else notices."""

import asyncio

import pytest
from tests.conformance.rollout.asks import (
    LONG,
    PROMPT,
    TRIES,
    Watch,
    ask,
    assert_aligned,
    pause_midway,
    settle,
)
from tests.conformance.rollout.engines import CONTEXT, SLOTS, seeded

from temper.rollout.engine.base import Engine, FinishReason
from temper.runtime.errors import Conflict, Rejected, Unavailable
from temper.runtime.testing import eventually

ENDED = (FinishReason.ABORT, FinishReason.LENGTH)


async def test_cancel_before_the_first_step(engine: Engine):
    pending = engine.submit(ask("early", count=80))
    engine.cancel("early")
    done = await pending
    assert done.finish in ENDED
    assert_aligned(done)


@pytest.mark.needs("stream")
@pytest.mark.parametrize("after", [1, 2, 15, 16, 17, 33])
async def test_sglang_22273_cancel_after_any_token_leaves_nothing_behind(engine: Engine, after: int):
    """sglang PR#22273: an aborted conversation never writes back; the next one on its blocks is untouched."""
    expected = await engine.submit(ask("expected", LONG[:20], count=40))
    await aborted_after(engine, after)
    await eventually(lambda: engine.stats().running == 0, what="idle engine")
    stats = engine.stats()
    assert (stats.kept, stats.kv_tokens) == (0, 0)  # it asked to be kept, and is not
    assert stats.blocks is None or stats.blocks.held == 0
    with pytest.raises(Rejected, match="not a kept sequence"):
        engine.submit(ask("on", (1,), continues="victim"))
    again = await engine.submit(ask("again", LONG[:20], count=40))
    assert again.tokens == expected.tokens
    assert again.logprobs_raw == pytest.approx(expected.logprobs_raw, abs=1e-4)
    reused = await engine.submit(ask("victim", LONG[:20], count=1))  # its id is free at once
    assert reused.tokens == expected.tokens[:1]


async def aborted_after(engine: Engine, tokens: int) -> None:
    """A sequence that wants to be kept and is cancelled from its sink; one that was too quick is followed by another."""
    for _ in range(TRIES):
        watch = Watch()

        def sink(emitted, watch=watch) -> None:
            watch(emitted)
            if len(watch.tokens) >= tokens:
                engine.cancel("victim")

        victim = await engine.submit(ask("victim", LONG[:20], count=75, sample=1, keep=True), sink)
        assert_aligned(victim)
        if victim.finish is FinishReason.ABORT:
            return
        engine.release("victim")
    raise AssertionError(f"every one of {TRIES} sequences was done before it could be cancelled")


async def test_cancel_of_a_request_that_waits_for_a_slot(engine: Engine):
    running = [engine.submit(ask(f"r{i}", sample=i, count=60)) for i in range(SLOTS)]
    waiting = [engine.submit(ask(f"w{i}", sample=i, count=60)) for i in range(4)]
    for i in range(4):
        engine.cancel(f"w{i}")
    assert all(done.finish in ENDED for done in await asyncio.gather(*waiting))
    assert all(len(done.tokens) == 60 for done in await asyncio.gather(*running))


async def test_cancel_is_idempotent_and_late_ones_are_ignored(engine: Engine):
    pending = engine.submit(ask("twice", count=80))
    engine.cancel("twice")
    engine.cancel("twice")
    done = await pending
    engine.cancel("twice")
    await settle(engine)
    assert (await pending) is done


async def test_cancelling_everything_frees_everything(engine: Engine):
    pending = [engine.submit(ask(f"c{i}", LONG[: 1 + i], sample=i, count=40)) for i in range(4 * SLOTS)]
    await asyncio.sleep(0)
    for i in range(0, 4 * SLOTS, 2):
        engine.cancel(f"c{i}")
    await asyncio.sleep(0)
    for i in range(1, 4 * SLOTS, 2):
        engine.cancel(f"c{i}")
    for each in pending:
        assert_aligned(await each)
    await settle(engine)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kept, stats.kv_tokens) == (0, 0, 0, 0)


async def test_vllm_46283_a_deadline_reclaims_what_waits_and_what_runs(engine: Engine):
    """vllm#46283, vllm-ascend#16662: whoever is not served in time gives back what it holds."""
    running = [engine.submit(ask(f"r{i}", sample=i, count=60)) for i in range(SLOTS)]
    late = [engine.submit(ask(f"l{i}", sample=i, count=60, deadline=0.0)) for i in range(3)]
    assert all(done.finish is FinishReason.DEADLINE for done in await asyncio.gather(*late))
    assert all(len(done.tokens) == 60 for done in await asyncio.gather(*running))
    await settle(engine)
    assert engine.stats().kv_tokens == 0


async def test_vllm_56089_an_end_in_any_order_frees_once(engine: Engine):
    """vllm PR#56089: cancel, drop, deadline and release of the same request, in every order."""
    for index, order in enumerate((("cancel", "drop"), ("drop", "cancel"), ("release", "cancel", "drop"))):
        pending = engine.submit(ask(f"end{index}", count=80, keep=True))
        for way in order:
            if way == "drop":
                pending.cancel()
            else:
                getattr(engine, way)(f"end{index}")
        await asyncio.wait([pending])
    await settle(engine)
    await settle(engine)
    for index in range(3):
        engine.release(f"end{index}")
    await settle(engine)
    assert engine.stats().kv_tokens == 0


async def test_a_live_id_is_refused_whatever_its_attempt_and_the_live_one_goes_on(engine: Engine):
    pending = engine.submit(ask("twin", count=60))
    with pytest.raises(Conflict, match="same attempt"):
        engine.submit(ask("twin", count=60))
    with pytest.raises(Conflict, match="attempt 1 is open"):
        engine.submit(ask("twin", count=60, attempt=2))
    assert len((await pending).tokens) == 60


async def test_another_attempt_is_taken_once_the_first_is_cancelled(engine: Engine):
    first = engine.submit(ask("again", count=60))
    engine.cancel("again")
    await first
    done = await engine.submit(ask("again", count=6, attempt=2))
    assert done.request_id == "again"
    assert len(done.tokens) == 6


@pytest.mark.needs("stream")
async def test_attempt_is_echoed(engine: Engine):
    assert (await engine.submit(ask("one"))).attempt == 1
    assert (await engine.submit(ask("two", attempt=7))).attempt == 7


@pytest.mark.needs("pause")
async def test_a_paused_engine_takes_requests_and_answers_none(engine: Engine):
    await engine.pause()
    await engine.pause()
    pending = [engine.submit(ask(f"q{i}", sample=i)) for i in range(3)]
    before = engine.stats()
    for _ in range(20):
        await asyncio.sleep(0)
    after = engine.stats()
    assert after.paused
    assert (after.generated_tokens, after.steps) == (before.generated_tokens, before.steps)
    assert not any(each.done() for each in pending)
    await engine.resume()
    await engine.resume()
    assert all(len(done.tokens) == 12 for done in await asyncio.gather(*pending))
    assert not engine.stats().paused


@pytest.mark.needs("pause", "positions")
async def test_a_pause_in_the_middle_loses_nothing(engine: Engine):
    expected = await engine.submit(ask("expected", count=80))
    pending, watch = await pause_midway(engine)
    seen = len(watch.tokens)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(watch.tokens) <= seen + 1  # one may have been on its way to the loop
    await engine.resume()
    done = await pending
    assert done.tokens == watch.tokens == expected.tokens
    assert done.logprobs_raw == pytest.approx(expected.logprobs_raw, abs=1e-4)


@pytest.mark.needs("pause")
async def test_cancel_works_while_paused(engine: Engine):
    pending, _ = await pause_midway(engine)
    queued = engine.submit(ask("queued"))
    engine.cancel("queued")
    assert (await queued).finish is FinishReason.ABORT
    await engine.resume()
    assert len((await pending).tokens) == 80


@pytest.mark.needs("pause")
async def test_a_deadline_passes_while_paused(engine: Engine):
    await engine.pause()
    done = await engine.submit(ask("late", deadline=0.0))
    assert done.finish is FinishReason.DEADLINE
    await engine.resume()


@pytest.mark.needs("pause")
async def test_closing_a_paused_engine_resolves_what_waits(engine: Engine):
    await engine.pause()
    pending = engine.submit(ask("open"))
    await engine.close()
    assert (await pending).finish is FinishReason.ABORT


async def test_a_closed_engine_says_so_to_whoever_comes(engine: Engine):
    await engine.load(seeded(2))
    await engine.close()
    assert not engine.alive
    with pytest.raises(Unavailable):
        engine.submit(ask("late"))
    with pytest.raises(Unavailable):
        await engine.swap(2)


@pytest.mark.parametrize("size", [CONTEXT, CONTEXT + 1, 4 * CONTEXT])
async def test_vllm_40302_a_prompt_at_or_above_the_limit_is_refused(engine: Engine, size: int):
    """vllm#40302, #16445: one limit, equal included, and it says which."""
    with pytest.raises(Rejected, match=str(engine.info.max_context)):
        engine.submit(ask("long", (1,) * size))
    below = await engine.submit(ask("below", (1,) * (CONTEXT - 1), count=5))
    assert (len(below.tokens), below.finish) == (1, FinishReason.LENGTH)


async def test_a_continuation_that_reaches_the_limit_is_refused_and_stays_kept(engine: Engine):
    await engine.submit(ask("first", (1,) * 60, count=20, keep=True))
    with pytest.raises(Rejected, match="limit"):
        engine.submit(ask("over", (2,) * 16, continues="first"))
    done = await engine.submit(ask("fits", (2,) * 15, continues="first", count=9))
    assert (len(done.tokens), done.finish) == (1, FinishReason.LENGTH)


async def test_vllm_7283_an_empty_prompt_is_refused_and_the_engine_lives(engine: Engine):
    """vllm#7283, PR#7746."""
    running = engine.submit(ask("running", count=30))
    for _ in range(3):
        with pytest.raises(Rejected, match="empty"):
            engine.submit(ask("empty", ()))
    assert len((await running).tokens) == 30
    assert engine.alive


async def test_trl_5224_ids_come_back_as_they_went_in(engine: Engine):
    """trl#5224, rllm PR#272, sglang PR#26555: token-in/token-out; a follow-up on the ids is the conversation itself."""
    first = await engine.submit(ask("t0", PROMPT, keep=True))
    kept = await engine.submit(ask("t1", (8, 8, 31), continues="t0"))
    spelled = await engine.submit(ask("t1-spelled", PROMPT + first.tokens + (8, 8, 31)))
    assert kept.tokens == spelled.tokens


async def test_counters_add_up(engine: Engine):
    before = engine.stats()
    finished = await asyncio.gather(*(engine.submit(ask(f"s{i}", sample=i, count=5 + i)) for i in range(4)))
    await eventually(
        lambda: (
            engine.stats().generated_tokens - before.generated_tokens
            == sum(len(done.tokens) for done in finished)
        ),
        what="counter",
    )
    assert engine.stats().prefill_tokens > before.prefill_tokens
    assert engine.stats().busy_seconds >= before.busy_seconds
