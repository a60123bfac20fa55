"""Weights that change under running requests: every policy, and no number of one version in another's cache."""

import asyncio

import pytest
from tests.conformance.rollout.asks import LONG, PROMPT, Watch, ask, swap_midway, versions
from tests.conformance.rollout.engines import SLOTS, Kind, policy, seeded

from temper.rollout.engine.base import Engine, FinishReason, Span, SwapPolicy
from temper.runtime.errors import Rejected


@pytest.mark.needs(SwapPolicy.KEEP)
async def test_keep_goes_on_with_the_kv_it_has_and_says_so(engine: Engine):
    version, report, done = await swap_midway(engine, seeded, SwapPolicy.KEEP)
    assert report.policy is SwapPolicy.KEEP
    assert report.version == version
    assert done.finish is FinishReason.LENGTH
    assert versions(done.weight_versions) == [version - 1, version]
    assert versions(done.kv_origin_versions) == [version - 1]


@pytest.mark.needs(SwapPolicy.RECOMPUTE, "positions")
async def test_recompute_goes_on_as_if_the_new_weights_had_read_it_all(engine: Engine):
    version, report, done = await swap_midway(engine, seeded, SwapPolicy.RECOMPUTE)
    assert report.policy is SwapPolicy.RECOMPUTE
    await assert_rest_is_of(engine, version, done)


@pytest.mark.needs(SwapPolicy.REQUEUE, "positions")
async def test_requeue_keeps_the_tokens_and_reads_them_anew(engine: Engine):
    version, report, done = await swap_midway(engine, seeded, SwapPolicy.REQUEUE)
    assert report.policy is SwapPolicy.REQUEUE
    await assert_rest_is_of(engine, version, done)


async def assert_rest_is_of(engine: Engine, version: int, done) -> None:
    """What came after the swap is what a fresh request for it gives under the new weights."""
    assert versions(done.weight_versions) == versions(done.kv_origin_versions) == [version - 1, version]
    cut = done.weight_versions[0].end
    assert done.kv_origin_versions[0].end == cut
    rest = await engine.submit(ask("rest", PROMPT + done.tokens[:cut], count=80 - cut))
    assert rest.tokens == done.tokens[cut:]
    assert rest.logprobs_raw == pytest.approx(done.logprobs_raw[cut:], abs=1e-4)


@pytest.mark.needs(SwapPolicy.ABORT)
async def test_abort_finishes_what_runs_with_what_there_is(engine: Engine):
    version, report, done = await swap_midway(engine, seeded, SwapPolicy.ABORT)
    assert (report.policy, report.running) == (SwapPolicy.ABORT, 0)
    assert done.finish is FinishReason.ABORT
    assert versions(done.weight_versions) == [version - 1]
    after = await engine.submit(ask("after"))
    assert versions(after.weight_versions) == [version]


@pytest.mark.needs(SwapPolicy.WAIT)
async def test_wait_lets_what_runs_finish_under_the_old_version(engine: Engine):
    await engine.load(seeded(2))
    watch = Watch()
    running = engine.submit(ask("running", count=80), watch)
    await watch.first()
    swapping = asyncio.create_task(engine.swap(2, SwapPolicy.WAIT))
    await asyncio.sleep(0)
    report = await swapping
    late = await engine.submit(ask("late"))
    done = await running
    assert (report.policy, report.running) == (SwapPolicy.WAIT, 0)
    assert (len(done.tokens), versions(done.weight_versions)) == (80, [1])
    assert versions(late.weight_versions) == versions(late.prefill_versions) == [2]


@pytest.mark.needs(SwapPolicy.WAIT)
async def test_requests_that_queue_while_a_swap_waits_run_under_the_new_version(engine: Engine):
    await engine.load(seeded(2))
    running = [engine.submit(ask(f"r{i}", count=40, sample=i), Watch()) for i in range(SLOTS)]
    swapping = asyncio.create_task(engine.swap(2, SwapPolicy.WAIT))
    await asyncio.sleep(0)
    late = [engine.submit(ask(f"l{i}", sample=i)) for i in range(3)]
    await swapping
    assert all(len(done.tokens) == 40 for done in await asyncio.gather(*running))
    assert [versions(done.weight_versions) for done in await asyncio.gather(*late)] == [[2]] * 3


