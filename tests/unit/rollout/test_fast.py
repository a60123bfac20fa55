"""The fast variant through the real engine: drafts change no output, int8 and sparse decode say what they are."""

import asyncio
from typing import Any

import pytest
import torch
from tests.unit.rollout.policies import CONTEXT, VOCAB, files_of, reference

from temper.rollout.config import EngineConfig
from temper.rollout.engine.base import Completion, Emitted, Request, Sampling, Span, SwapPolicy
from temper.rollout.engine.choose import make_engine
from temper.rollout.engine.torch.engine import TorchEngine
from temper.rollout.engine.torch.fast import Fast
from temper.runtime.clock import SystemClock
from temper.runtime.errors import Rejected

PROMPTS = [tuple((5 * i + size) % 11 for i in range(size)) for size in (3, 40, 70, 17)]


async def started(model: Any, fast: Fast, **options: Any) -> TorchEngine:
    usual: dict[str, Any] = {"max_context": CONTEXT, "batch_invariant": False}
    engine = TorchEngine(**{**usual, **options}, fast=fast)
    await engine.start()
    await engine.load(files_of(model))
    await engine.swap(1)
    return engine


async def ask(
    engine: TorchEngine, sampling: Sampling, prompts: list[tuple[int, ...]], **fields: Any
) -> list[Completion]:
    requests = [Request(f"r{i}", prompt, sampling, 7, i, **fields) for i, prompt in enumerate(prompts)]
    return await asyncio.gather(*map(engine.submit, requests))


def aligned(done: Completion) -> None:
    count = len(done.tokens)
    assert len(done.logprobs_raw) == len(done.logprobs) == len(done.log_surviving_mass) == count
    assert len(done.top_logprobs) in (0, count)
    assert done.weight_versions[-1].end == done.kv_origin_versions[-1].end == count
    assert done.drafts_accepted <= count


def same(drafted: list[Completion], plain: list[Completion]) -> None:
    for one, two in zip(drafted, plain, strict=True):
        aligned(one)
        assert one.tokens == two.tokens
        assert one.finish == two.finish
        assert one.logprobs_raw == pytest.approx(two.logprobs_raw, abs=1e-4)
        assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)
        assert one.log_surviving_mass == pytest.approx(two.log_surviving_mass, abs=1e-4)


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "cold": {"temperature": 0.3},
    "truncated": {"temperature": 0.5, "top_p": 0.8, "top_logprobs": 3},
    "penalised": {"temperature": 0.0, "frequency_penalty": 0.1, "repetition_penalty": 1.05},
}


# ---------------------------------------------------------------- drafts


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
@pytest.mark.parametrize("sampling", sorted(SAMPLINGS))
async def test_drafts_change_no_output(kind: str, sampling: str):
    model, options = reference("llama"), Sampling(64, **SAMPLINGS[sampling])
    plain = await started(model, Fast())
    drafted = await started(model, Fast(speculation=kind))
    expected = await ask(plain, options, PROMPTS)
    found = await ask(drafted, options, PROMPTS, group="g")
    same(found, expected)
    stats = drafted.stats()
    assert stats.drafts_proposed >= stats.drafts_accepted == sum(done.drafts_accepted for done in found)
    assert stats.generated_tokens == sum(len(done.tokens) for done in found)
    if sampling == "greedy":
        assert stats.drafts_accepted > 20
        assert stats.steps < plain.stats().steps
    await asyncio.gather(plain.close(), drafted.close())


async def test_siblings_learn_from_each_other():
    """The second of a group copies what the first has said, which n-grams of its own context could not."""
    model = reference("llama")
    accepted: list[int] = []
    for group in ("g", ""):
        engine = await started(model, Fast(speculation="suffix"))
        sampling = Sampling(30, temperature=0.0)
        await engine.submit(Request("first", PROMPTS[1], sampling, 0, 0, group=group))
        done = await engine.submit(Request("second", PROMPTS[1], sampling, 0, 1, group=group))
        accepted.append(done.drafts_accepted)
        await engine.close()
    assert accepted[0] > accepted[1]
    assert accepted[0] > 15


