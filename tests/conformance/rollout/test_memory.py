"""The KV pool: shared by prefix, by tenant and by version; conserved; and enough, even when it is not."""

import asyncio

import pytest
from tests.conformance.rollout.asks import LONG, PROMPT, ask, assert_aligned, settle, versions
from tests.conformance.rollout.engines import SLOTS, TIGHT_CONTEXT, policy

from temper.rollout.engine.base import Engine, FinishReason
from temper.runtime.errors import Rejected


@pytest.mark.needs("blocks")
async def test_the_second_request_for_a_prompt_finds_its_blocks(engine: Engine):
    first = await engine.submit(ask("first", LONG))
    second = await engine.submit(ask("second", LONG))
    assert first.cached_tokens == 0
    assert 32 <= second.cached_tokens < len(LONG)
    assert second.tokens == first.tokens
    assert second.logprobs_raw == pytest.approx(first.logprobs_raw, abs=1e-5)
    assert engine.stats().cached_prompt_tokens >= 32


@pytest.mark.needs("blocks")
async def test_tenants_never_share_kv(engine: Engine):
    mine = await engine.submit(ask("mine", LONG, tenant="a"))
    theirs = await engine.submit(ask("theirs", LONG, tenant="b"))
    nobody = await engine.submit(ask("nobody", LONG))
    again = await engine.submit(ask("again", LONG, tenant="b"))
    assert mine.cached_tokens == theirs.cached_tokens == nobody.cached_tokens == 0
    assert again.cached_tokens >= 32
    assert mine.tokens == theirs.tokens == nobody.tokens == again.tokens


@pytest.mark.needs("blocks")
async def test_vllm_12621_a_prefix_is_the_tokens_not_their_hash(engine: Engine):
    """vllm PR#12621, openvino.genai#3722: prompts that differ anywhere share only what comes before."""
    await engine.submit(ask("base", LONG))
    for at in (0, 15, 16, 31, 47):
        other = (*LONG[:at], (LONG[at] + 1) % 60, *LONG[at + 1 :])
        done = await engine.submit(ask(f"at{at}", other))
        assert done.cached_tokens <= at // 16 * 16
    swapped = await engine.submit(ask("swapped", LONG[16:32] + LONG[:16] + LONG[32:]))
    assert swapped.cached_tokens == 0


@pytest.mark.needs("blocks")
async def test_version_isolation_of_the_prefix_cache(engine: Engine):
    """Under 16 cached tokens right after an update, most of the prompt on the second call."""
    await engine.submit(ask("old", LONG))
    await engine.load(policy(2, seed=4))
    await engine.swap(2)
    fresh = await engine.submit(ask("fresh", LONG))
    warm = await engine.submit(ask("warm", LONG))
    assert fresh.cached_tokens == 0
    assert warm.cached_tokens >= 32
    assert versions(warm.kv_origin_versions) == [2]


@pytest.mark.needs("blocks")
async def test_a_group_computes_its_prompt_once(engine: Engine):
    before = engine.stats().prefill_tokens
    group = [engine.submit(ask(f"g{i}", LONG, sample=i, group="g")) for i in range(SLOTS)]
    finished = await asyncio.gather(*group)
    computed = engine.stats().prefill_tokens - before
    assert computed <= len(LONG) + SLOTS * 18  # the prompt, and for each member what does not fill a block
    assert sum(done.cached_tokens for done in finished) >= (SLOTS - 1) * 32


@pytest.mark.needs("blocks")
async def test_sglang_6888_the_book_is_closed_after_load_cancel_and_eviction(engine: Engine):
    """sglang#11970, #6888: free + evictable + held = total, at every idle step."""
    for turn in range(4):
        work = [
            engine.submit(
                ask(f"{turn}-{i}", LONG[: 1 + 7 * i % 50], sample=i, count=1 + 5 * i % 30, keep=i == 3)
            )
            for i in range(12)
        ]
        engine.cancel(f"{turn}-{turn}")
        await asyncio.gather(*work)
        await settle(engine)
        blocks = engine.stats().blocks
        assert blocks is not None
        assert blocks.free + blocks.evictable + blocks.held == blocks.total
        assert min(blocks.free, blocks.evictable, blocks.held) >= 0
        engine.release(f"{turn}-3")
    await settle(engine)
    blocks = engine.stats().blocks
    assert blocks is not None
    assert blocks.held == 0


