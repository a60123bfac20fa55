"""What every engine must do. The types say the rest."""

import asyncio
import json
import math

import pytest
from tests.conformance.rollout.asks import PROMPT, ask, assert_aligned, assert_spans, settle
from tests.conformance.rollout.engines import CONFIG, CONTEXT, SLOTS, VOCAB, Kind, policy

from temper.rollout.engine.base import Engine, FinishReason, Request, Span, SwapPolicy
from temper.runtime.errors import Conflict, Rejected


async def test_output_arrays_are_aligned_and_versions_cover_them(engine: Engine):
    done = await engine.submit(ask("a"))
    assert_aligned(done)
    assert done.finish is FinishReason.LENGTH
    assert done.weight_versions == (Span(0, 12, 1),)
    assert done.prefill_versions == (Span(0, len(PROMPT), 1),)


async def test_the_same_request_gives_the_same_sample(engine: Engine):
    one, two = await engine.submit(ask("a")), await engine.submit(ask("b"))
    assert one.tokens == two.tokens
    assert one.logprobs_raw == two.logprobs_raw


async def test_samples_of_a_group_differ_though_they_share_a_seed(engine: Engine):
    group = await asyncio.gather(*(engine.submit(ask(f"g{i}", sample=i)) for i in range(8)))
    assert len({done.tokens for done in group}) > 4


async def test_a_sample_is_the_same_alone_and_in_a_crowd(engine: Engine):
    alone = await engine.submit(ask("alone", count=40))
    crowd = [
        engine.submit(
            ask(
                f"c{i}",
                [i % VOCAB] * (1 + 5 * i % 50),
                sample=i,
                count=1 + 7 * i % 30,
                temperature=0.5 + i / 9,
            )
        )
        for i in range(1, 20)
    ]
    inside = await engine.submit(ask("inside", count=40))
    await asyncio.gather(*crowd)
    assert inside.tokens == alone.tokens
    assert inside.logprobs_raw == alone.logprobs_raw


async def test_greedy_takes_the_most_likely_token(engine: Engine):
    greedy = await engine.submit(ask("greedy", temperature=0.0, count=6))
    assert greedy.logprobs == (0.0,) * 6
    for index, token in enumerate(greedy.tokens):
        others = await asyncio.gather(
            *(
                engine.submit(ask(f"o{index}-{i}", PROMPT + greedy.tokens[:index], sample=i, count=1))
                for i in range(12)
            )
        )
        best = max(others, key=lambda done: done.logprobs_raw[0])
        assert best.tokens[0] == token or best.logprobs_raw[0] <= greedy.logprobs_raw[index] + 1e-5


async def test_processed_logprobs_are_normalised_on_the_support(engine: Engine):
    drawn = await asyncio.gather(
        *(engine.submit(ask(f"k{i}", sample=i, count=1, top_k=3, temperature=0.8)) for i in range(64))
    )
    mass = {done.tokens[0]: math.exp(done.logprobs[0]) for done in drawn}
    assert len(mass) == 3
    assert sum(mass.values()) == pytest.approx(1.0, abs=1e-5)
    assert all(done.log_surviving_mass[0] < 0 for done in drawn)


async def test_processed_is_raw_for_the_plain_softmax(engine: Engine):
    done = await engine.submit(ask("plain"))
    assert done.logprobs == done.logprobs_raw
    assert set(done.log_surviving_mass) == {0.0}


async def test_top_p_keeps_the_smallest_sufficient_set(engine: Engine):
    drawn = await asyncio.gather(
        *(engine.submit(ask(f"p{i}", sample=i, count=1, top_p=0.5)) for i in range(64))
    )
    kept = {done.tokens[0]: math.exp(done.logprobs_raw[0]) for done in drawn}
    surviving = math.exp(drawn[0].log_surviving_mass[0])
    assert surviving >= 0.5
    assert surviving - min(kept.values()) < 0.5 + 1e-6


async def test_a_stop_token_ends_the_output_and_stays_in_it(engine: Engine):
    free = await engine.submit(ask("free", count=20))
    stop = free.tokens[4]
    done = await engine.submit(ask("stopped", count=20, stop_token_ids=(stop,)))
    assert done.finish is FinishReason.STOP
    assert done.tokens == free.tokens[: free.tokens.index(stop) + 1]


async def test_continuing_equals_one_request_with_the_whole_context(kind: Kind, engine: Engine):
    first = await engine.submit(ask("turn-0", keep=True))
    seen = (8, 8, 31)
    second = await engine.submit(ask("turn-1", seen, continues="turn-0", keep=True))
    third = await engine.submit(ask("turn-2", seen, continues="turn-1"))
    context = PROMPT + first.tokens + seen + second.tokens + seen
    whole = await engine.submit(ask("whole", context))
    assert third.tokens == whole.tokens
    assert third.logprobs_raw == pytest.approx(whole.logprobs_raw, abs=1e-5)
    assert third.cached_tokens <= len(context) - len(seen) - 1
    assert third.cached_tokens == len(context) - len(seen) - 1 or "kept_kv" not in kind.can
    assert third.prefill_versions == (Span(0, len(seen), 1),)


