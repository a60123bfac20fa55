"""How tokens are drawn and what is told about them, for every engine."""

import asyncio
import math
from typing import Any

import pytest
from tests.conformance.rollout.asks import LONG, PROMPT, ask, assert_aligned
from tests.conformance.rollout.engines import ENGINES, OPTIONS, VOCAB, Kind

from temper.rollout.engine.base import Engine, Sampling
from temper.runtime.errors import Rejected

VALUES: dict[str, Any] = {
    "penalties": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": ((3, 1.0),)},
    "top_logprobs": {"top_logprobs": 4},
    "prompt_logprobs": {"prompt_logprobs": True},
}


async def test_vllm_10852_samples_of_one_seeded_prompt_are_streams_of_their_own(engine: Engine):
    """vllm#10852, #7808, #16449: n samples with one seed differ, and each is the one that its index alone gives."""
    together = await asyncio.gather(*(engine.submit(ask(f"n{i}", sample=i, seed=99)) for i in range(6)))
    alone = await engine.submit(ask("alone", sample=4, seed=99))
    assert len({done.tokens for done in together}) == 6
    assert alone.tokens == together[4].tokens


async def test_vllm_11123_neighbours_with_other_seeds_change_nothing(engine: Engine):
    """vllm#11123, #13196: the generator belongs to the request."""
    alone = await engine.submit(ask("alone", count=30, seed=7))
    neighbours = [engine.submit(ask(f"x{i}", count=30, seed=1000 + i)) for i in range(4)]
    inside = await engine.submit(ask("inside", count=30, seed=7))
    others = await asyncio.gather(*neighbours)
    assert inside.tokens == alone.tokens
    assert len({done.tokens for done in [*others, alone]}) == 5


async def test_vllm_42259_raw_processed_and_surviving_mass_are_told_and_agree(engine: Engine):
    """vllm#42259, trl#6789: at temperature 1, processed = raw - log S, for every way to truncate."""
    ways: list[dict[str, Any]] = [
        {"top_k": 4},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 9, "top_p": 0.8, "min_p": 0.05},
    ]
    for index, way in enumerate(ways):
        done = await engine.submit(ask(f"w{index}", **way))
        assert_aligned(done)
        for raw, processed, mass in zip(
            done.logprobs_raw, done.logprobs, done.log_surviving_mass, strict=True
        ):
            assert mass < 0
            assert processed == pytest.approx(raw - mass, abs=1e-4)


async def test_temperature_sharpens_the_processed_distribution_only(engine: Engine):
    cold = await engine.submit(ask("cold", count=1, temperature=0.5))
    again = await engine.submit(ask("again", count=1, temperature=0.5))
    assert cold.logprobs == again.logprobs
    assert cold.logprobs[0] != cold.logprobs_raw[0]
    assert cold.log_surviving_mass == (0.0,)


async def test_min_p_drops_what_is_far_from_the_likeliest(engine: Engine):
    drawn = await asyncio.gather(
        *(engine.submit(ask(f"m{i}", sample=i, count=1, min_p=0.5)) for i in range(48))
    )
    best = max(done.logprobs_raw[0] for done in drawn)
    assert all(done.logprobs_raw[0] >= best + math.log(0.5) - 1e-5 for done in drawn)


@pytest.mark.needs("penalties")
async def test_a_frequency_penalty_without_bound_forbids_repetition(engine: Engine):
    done = await engine.submit(ask("once", count=30, frequency_penalty=1e6))
    assert len(set(done.tokens)) == 30
    assert_aligned(done)


@pytest.mark.needs("penalties")
async def test_a_presence_penalty_counts_the_output_and_not_the_prompt(engine: Engine):
    plain = await engine.submit(ask("plain", count=1, temperature=0.0))
    shy = await engine.submit(
        ask("shy", (*PROMPT[:-1], plain.tokens[0]), count=1, temperature=0.0, presence_penalty=1e6)
    )
    free = await engine.submit(ask("free", (*PROMPT[:-1], plain.tokens[0]), count=1, temperature=0.0))
    assert shy.tokens == free.tokens


@pytest.mark.needs("penalties")
async def test_a_repetition_penalty_moves_the_processed_distribution_and_leaves_the_raw_one(engine: Engine):
    pushed = await engine.submit(ask("pushed", count=20, temperature=0.0, repetition_penalty=1e4))
    assert len({*PROMPT, *pushed.tokens}) == len(PROMPT) + 20
    assert_aligned(pushed)
    drawn = await engine.submit(ask("drawn", count=1, repetition_penalty=1.5))
    assert drawn.logprobs[0] != drawn.logprobs_raw[0]


