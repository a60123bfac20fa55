"""A sink sees what the completion says: once, in order, before the end."""

import asyncio

import pytest
from tests.conformance.rollout.asks import Watch, ask, settle

from temper.rollout.engine.base import Emitted, Engine, FinishReason

pytestmark = pytest.mark.needs("stream")


async def test_what_a_sink_saw_is_what_the_completion_says(engine: Engine):
    watches = [Watch() for _ in range(8)]
    finished = await asyncio.gather(
        *(
            engine.submit(ask(f"s{i}", sample=i, count=3 + 4 * i, top_k=7), watch)
            for i, watch in enumerate(watches)
        )
    )
    for i, (done, watch) in enumerate(zip(finished, watches, strict=True)):
        assert watch.tokens == done.tokens
        assert {emitted.request_id for emitted in watch.seen} == {f"s{i}"}
        assert [x for emitted in watch.seen for x in emitted.logprobs_raw] == list(done.logprobs_raw)
        assert [x for emitted in watch.seen for x in emitted.logprobs] == list(done.logprobs)
        assert [v for e in watch.seen for v in [e.version] * len(e.tokens)] == [1] * len(done.tokens)


async def test_an_emission_is_aligned_and_never_empty(engine: Engine):
    watch = Watch()
    await engine.submit(ask("aligned"), watch)
    for emitted in watch.seen:
        assert len(emitted.tokens) == len(emitted.logprobs_raw) == len(emitted.logprobs) > 0
        assert emitted.top_logprobs == ()


@pytest.mark.needs("stream", "top_logprobs")
async def test_top_logprobs_are_streamed_too(engine: Engine):
    watch = Watch()
    done = await engine.submit(ask("top", top_logprobs=2), watch)
    assert tuple(entry for emitted in watch.seen for entry in emitted.top_logprobs) == done.top_logprobs


async def test_the_last_token_is_seen_before_the_future_resolves(engine: Engine):
    counts: list[int] = []
    watch = Watch()
    pending = engine.submit(ask("order", count=9), watch)
    pending.add_done_callback(lambda _: counts.append(len(watch.tokens)))
    await pending
    await asyncio.sleep(0)  # callbacks of a future run after it, in the same turn as its awaiters
    assert counts == [9]


async def test_a_stop_token_is_streamed_and_nothing_after_it(engine: Engine):
    free = await engine.submit(ask("free", count=20))
    watch = Watch()
    done = await engine.submit(ask("stopped", count=20, stop_token_ids=(free.tokens[4],)), watch)
    assert watch.tokens == done.tokens == free.tokens[: free.tokens.index(free.tokens[4]) + 1]
    assert done.stopped_by == free.tokens[4]


async def test_a_request_without_a_sink_is_not_seen_by_anyone_else(engine: Engine):
    watch = Watch()
    await asyncio.gather(engine.submit(ask("watched"), watch), engine.submit(ask("unwatched", sample=1)))
    assert {emitted.request_id for emitted in watch.seen} == {"watched"}


async def test_a_cancel_from_inside_the_sink_ends_the_request_there(engine: Engine):
    seen: list[Emitted] = []

    def sink(emitted: Emitted) -> None:
        seen.append(emitted)
        engine.cancel("self")

    done = await engine.submit(ask("self", count=80), sink)
    await settle(engine)
    tokens = tuple(token for emitted in seen for token in emitted.tokens)
    assert done.tokens == tokens
    assert done.finish in (FinishReason.ABORT, FinishReason.LENGTH)