@pytest.mark.needs("pool")
async def test_nano_vllm_211_a_preempted_sequence_goes_on_as_if_nothing_had_happened(
    tight: Engine, ample: Engine
):
    """nano-vllm PR#211/#233: preempted for want of memory, resumed from the cache, and the same to the token."""
    asks = [ask(f"p{i}", LONG[: 30 + i], sample=i, count=260) for i in range(SLOTS)]
    scarce = await asyncio.gather(*(tight.submit(each) for each in asks))
    plenty = await asyncio.gather(*(ample.submit(each) for each in asks))
    assert tight.stats().preemptions > 0
    assert ample.stats().preemptions == 0
    for one, other in zip(scarce, plenty, strict=True):
        assert_aligned(one)
        assert one.finish is FinishReason.LENGTH
        assert one.tokens == other.tokens
        assert one.logprobs_raw == pytest.approx(other.logprobs_raw, abs=1e-4)


@pytest.mark.needs("pool", "pause")
async def test_the_lowest_priority_gives_way(tight: Engine):
    order: list[str] = []
    pending = []
    await tight.pause()  # so that all are there when the first is admitted
    for index in range(SLOTS):
        name = "high" if index == SLOTS - 1 else f"low{index}"
        high = name == "high"
        each = tight.submit(
            ask(name, LONG[: 30 + index], sample=index, count=240 if high else 260, priority=5 if high else 0)
        )
        each.add_done_callback(lambda _, name=name: order.append(name))
        pending.append(each)
    await tight.resume()
    await asyncio.gather(*pending)
    assert tight.stats().preemptions > 0
    assert order[0] == "high"


@pytest.mark.needs("pool")
async def test_a_prompt_that_can_never_fit_is_refused_and_one_that_just_fits_runs(tight: Engine):
    limit = tight.info.max_context
    assert limit <= TIGHT_CONTEXT
    with pytest.raises(Rejected):
        tight.submit(ask("never", (1,) * limit))
    done = await tight.submit(ask("fits", (1,) * (limit - 1)))
    assert len(done.tokens) == 1


@pytest.mark.needs("pool")
async def test_kept_sequences_give_way_and_are_computed_again(tight: Engine):
    first = await tight.submit(ask("turn-0", LONG * 2, keep=True))
    crowd = [tight.submit(ask(f"c{i}", LONG[i:], sample=i, count=250)) for i in range(SLOTS)]
    await asyncio.gather(*crowd)
    second = await tight.submit(ask("turn-1", (8, 8), continues="turn-0"))
    whole = await tight.submit(ask("whole", LONG * 2 + first.tokens + (8, 8)))
    assert second.tokens == whole.tokens
    assert tight.stats().kept == 0


@pytest.mark.needs("pool")
async def test_more_kept_sequences_than_memory_do_not_stop_anyone(tight: Engine):
    for i in range(14):
        await tight.submit(ask(f"k{i}", (i, *LONG * 2), sample=i, keep=True))
    assert tight.stats().kept == 14
    follow = [tight.submit(ask(f"f{i}", (9, i), continues=f"k{i}")) for i in range(14)]
    for done in await asyncio.gather(*follow):
        assert len(done.tokens) == 12
    assert tight.stats().kept == 0


async def test_cached_tokens_never_exceed_the_context(engine: Engine):
    for turn in range(3):
        done = await engine.submit(ask(f"c{turn}", PROMPT))
        assert 0 <= done.cached_tokens < len(PROMPT)


@pytest.mark.needs("pool")
async def test_vllm_53812_nobody_runs_past_the_limit_drafts_and_preemption_or_not(tight: Engine):
    """vllm PR#53812: the sampled token has its place inside the limit, also after a resume, also beside drafts."""
    limit = tight.info.max_context
    loops = [(3, 4, 5, 6) * 5, (9, 8) * 10, (7,) * 20]
    pending = [
        tight.submit(ask(f"{i}-{j}", loop, sample=j, count=limit, temperature=0.5))
        for i, loop in enumerate(loops)
        for j in range(2)
    ]
    for done in await asyncio.gather(*pending):
        assert done.finish is FinishReason.LENGTH
        assert len(done.tokens) == limit - 20
        assert_aligned(done)
    assert tight.stats().preemptions > 0


async def test_sglang_37450_usage_counts_what_was_emitted(engine: Engine):
    """sglang PR#37450/#39826: accepted drafts are output tokens, not more of them."""
    before = engine.stats()
    loops = [
        engine.submit(ask(f"l{i}", (3, 4, 5, 6) * 5, sample=i, count=40, temperature=0.3)) for i in range(4)
    ]
    stopped = await asyncio.gather(*loops)
    await settle(engine)
    after = engine.stats()
    assert all(0 <= done.drafts_accepted <= len(done.tokens) for done in stopped)
    assert after.generated_tokens - before.generated_tokens == sum(len(done.tokens) for done in stopped) + 1
    accepted = after.drafts_accepted - before.drafts_accepted
    assert accepted <= after.drafts_proposed - before.drafts_proposed
    assert accepted == sum(done.drafts_accepted for done in stopped)