async def test_a_request_may_go_without_drafts():
    engine = await started(reference("llama"), Fast(speculation="ngram"))
    (done,) = await ask(engine, Sampling(60, temperature=0.0), PROMPTS[:1], speculate=False)
    assert done.drafts_accepted == engine.stats().drafts_proposed == 0
    await engine.close()


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
async def test_vllm_47616_a_stop_inside_an_accepted_run_cuts_everything_at_one_place(kind: str):
    model = reference("llama")
    plain = await started(model, Fast())
    (whole,) = await ask(plain, Sampling(100, temperature=0.0), PROMPTS[:1])
    await plain.close()
    engine = await started(model, Fast(speculation=kind))
    for number, stop in enumerate(list(dict.fromkeys(whole.tokens))[:8]):
        seen: list[Emitted] = []
        sampling = Sampling(100, temperature=0.0, stop_token_ids=(stop,), top_logprobs=2)
        # Asking twice lets the second copy the first, up to the stop and beyond.
        for again in range(2):
            request = Request(f"{number}-{again}", PROMPTS[0], sampling, 0, 0, group="g")
            seen.clear()
            done = await engine.submit(request, seen.append)
            aligned(done)
            end = whole.tokens.index(stop) + 1
            assert done.tokens == whole.tokens[:end]
            assert (done.finish.value, done.stopped_by) == ("stop", stop)
            assert done.weight_versions == (Span(0, end, 1),)
            assert len(done.top_logprobs) == end
            assert [token for one in seen for token in one.tokens] == list(done.tokens)
            assert [value for one in seen for value in one.logprobs_raw] == list(done.logprobs_raw)
    await engine.close()


async def test_vllm_53812_drafts_and_the_token_after_them_stay_inside_the_limits():
    model = reference("llama")
    plain = await started(model, Fast())
    engine = await started(model, Fast(speculation="suffix"))
    prompt = PROMPTS[1]
    (whole,) = await ask(plain, Sampling(CONTEXT, temperature=0.0), [prompt])
    assert len(whole.tokens) == CONTEXT - len(prompt)
    for most in (CONTEXT, *range(1, 14)):
        request = Request(f"m{most}", prompt, Sampling(most, temperature=0.0), 0, 0, group="g")
        done = await engine.submit(request)
        aligned(done)
        assert done.tokens == whole.tokens[:most]
        assert done.finish.value == "length"
    await asyncio.gather(plain.close(), engine.close())


async def test_sglang_37450_no_more_is_counted_than_is_emitted():
    engine = await started(reference("llama"), Fast(speculation="suffix"))
    done = [
        await engine.submit(
            Request(
                f"r{i}", PROMPTS[0], Sampling(3 + i, temperature=0.0, stop_token_ids=(i,)), 0, 0, group="g"
            )
        )
        for i in range(20)
    ]
    assert all(one.drafts_accepted <= len(one.tokens) for one in done)
    stats = engine.stats()
    assert stats.generated_tokens == sum(len(one.tokens) for one in done)
    assert stats.drafts_accepted == sum(one.drafts_accepted for one in done)
    await engine.close()


@pytest.mark.parametrize("policy", [SwapPolicy.KEEP, SwapPolicy.RECOMPUTE])
async def test_a_kept_turn_goes_on_with_drafts_and_after_a_swap(policy: SwapPolicy):
    model = reference("qwen3")
    found: list[list[tuple[int, ...]]] = []
    for fast in (Fast(), Fast(speculation="ngram")):
        engine = await started(model, fast)
        first = await engine.submit(Request("a", PROMPTS[2], Sampling(40, temperature=0.0), 0, 0, keep=True))
        await engine.load(files_of(model, version=2))
        await engine.swap(2, policy)
        second = await engine.submit(Request("b", (1, 2), Sampling(40, temperature=0.0), 0, 0, continues="a"))
        found.append([first.tokens, second.tokens])
        await engine.close()
    assert found[0] == found[1]


async def test_drafts_that_find_no_memory_change_no_output():
    """More sequences than the pool holds at once: some are put back, drafts and all."""
    model = reference("llama")
    plain = await started(model, Fast())
    tight = await started(model, Fast(speculation="suffix"), kv_tokens=2304)
    sampling = Sampling(200, temperature=0.0)
    same(await ask(tight, sampling, PROMPTS), await ask(plain, sampling, PROMPTS))
    assert tight.stats().preemptions > 0
    blocks = tight.stats().blocks
    assert blocks is not None
    assert blocks.free + blocks.evictable + blocks.held == blocks.total
    await asyncio.gather(plain.close(), tight.close())


def test_drafts_are_refused_where_bits_count():
    with pytest.raises(Rejected, match="batch_invariant"):
        TorchEngine(fast=Fast(speculation="ngram"))
    with pytest.raises(Rejected, match="batch_invariant"):
        make_engine(EngineConfig(speculation="suffix"), SystemClock())


@pytest.mark.parametrize(
    "option",
    [{"speculation": "ngram"}, {"quantisation": "w8a8"}, {"sparse_threshold": 9}, {"sparse_keep": 0.5}],
)
def test_other_engines_refuse_the_options(option: dict[str, Any]):
    with pytest.raises(Rejected, match=next(iter(option))):
        make_engine(EngineConfig(name="fake", **option), SystemClock())


# ---------------------------------------------------------------- int8


