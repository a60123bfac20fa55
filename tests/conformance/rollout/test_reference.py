"""Numbers against a reference that shares no code with the engine's forward."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.torch import load, save
from tests.conformance.rollout.asks import LONG, PROMPT, ask
from tests.conformance.rollout.engines import CONFIG, ENGINES, VOCAB, Kind, policy
from tests.conformance.rollout.references import REFERENCES, Logits

from temper.rollout.engine.base import Completion, Engine, PolicyFiles
from temper.rollout.engine.drawn import log_softmax, support

PROMPTS = [PROMPT, LONG, (0,), (63,) * 17, LONG[3:35], LONG[::-1]]


@pytest.fixture
def reference(kind: Kind) -> Callable[[PolicyFiles], Logits]:
    return next(REFERENCES[name] for name, each in ENGINES.items() if each is kind)


def assert_agrees(done: Completion, prompt: tuple[int, ...], logits: Logits, greedy: bool = True) -> None:
    for index, token in enumerate(done.tokens):
        raw = log_softmax(logits(prompt + done.tokens[:index]))
        assert not greedy or token == int(raw.argmax())
        assert done.logprobs_raw[index] == pytest.approx(raw[token], abs=1e-4)


async def test_greedy_takes_every_token_that_the_reference_takes(engine: Engine, reference):
    logits = reference(policy(1))
    requests = [ask(f"p{i}", each, count=24, temperature=0.0) for i, each in enumerate(PROMPTS)]
    for prompt, done in zip(PROMPTS, await asyncio.gather(*map(engine.submit, requests)), strict=True):
        assert len(done.tokens) == 24
        assert_agrees(done, prompt, logits)


async def test_sampled_tokens_have_the_reference_logprobs(engine: Engine, reference):
    logits = reference(policy(1))
    for index, prompt in enumerate(PROMPTS):
        done = await engine.submit(ask(f"s{index}", prompt, count=24, sample=index))
        assert_agrees(done, prompt, logits, greedy=False)


async def test_processed_logprobs_and_mass_follow_from_the_reference(engine: Engine, reference):
    logits = reference(policy(1))
    request = ask("t", LONG, count=16, temperature=0.7, top_k=12, top_p=0.9, min_p=0.02)
    done = await engine.submit(request)
    for index, token in enumerate(done.tokens):
        scaled = log_softmax(logits(LONG + done.tokens[:index]) / 0.7)
        left = support(scaled, request.sampling)
        mass = np.log(np.exp(scaled[left]).sum())
        assert left[token]
        assert done.log_surviving_mass[index] == pytest.approx(mass, abs=1e-4)
        assert done.logprobs[index] == pytest.approx(scaled[token] - mass, abs=1e-4)


async def test_a_first_token_is_drawn_from_the_distribution_that_is_reported(engine: Engine, reference):
    probabilities = np.exp(log_softmax(reference(policy(1))(PROMPT)))
    count = 400
    drawn = await asyncio.gather(
        *(engine.submit(ask(f"d{i}", sample=i, seed=17, count=1)) for i in range(count))
    )
    observed = np.bincount([done.tokens[0] for done in drawn], minlength=VOCAB)
    likely = probabilities * count >= 5
    expected = np.append(probabilities[likely], probabilities[~likely].sum()) * count
    counted = np.append(observed[likely], observed[~likely].sum())
    statistic = ((counted - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)  # five standard deviations of chi-squared


async def test_negated_weights_give_what_the_reference_gives_for_them(engine: Engine, reference):
    """The vendor's own test of weight updates, with prefixes of the old weights in the cache."""
    await engine.submit(ask("warm", LONG))
    tensors = {name: -tensor for name, tensor in load(policy(1).shards[0]).items()}
    negated = PolicyFiles(2, CONFIG, (save(tensors),))
    await engine.load(negated)
    await engine.swap(2)
    done = await engine.submit(ask("after", LONG, count=24, temperature=0.0))
    assert_agrees(done, LONG, reference(negated))


async def test_a_needle_in_a_crowd_is_found_as_if_alone(engine: Engine):
    """The same prompt among 64 others, at several places: not one different token."""
    alone = await engine.submit(ask("alone", LONG, count=20, temperature=0.0))
    for trial in range(3):
        crowd = [
            ask(f"{trial}-{i}", LONG[i % 40 :][: 1 + 3 * i % 45], sample=i, count=1 + i % 12)
            for i in range(64)
        ]
        crowd.insert(20 * trial + 3, ask(f"needle-{trial}", LONG, count=20, temperature=0.0))
        finished = await asyncio.gather(*map(engine.submit, crowd))
        needle = next(done for done in finished if done.request_id == f"needle-{trial}")
        assert needle.tokens == alone.tokens