@pytest.mark.needs("logit_bias")
async def test_a_logit_bias_forces_and_forbids(engine: Engine):
    forced = await engine.submit(ask("forced", count=5, logit_bias=((11, 1e4),)))
    assert forced.tokens == (11,) * 5
    assert forced.logprobs == pytest.approx((0.0,) * 5, abs=1e-4)
    assert all(raw < -1e-3 for raw in forced.logprobs_raw)
    kept_out = tuple((token, -1e4) for token in range(VOCAB) if token % 2)
    even = await engine.submit(ask("even", count=30, logit_bias=kept_out))
    assert all(token % 2 == 0 for token in even.tokens)


@pytest.mark.needs("top_logprobs")
async def test_top_logprobs_are_the_likeliest_raw_ones_in_order(engine: Engine):
    done = await engine.submit(ask("top", top_logprobs=VOCAB, temperature=0.7, top_k=5))
    few = await engine.submit(ask("few", top_logprobs=3, temperature=0.7, top_k=5))
    assert few.tokens == done.tokens
    for index, (token, raw) in enumerate(zip(done.tokens, done.logprobs_raw, strict=True)):
        ranked = [logprob for _, logprob in done.top_logprobs[index]]
        assert ranked == sorted(ranked, reverse=True)
        assert sum(map(math.exp, ranked)) == pytest.approx(1.0, abs=1e-4)
        assert dict(done.top_logprobs[index])[token] == pytest.approx(raw, abs=1e-5)
        assert [entry[0] for entry in few.top_logprobs[index]] == [
            entry[0] for entry in done.top_logprobs[index][:3]
        ]


@pytest.mark.needs("prompt_logprobs")
async def test_vllm_29071_prompt_logprobs_are_a_full_vector_whatever_is_cached(engine: Engine):
    """vllm PR#29071, #8268, #14239: a prefix that is served from the cache is scored all the same."""
    first = await engine.submit(ask("first", LONG, prompt_logprobs=True))
    second = await engine.submit(ask("second", LONG, prompt_logprobs=True))
    for done in (first, second):
        assert len(done.prompt_logprobs) == len(LONG)
        assert done.prompt_logprobs[0] is None
        assert all(value is not None and math.isfinite(value) for value in done.prompt_logprobs[1:])
    assert first.prompt_logprobs[1:] == pytest.approx(second.prompt_logprobs[1:], abs=1e-5)


@pytest.mark.needs("prompt_logprobs")
async def test_prompt_logprobs_of_an_output_are_the_logprobs_it_was_drawn_with(engine: Engine):
    drawn = await engine.submit(ask("drawn"))
    scored = await engine.submit(ask("scored", PROMPT + drawn.tokens, count=1, prompt_logprobs=True))
    assert scored.prompt_logprobs[len(PROMPT) :] == pytest.approx(drawn.logprobs_raw, abs=1e-4)


@pytest.mark.needs("prompt_logprobs")
async def test_prime_rl_1650_asking_for_prompt_logprobs_never_changes_results(engine: Engine):
    """prime-rl PR#1650: neither the tokens, nor their logprobs, nor those of whoever comes next."""
    plain = await engine.submit(ask("plain", LONG))
    asked = await engine.submit(ask("asked", LONG, prompt_logprobs=True))
    after = await engine.submit(ask("after", LONG))
    assert plain.tokens == asked.tokens == after.tokens
    assert plain.logprobs_raw == pytest.approx(asked.logprobs_raw, abs=1e-5)
    assert plain.logprobs_raw == pytest.approx(after.logprobs_raw, abs=1e-5)
    assert plain.prompt_logprobs == after.prompt_logprobs == ()


@pytest.mark.parametrize("option", sorted(OPTIONS))
async def test_an_option_that_an_engine_does_not_declare_is_refused_by_name(
    kind: Kind, engine: Engine, option: str
):
    if option in kind.can:
        assert (await engine.submit(ask("fine", **VALUES[option]))).tokens
    elif kind is not ENGINES["torch"]:
        with pytest.raises(Rejected, match=next(iter(VALUES[option]))):
            engine.submit(ask("refused", **VALUES[option]))
        assert (await engine.submit(ask("next"))).tokens


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"min_p": 1.0}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": math.nan}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"logit_bias": ((VOCAB, 1.0),)}, "logit_bias"),
    ],
)
async def test_a_value_that_means_nothing_is_refused_and_the_engine_lives(
    engine: Engine, values: dict[str, Any], words: str
):
    with pytest.raises(Rejected, match=words):
        engine.submit(ask("bad", **values))
    assert (await engine.submit(ask("next"))).tokens


def test_an_unknown_sampling_option_does_not_exist():
    with pytest.raises(TypeError, match="top_a"):
        Sampling(1, top_a=0.5)  # type: ignore[call-arg]  # that it is unknown is the point