@pytest.mark.needs(SwapPolicy.WAIT)
async def test_a_request_can_be_cancelled_while_a_swap_waits_for_it(engine: Engine):
    await engine.load(seeded(2))
    watch = Watch()
    running = engine.submit(ask("running", count=80), watch)
    await watch.first()
    swapping = asyncio.create_task(engine.swap(2, SwapPolicy.WAIT))
    await asyncio.sleep(0)
    engine.cancel("running")
    assert (await running).finish in (FinishReason.ABORT, FinishReason.LENGTH)
    assert (await swapping).version == 2


async def test_a_policy_that_an_engine_does_not_declare_is_refused_or_vacuous(kind: Kind, engine: Engine):
    if not kind.policies:
        pytest.skip("no policy is declared")
    for index, each in enumerate(SwapPolicy):
        version = 2 + index
        await engine.load(seeded(version))
        watch = Watch()
        running = engine.submit(ask(f"r{index}", count=80), watch)
        await watch.first()
        if each in kind.policies:
            assert (await engine.swap(version, each)).policy is each
        else:
            with pytest.raises(Rejected, match=each.value):
                await engine.swap(version, each)
            engine.cancel(f"r{index}")
        await running


async def test_vllm_9744_no_block_of_an_old_version_serves_a_new_one(engine: Engine):
    """vllm#9744: the answer after an update is the one of an engine that never saw the old weights."""
    await engine.submit(ask("warm", LONG))
    warm = await engine.submit(ask("warmer", LONG))
    await engine.load(policy(2, seed=5))
    await engine.swap(2)
    first = await engine.submit(ask("first", LONG))
    second = await engine.submit(ask("second", LONG))
    await engine.load(policy(3))
    await engine.swap(3)
    back = await engine.submit(ask("back", LONG))
    assert first.cached_tokens < 16
    assert first.tokens == second.tokens != warm.tokens
    assert versions(first.prefill_versions) == versions(second.prefill_versions) == [2]
    assert back.cached_tokens < 16
    assert back.tokens == warm.tokens
    assert back.logprobs_raw == pytest.approx(warm.logprobs_raw, abs=1e-4)


@pytest.mark.needs(SwapPolicy.KEEP)
async def test_nemo_rl_4018_keep_is_for_running_requests_only(engine: Engine):
    """NeMo-RL PR#4018: KV that a running request carries over a swap never reaches another request."""
    version, _, _ = await swap_midway(engine, seeded, SwapPolicy.KEEP, tokens=LONG[:15])
    first = await engine.submit(ask("first", LONG[:15]))
    context = LONG[:15] + first.tokens
    follow = await engine.submit(ask("follow", context))
    assert first.cached_tokens == 0
    assert versions(first.prefill_versions) == versions(first.kv_origin_versions) == [version]
    assert versions(follow.kv_origin_versions) == [version]


async def test_a_continuation_after_a_swap_says_whose_kv_it_reads(engine: Engine):
    first = await engine.submit(ask("turn-0", keep=True))
    await engine.load(policy(2, seed=5))
    await engine.swap(2)
    second = await engine.submit(ask("turn-1", (8, 8), continues="turn-0"))
    assert versions(second.weight_versions) == versions(second.prefill_versions) == [2]
    if second.kv_origin_versions:
        assert versions(second.kv_origin_versions) == [1 if second.cached_tokens else 2]
    assert second.prefill_versions == (Span(0, 2, 2),)
    assert len(first.tokens) == 12


async def test_vllm_46125_the_policy_is_the_callers_and_is_in_the_report(kind: Kind, engine: Engine):
    """vllm PR#46125: nothing about an update is implied."""
    for index, each in enumerate(sorted(kind.policies)):
        await engine.load(seeded(2 + index))
        report = await engine.swap(2 + index, each)
        assert (report.version, report.policy) == (2 + index, each)
        assert report.seconds >= 0


async def test_two_updates_during_one_request_give_at_most_three_spans(kind: Kind, engine: Engine):
    if SwapPolicy.REQUEUE not in kind.policies:
        pytest.skip("requeue is not declared")
    await engine.load(seeded(2))
    await engine.load(seeded(3))
    watch = Watch()
    pending = engine.submit(ask("long", count=80), watch)
    await watch.first()
    await engine.swap(2, SwapPolicy.REQUEUE)
    await engine.swap(2, SwapPolicy.REQUEUE)  # announced again: no span of its own
    await engine.swap(3, SwapPolicy.REQUEUE)
    done = await pending
    assert versions(done.weight_versions) in ([1], [1, 2], [1, 3], [1, 2, 3])
    assert engine.stats().version == 3
