"""The torch engine against ``transformers``, and against itself."""

import asyncio
import json
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from tests.unit.rollout.policies import CONTEXT, FAMILIES, VOCAB, files_of, reference

from temper.rollout.engine.base import Completion, PolicyFiles, Request, Sampling, Span, SwapPolicy
from temper.rollout.engine.torch.architecture import RopeConfig, read_architecture
from temper.rollout.engine.torch.engine import TorchEngine
from temper.rollout.engine.torch.loop import Loop
from temper.rollout.engine.torch.model import Model
from temper.rollout.engine.torch.rope import frequencies, interleave
from temper.rollout.engine.torch.roster import Limits
from temper.rollout.engine.torch.weights import Weights, read_weights
from temper.runtime.errors import Rejected


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [1, 2, 63, 64, 65, 17, 40, 96, 5, 70][:count]
    return [tuple(torch.randint(0, VOCAB, (size,), generator=generator).tolist()) for size in sizes]


async def engine_of(model: Any, **options) -> TorchEngine:
    engine = TorchEngine(max_context=CONTEXT, **options)
    await engine.start()
    await engine.load(files_of(model))
    await engine.swap(1)
    return engine


def reference_logprobs(model: Any, prompt: tuple[int, ...], done: Completion) -> torch.Tensor:
    """Log softmax of the reference where the output's tokens were drawn: ``[output, vocab]``."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *done.tokens]])).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)[len(prompt) - 1 : -1]


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_greedy_tokens_and_logprobs_equal_the_reference(family: str):
    model = reference(family)
    engine = await engine_of(model)
    asked = prompts(8)
    done = await asyncio.gather(
        *(
            engine.submit(Request(f"r{i}", p, Sampling(70, temperature=0.0), 0, 0))
            for i, p in enumerate(asked)
        )
    )
    await engine.close()
    for prompt, one in zip(asked, done, strict=True):
        expected = reference_logprobs(model, prompt, one)
        assert expected.argmax(dim=-1).tolist() == list(one.tokens)
        taken = expected.gather(1, torch.tensor(one.tokens)[:, None])[:, 0]
        assert (taken - torch.tensor(one.logprobs_raw)).abs().max() < 1e-4


async def test_sampled_logprobs_equal_the_reference_after_temperature():
    model = reference("llama")
    engine = await engine_of(model)
    (prompt,) = prompts(1, seed=4)
    done = await engine.submit(Request("r", prompt, Sampling(40, temperature=0.7), 5, 2))
    await engine.close()
    raw = reference_logprobs(model, prompt, done)
    scaled = torch.log_softmax(raw / 0.7, dim=-1).gather(1, torch.tensor(done.tokens)[:, None])[:, 0]
    assert (scaled - torch.tensor(done.logprobs)).abs().max() < 1e-4


async def test_turns_equal_the_reference_across_three_continuations():
    model = reference("qwen3")
    engine = await engine_of(model)
    context: tuple[int, ...] = ()
    kept = None
    for turn in range(3):
        given = prompts(4, seed=turn)[3 - turn]
        request = Request(f"t{turn}", given, Sampling(9, temperature=0.0), 0, 0, continues=kept, keep=True)
        done = await engine.submit(request)
        expected = reference_logprobs(model, context + given, done)
        assert expected.argmax(dim=-1).tolist() == list(done.tokens)
        context, kept = context + given + done.tokens, request.request_id
    await engine.close()


async def test_negated_weights_in_flight_equal_the_negated_reference():
    model = reference("llama")
    engine = await engine_of(model)
    negated = reference("llama")
    with torch.no_grad():
        for value in negated.parameters():
            value.neg_()
    flying = engine.submit(Request("flying", prompts(5)[4], Sampling(200), 0, 0))
    await engine.load(files_of(negated, version=2))
    await engine.swap(2)
    prompt = prompts(3, seed=8)[2]
    done = await engine.submit(Request("r", prompt, Sampling(30, temperature=0.0), 0, 0))
    assert reference_logprobs(negated, prompt, done).argmax(dim=-1).tolist() == list(done.tokens)
    assert (await flying).weight_versions[-1] == Span((await flying).weight_versions[-1].start, 200, 2)
    await engine.close()


# ---------------------------------------------------------------- one step at a time


def weights_of(model: Any, version: int = 1) -> Weights:
    files = files_of(model)
    return read_weights(read_architecture(files.config), files.shards, version)


def loop_of(model: Any, *, slots=8, prefill=64, units=40, context=CONTEXT, exact=True) -> Loop:
    shape = read_architecture(files_of(model).config)
    loop = Loop(Model(shape, batch_invariant=exact), Limits(slots, prefill, context, exact), units)
    loop.swap(weights_of(model), SwapPolicy.KEEP)
    return loop


def finished(loop: Loop) -> dict[str, Completion]:
    return {one.request_id: one for one in loop.drain()[1]}


def run(loop: Loop) -> dict[str, Completion]:
    done: dict[str, Completion] = finished(loop)
    while loop.step():
        done |= finished(loop)
    return done


@pytest.fixture(scope="module")
def llama() -> Any:
    return reference("llama")


@pytest.mark.parametrize("prefill", [16, 100, 4096])
def test_a_prompt_in_chunks_and_in_company_gives_the_same_numbers(llama: Any, prefill: int):
    long = tuple(i * 7 % VOCAB for i in range(300))
    with torch.inference_mode():
        alone = loop_of(llama, prefill=4096)
        alone.add(Request("x", long, Sampling(10), 1, 0))
        expected = run(alone)["x"]
        loop = loop_of(llama, prefill=prefill)
        for i, prompt in enumerate(prompts(10)):
            loop.add(Request(f"n{i}", prompt, Sampling(1 + 4 * i), i, i))
        loop.add(Request("x", long, Sampling(10), 1, 0))
        found = run(loop)["x"]
    assert found.tokens == expected.tokens
    assert found.logprobs_raw == expected.logprobs_raw


def test_without_batch_invariance_the_numbers_do_depend_on_the_company(llama: Any):
    """The inverse: a check of bits that cannot fail proves nothing."""
    found: dict[bool, list[tuple[float, ...]]] = {}
    for invariant in (True, False):
        for crowd in (0, 6):
            with torch.inference_mode():
                loop = loop_of(llama, exact=invariant, prefill=4096)
                for i in range(crowd):
                    loop.add(Request(f"n{i}", (i, 2, 3), Sampling(60), i, i))
                loop.add(Request("x", (5, 6, 7), Sampling(40, temperature=0.0), 1, 0))
                found.setdefault(invariant, []).append(run(loop)["x"].logprobs_raw)
    assert found[True][0] == found[True][1]
    assert found[False][0] != found[False][1]


def test_a_group_fills_one_prompt(llama: Any):
    prompt = prompts(8)[7]
    with torch.inference_mode():
        loop = loop_of(llama)
        for i in range(8):
            loop.add(Request(f"g{i}", prompt, Sampling(5), 1, i))
        done = run(loop)
    assert loop.prefilled == len(prompt)
    assert sorted(one.cached_tokens for one in done.values()) == [0] + [len(prompt)] * 7
    assert len({one.tokens for one in done.values()}) > 4


def test_a_chunked_prompt_across_a_swap_says_which_version_computed_what(llama: Any):
    prompt = tuple(i % VOCAB for i in range(300))
    with torch.inference_mode():
        loop = loop_of(llama, prefill=16)
        loop.add(Request("x", prompt, Sampling(4), 1, 0))
        loop.step()
        loop.swap(weights_of(llama, 2), SwapPolicy.KEEP)
        done = run(loop)["x"]
    assert done.prefill_versions == (Span(0, 256, 1), Span(256, 300, 2))
    assert done.weight_versions == (Span(0, 4, 2),)
    assert done.kv_origin_versions == (Span(0, 4, 1),)


def test_two_updates_make_three_spans_and_announcing_again_none(llama: Any):
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("x", (1, 2, 3), Sampling(9), 1, 0))
        for version, steps in ((1, 3), (2, 3), (2, 1), (3, 9)):
            loop.swap(weights_of(llama, version), SwapPolicy.KEEP)
            for _ in range(steps):
                loop.step()
        done = finished(loop)["x"]
    assert done.weight_versions == (Span(0, 3, 1), Span(3, 7, 2), Span(7, 9, 3))
    assert done.kv_origin_versions == (Span(0, 9, 1),)


def test_an_aborted_sequence_is_not_kept(llama: Any):
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("a", (1, 2, 3), Sampling(50), 1, 0, keep=True))
        loop.step()
        loop.cancel("a")
        loop.cancel("a")
    assert len(finished(loop)) == 1
    assert (loop.running, len(loop.schedule.waiting), len(loop.schedule.kept), loop.kv_tokens) == (0, 0, 0, 0)


def test_the_count_of_kv_tokens_follows_what_happens_between_steps(llama: Any):
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("a", (1, 2, 3), Sampling(2), 1, 0, keep=True))
        run(loop)
        assert loop.kv_tokens == 4  # the last token is never fed
        loop.schedule.release("a")
        assert loop.kv_tokens == 0


def test_cancelling_one_of_a_group_in_prefill_leaves_the_others(llama: Any):
    prompt = tuple(i % VOCAB for i in range(300))
    with torch.inference_mode():
        loop = loop_of(llama, prefill=16)
        for i in range(3):
            loop.add(Request(f"g{i}", prompt, Sampling(2), 1, i))
        loop.step()
        loop.cancel("g0")
        done = run(loop)
    assert {name: len(one.tokens) for name, one in done.items()} == {"g0": 0, "g1": 2, "g2": 2}
    assert loop.kv_tokens == 0
    assert loop.prefilled == 300


# ---------------------------------------------------------------- what is read from files


def test_rope_frequencies_of_the_published_vectors():
    plain = frequencies(RopeConfig(10000.0, "default"), 128)
    assert plain[[0, 1, 16, 32, 48, 63]].tolist() == pytest.approx(
        [1, 0.86596, 0.1, 0.01, 1e-3, 1.1548e-4], rel=1e-4
    )
    assert frequencies(RopeConfig(10000.0, "linear", 10.0), 128).tolist() == pytest.approx(
        (plain / 10).tolist()
    )
    llama3 = frequencies(RopeConfig(10000.0, "llama3", 10.0, 2048, 1.0, 4.0), 128)
    at = [30, 31, 32, 36, 40, 41]
    expected = [1.3335e-2, 1.0730e-2, 7.7785e-3, 1.9675e-3, 3.4539e-4, 2.7384e-4]
    assert llama3[at].tolist() == pytest.approx(expected, rel=1e-4)


def test_interleaving_pairs_the_halves():
    assert interleave(torch.arange(8), 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"hidden_size": 0}, "hidden_size must be a positive integer"),
        ({"num_key_value_heads": 3}, "does not divide"),
        ({"head_dim": 13}, "must be even"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(llama: Any, change: dict[str, Any], words: str):
    with pytest.raises(Rejected, match=words):
        read_architecture({**files_of(llama).config, **change})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "extra is not part"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}), r"is \[3\]"),
        (lambda tensors: tensors["lm_head.weight"].fill_(torch.nan), "not finite"),
    ],
)
async def test_weights_that_do_not_fit_are_refused_by_name(llama: Any, spoil: Any, words: str):
    files = files_of(llama, version=2)
    tensors = load(files.shards[0])
    spoil(tensors)
    engine = await engine_of(llama)
    with pytest.raises(Rejected, match=words):
        await engine.load(PolicyFiles(2, files.config, (save(tensors),)))
    with pytest.raises(Rejected, match="not a safetensors file"):
        await engine.load(PolicyFiles(2, files.config, (b"junk",)))
    with pytest.raises(Rejected, match="two shards"):
        await engine.load(PolicyFiles(2, files.config, files.shards * 2))
    assert engine.stats().version == 1
    await engine.close()


def test_the_config_of_a_published_policy_is_json(llama: Any):
    assert read_architecture(json.loads(json.dumps(files_of(llama).config))).vocab == VOCAB