async def test_a_sequence_is_continued_once_and_only_if_kept(engine: Engine):
    await engine.submit(ask("unkept"))
    await engine.submit(ask("kept", keep=True))
    with pytest.raises(Rejected, match="not a kept sequence"):
        engine.submit(ask("x", continues="unkept"))
    await engine.submit(ask("y", continues="kept"))
    with pytest.raises(Rejected, match="not a kept sequence"):
        engine.submit(ask("z", continues="kept"))


async def test_nothing_is_held_once_all_is_finished_and_released(engine: Engine):
    kept = [engine.submit(ask(f"k{i}", [i, 3], sample=i, keep=True)) for i in range(2 * SLOTS)]
    cancelled = [engine.submit(ask(f"c{i}", [i], keep=True, count=80)) for i in range(4)]
    for i in range(4):
        engine.cancel(f"c{i}")
    await asyncio.gather(*kept, *cancelled)
    assert engine.stats().kept == 2 * SLOTS
    for i in range(2 * SLOTS):
        engine.release(f"k{i}")
        engine.release(f"k{i}")
    await settle(engine)
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.kept, stats.kv_tokens) == (0, 0, 0, 0)


async def test_cancel_finishes_with_what_there_is(engine: Engine):
    pending = engine.submit(ask("long", count=80))
    await settle(engine)
    engine.cancel("long")
    engine.cancel("never-heard-of")
    done = await pending
    assert done.finish in (FinishReason.ABORT, FinishReason.LENGTH)
    assert_aligned(done)
    assert_spans(done.weight_versions, len(done.tokens))


async def test_dropping_the_future_cancels_the_request(engine: Engine):
    pending = engine.submit(ask("dropped", count=80))
    pending.cancel()
    await settle(engine)
    await settle(engine)
    assert engine.stats().running == 0


async def test_a_passed_deadline_ends_the_request(engine: Engine):
    done = await engine.submit(ask("late", count=80, deadline=0.0))
    assert done.finish is FinishReason.DEADLINE
    assert_spans(done.weight_versions, len(done.tokens))


async def test_a_swap_opens_a_span_and_sequences_go_on(kind: Kind, engine: Engine):
    if kind.policies and SwapPolicy.KEEP not in kind.policies:
        pytest.skip("keep is not declared")
    pending = [engine.submit(ask(f"s{i}", sample=i, count=80)) for i in range(SLOTS)]
    await engine.load(policy(2, seed=1))
    report = await engine.swap(2)
    done = await asyncio.gather(*pending)
    assert report.version == 2
    assert report.policy == "keep"
    for one in done:
        assert_spans(one.weight_versions, 80)
        assert [span.version for span in one.weight_versions] in ([1], [1, 2], [2])
    after = await engine.submit(ask("after"))
    assert after.weight_versions[0].version == 2


async def test_new_weights_change_samples_and_old_ones_bring_them_back(engine: Engine):
    before = await engine.submit(ask("before"))
    await engine.load(policy(2, seed=1))
    await engine.swap(2)
    other = await engine.submit(ask("other"))
    await engine.load(policy(3))
    await engine.swap(3)
    again = await engine.submit(ask("again"))
    assert other.tokens != before.tokens
    assert again.tokens == before.tokens


async def test_announcing_the_current_version_again_is_a_no_op(engine: Engine):
    assert (await engine.swap(1)).version == 1
    assert engine.stats().version == 1


async def test_a_version_that_was_not_loaded_is_refused(engine: Engine):
    with pytest.raises(Rejected, match="not loaded"):
        await engine.swap(9)
    assert engine.stats().version == 1


async def test_bad_files_are_refused_and_the_old_version_serves_on(engine: Engine):
    with pytest.raises(Rejected):
        await engine.load(policy(2, config={**CONFIG, "vocab_size": VOCAB + 1}))
    done = await engine.submit(ask("still"))
    assert done.weight_versions[0].version == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask("e", ()), "empty"),
        (ask("v", (VOCAB,)), "must lie in"),
        (ask("n", (-1,)), "must lie in"),
        (ask("l", (1,) * CONTEXT), "over the limit"),
        (ask("m", count=0), "max_tokens"),
        (ask("t", temperature=-1.0), "temperature"),
        (ask("p", top_p=0.0), "top_p"),
    ],
)
async def test_a_bad_request_is_refused_at_the_door_and_the_engine_lives(
    engine: Engine, request_: Request, words: str
):
    with pytest.raises(Rejected, match=words):
        engine.submit(request_)
    assert (await engine.submit(ask("next"))).tokens


async def test_an_id_in_use_is_a_conflict(engine: Engine):
    pending = engine.submit(ask("twin", keep=True))
    with pytest.raises(Conflict):
        engine.submit(ask("twin"))
    await pending
    with pytest.raises(Conflict):
        engine.submit(ask("twin"))


async def test_output_stops_at_the_context_limit(engine: Engine):
    done = await engine.submit(ask("edge", (1,) * (CONTEXT - 3), count=50))
    assert done.finish is FinishReason.LENGTH
    assert len(done.tokens) == 3


async def test_closing_resolves_what_runs(engine: Engine):
    pending = engine.submit(ask("open", count=80))
    await engine.close()
    assert (await pending).finish in (FinishReason.ABORT, FinishReason.LENGTH)
    await engine.close()


async def test_config_survives_json(engine: Engine):
    assert json.loads(json.dumps(CONFIG)) == CONFIG
    assert engine.info.max_context == CONTEXT