async def test_int8_logprobs_drift_little_and_are_not_for_training():
    """Bounds of the admission of a fast variant: mean .02, 99th percentile .2, K3 .005."""
    model = reference("qwen3")
    engine = await started(model, Fast(quantisation="w8a8"))
    assert engine.info.numeric == "w8a8"
    done = await ask(engine, Sampling(80), PROMPTS)
    await engine.close()
    drift: list[torch.Tensor] = []
    for prompt, one in zip(PROMPTS, done, strict=True):
        assert not one.for_training
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *one.tokens]])).logits[0]
        exact = torch.log_softmax(logits, dim=-1)[len(prompt) - 1 : -1]
        drift.append(
            exact.gather(1, torch.tensor(one.tokens)[:, None])[:, 0] - torch.tensor(one.logprobs_raw)
        )
    ratio = torch.cat(drift)
    assert 0 < ratio.abs().mean() < 0.02
    assert ratio.abs().quantile(0.99) < 0.2
    assert (ratio.exp() - 1 - ratio).mean() < 0.005


async def test_int8_samples_are_equal_in_every_bit_in_any_company():
    model, found = reference("llama"), []
    for crowd in (0, 5):
        engine = await started(model, Fast(quantisation="w8a8"), batch_invariant=True)
        others = [engine.submit(Request(f"n{i}", (i, 2, 3), Sampling(60), i, i)) for i in range(crowd)]
        done = await engine.submit(Request("x", PROMPTS[1], Sampling(40), 1, 0))
        await asyncio.gather(*others)
        await engine.close()
        found.append((done.tokens, done.logprobs_raw))
    assert found[0] == found[1]


async def test_int8_with_drafts_changes_no_output_of_int8():
    model, sampling = reference("llama"), Sampling(80, temperature=0.0)
    plain = await started(model, Fast(quantisation="w8a8"))
    drafted = await started(model, Fast("ngram", "w8a8"))
    same(await ask(drafted, sampling, PROMPTS), await ask(plain, sampling, PROMPTS))
    await asyncio.gather(plain.close(), drafted.close())


# ---------------------------------------------------------------- sparse decode

LONG = 2048


@pytest.fixture(scope="module")
def long_model() -> Any:
    model = reference("llama")
    model.config.max_position_embeddings = LONG
    return model


def long_prompt(length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(length)
    return tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())


@pytest.mark.parametrize("speculation", ["none", "ngram"])
async def test_sparse_decode_that_reads_every_page_is_dense_decode(long_model: Any, speculation: str):
    prompts, sampling = (
        [long_prompt(1700), long_prompt(1210), long_prompt(100)],
        Sampling(40, temperature=0.0),
    )
    dense = await started(long_model, Fast(), max_context=LONG)
    sparse = await started(long_model, Fast(speculation, "none", 1200, 1.0), max_context=LONG)
    expected, found = await ask(dense, sampling, prompts), await ask(sparse, sampling, prompts)
    same(found, expected)
    assert [one.attention for one in found] == ["sparse", "sparse", "dense"]
    assert [one.for_training for one in found] == [False, False, True]
    await asyncio.gather(dense.close(), sparse.close())


async def test_sparse_decode_is_equal_with_prefix_reuse_chunks_and_drafts(long_model: Any):
    """A quarter of the pages: the numbers are others than dense ones, and the same along every way."""
    prompt, sampling = long_prompt(1800), Sampling(40, temperature=0.0)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("none", {}),
        ("suffix", {}),
        ("ngram", {"prefill_tokens": 256, "kv_tokens": 4096}),
    ]
    outputs: list[Completion] = []
    for speculation, options in ways:
        engine = await started(long_model, Fast(speculation, "none", 1200, 0.25), max_context=LONG, **options)
        for again in range(2):
            done = await engine.submit(Request(f"r{again}", prompt, sampling, 0, 0))
            aligned(done)
            assert (done.attention, done.for_training) == ("sparse", False)
            assert (done.cached_tokens > 1500) == bool(again)
            outputs.append(done)
        await engine.close()
    same(outputs[1:], outputs[:1] * (len(outputs) - 1))
    dense = await started(long_model, Fast(), max_context=LONG)
    (exact,) = await ask(dense, sampling, [prompt])
    await dense.close()
    assert exact.logprobs_raw != pytest.approx(outputs[0].logprobs_raw, abs=1e-5)


async def test_sparse_decode_is_batch_invariant_where_that_is_asked(long_model: Any):
    prompt, found = long_prompt(1400), []
    for crowd in (0, 4):
        engine = await started(
            long_model, Fast(sparse_threshold=1200, sparse_keep=0.25), max_context=LONG, batch_invariant=True
        )
        others = [engine.submit(Request(f"n{i}", (i, 2, 3), Sampling(60), i, i)) for i in range(crowd)]
        done = await engine.submit(Request("x", prompt, Sampling(30), 1, 0))
        await asyncio.gather(*others)
        await engine.close()
        found.append((done.tokens, done.logprobs_raw))
    assert found[0] == found[1]
