"""Batch-invariant mode: the same bits alone, in a crowd, after preemption, through the prefix cache and after a restart."""

import asyncio
import threading
from typing import Any

import pytest
import torch
from tests.unit.rollout.policies import CONTEXT, VOCAB, files_of, reference
from tests.unit.rollout.test_torch_engine import engine_of, finished, loop_of, prompts, run, weights_of

from temper.rollout.engine.base import Completion, Request, Sampling, SwapPolicy
from temper.rollout.engine.torch.engine import TorchEngine
from temper.rollout.engine.torch.model import Model
from temper.runtime.errors import Rejected, Unavailable

LONG = tuple(i * 7 % VOCAB for i in range(290))


@pytest.fixture(scope="module")
def llama() -> Any:
    return reference("llama")


def numbers(done: Completion) -> tuple[object, ...]:
    return done.tokens, done.logprobs_raw, done.logprobs


def alone(model: Any, request: Request, **options: Any) -> Completion:
    with torch.inference_mode():
        loop = loop_of(model, prefill=4096, **options)
        loop.add(request)
        return run(loop)[request.request_id]


def test_thirty_two_prompts_one_by_one_and_together(llama: Any):
    """32 prompts, T .6, seed 1234, batch 1 against batch 32: equal in every bit."""
    asked = [
        Request(f"r{i}", (i, *prompts(10)[i % 10]), Sampling(12, temperature=0.6), 1234, i) for i in range(32)
    ]
    with torch.inference_mode():
        loop = loop_of(llama, slots=32)
        for request in asked:
            loop.add(request)
        together = run(loop)
        for request in asked:
            loop = loop_of(llama, slots=1)
            loop.add(request)
            assert numbers(run(loop)[request.request_id]) == numbers(together[request.request_id])


@pytest.mark.parametrize("place", [0, 17, 63])
def test_a_needle_in_a_crowd_of_sixty_four(llama: Any, place: int):
    needle = Request("needle", LONG[:70], Sampling(20), 5, 0)
    with torch.inference_mode():
        loop = loop_of(llama, slots=64)
        for i in range(64):
            loop.add(needle if i == place else Request(f"n{i}", (i, 1, 2), Sampling(5 + i % 20), i, i))
        found = run(loop)["needle"]
    assert numbers(found) == numbers(alone(llama, needle))


@pytest.mark.parametrize("length", [40, 256, 290])
def test_a_prefix_hit_changes_no_bit(llama: Any, length: int):
    request = Request("x", LONG[:length], Sampling(20), 1, 0)
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("first", LONG[: length - 3], Sampling(5), 9, 9))
        run(loop)
        loop.add(request)
        found = run(loop)["x"]
    assert found.cached_tokens >= (length - 3) // 16 * 16
    assert numbers(found) == numbers(alone(llama, request))


def test_what_was_decoded_is_no_prefix_of_a_prompt(llama: Any):
    """A decode step gives other bits than prefill: such blocks are found by who decoded them, and by nobody else."""
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("first", LONG[:20], Sampling(60), 1, 0))
        first = run(loop)["first"]
        request = Request("x", LONG[:20] + first.tokens, Sampling(5), 1, 0)
        loop.add(request)
        found = run(loop)["x"]
    assert found.cached_tokens == 16
    assert numbers(found) == numbers(alone(llama, request))


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 9, 25])
def test_preemption_at_any_step_changes_no_bit(llama: Any, steps: int, *, forget: bool):
    """With its blocks still there, and with all of them gone: then the decoded tokens are decoded again."""
    request = Request("x", LONG[:50], Sampling(30), 1, 0)
    with torch.inference_mode():
        loop = loop_of(llama)
        for i in range(3):
            loop.add(Request(f"n{i}", (i, 4), Sampling(40), i, i))
        loop.add(request)
        for _ in range(steps):
            loop.step()
        (sequence,) = (s for s in loop.schedule.admitted if s.request.request_id == "x")
        loop.schedule.put_back(sequence)
        if forget:
            loop.pool.forget()
        found = run(loop)["x"]
    assert numbers(found) == numbers(alone(llama, request))


def test_evicted_turns_are_computed_again_to_the_bit(llama: Any):
    """Also the turns' edges and the decoded tokens between them."""
    found = []
    for evict in (False, True):
        with torch.inference_mode():
            loop = loop_of(llama)
            loop.add(Request("a", prompts(7)[6], Sampling(40), 1, 0, keep=True))
            run(loop)
            loop.add(Request("b", (4, 5, 6), Sampling(20), 2, 0, continues="a", keep=True))
            run(loop)
            if evict:
                loop.pool.forget()
                while loop.schedule.evict_kept():
                    pass
            loop.add(Request("c", (7,), Sampling(10), 3, 0, continues="b"))
            found.append(run(loop)["c"])
    kept, evicted = found
    assert kept.cached_tokens == 40 + 40 + 3 + 20 - 1
    assert evicted.cached_tokens == 0
    assert numbers(kept) == numbers(evicted)


@pytest.mark.parametrize("exact", [True, False])
def test_prime_rl_1650_asking_for_prompt_logprobs_changes_nothing(llama: Any, *, exact: bool):
    """prime-rl PR#1650, vllm PR#29071, #8268, #14239: full vectors, cache or not, in chunks and after preemption."""
    plain = Request("plain", LONG, Sampling(10), 1, 0)
    asked = Request("asked", LONG, Sampling(10), 1, 0, prompt_logprobs=True)
    with torch.inference_mode():
        loop = loop_of(llama, exact=exact, prefill=64)
        loop.add(plain)
        before = run(loop)["plain"]
        loop.add(asked)
        loop.step()
        loop.schedule.put_back(loop.schedule.admitted[0])
        loop.add(Request("member", LONG, Sampling(10), 1, 0, prompt_logprobs=True))
        done = run(loop)
        scores = torch.log_softmax(llama(torch.tensor([LONG])).logits[0].double(), dim=-1)
    expected = scores[:-1].gather(1, torch.tensor(LONG[1:])[:, None])[:, 0]
    for name in ("asked", "member"):
        found = done[name].prompt_logprobs
        assert found[0] is None
        assert len(found) == len(LONG)
        assert (torch.tensor(found[1:]) - expected).abs().max() < 1e-4
        assert done[name].tokens == before.tokens
        if exact:
            assert numbers(done[name]) == numbers(before)


def test_prompt_logprobs_of_a_later_turn_begin_with_its_first_token(llama: Any):
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("a", LONG[:20], Sampling(5), 1, 0, keep=True))
        first = run(loop)["a"]
        loop.add(Request("b", (3, 4, 5), Sampling(2), 1, 0, continues="a", prompt_logprobs=True))
        done = run(loop)["b"]
        context = (*LONG[:20], *first.tokens, 3, 4, 5)
        scores = torch.log_softmax(llama(torch.tensor([context])).logits[0].double(), dim=-1)
    expected = [float(scores[24 + i, token]) for i, token in enumerate((3, 4, 5))]
    assert done.prompt_logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_group_on_shared_segments_equals_the_reference(family: str):
    """Fast mode: the shared segment is attended by all members at once (cascade)."""
    model = reference(family)
    with torch.inference_mode():
        loop = loop_of(model, exact=False)
        for i in range(6):
            loop.add(Request(f"g{i}", LONG, Sampling(20, temperature=1.0), 1, i))
        done = run(loop)
        for one in done.values():
            logits = model(torch.tensor([[*LONG, *one.tokens]])).logits[0]
            scores = torch.log_softmax(logits.double(), dim=-1)[len(LONG) - 1 : -1]
            taken = scores.gather(1, torch.tensor(one.tokens)[:, None])[:, 0]
            assert (taken - torch.tensor(one.logprobs_raw)).abs().max() < 1e-4


def test_sglang_22273_an_abort_writes_nothing_back(llama: Any):
    """sglang PR#22273: the conversation that was cut at the limit and aborted leaves its neighbours' KV alone."""
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("a", LONG, Sampling(200), 1, 0, keep=True))
        loop.add(Request("n", LONG[:9], Sampling(60), 1, 0))
        for _ in range(10):
            loop.step()
        loop.cancel("a")
        done = finished(loop) | run(loop)
        assert loop.pool.book().held == 0
    assert numbers(done["n"]) == numbers(alone(llama, Request("n", LONG[:9], Sampling(60), 1, 0)))


def test_a_swap_to_equal_weights_by_recomputation_gives_what_prefill_would(llama: Any):
    with torch.inference_mode():
        loop = loop_of(llama)
        loop.add(Request("x", LONG[:50], Sampling(30), 1, 0))
        for _ in range(10):
            loop.step()
        loop.swap(weights_of(llama, 2), SwapPolicy.RECOMPUTE)
        done = run(loop)["x"]
    whole = alone(llama, Request("w", LONG[:50] + done.tokens[:10], Sampling(20), 1, 0))
    assert done.tokens[10:] == whole.tokens
    assert done.logprobs_raw[10:] == whole.logprobs_raw


# ---------------------------------------------------------------- the thread around it


async def test_a_policy_that_cannot_fit_is_refused_before_it_is_read(llama: Any):
    engine = TorchEngine(max_context=64, memory_mib=1)
    await engine.start()
    with pytest.raises(Rejected, match=r"memory_mib is 1; lower kv_tokens"):
        await engine.load(files_of(llama))
    await engine.close()


async def test_a_dead_thread_fails_whoever_waits(llama: Any, monkeypatch: pytest.MonkeyPatch):
    """The watchdog: futures, swaps and pauses end at once, and the engine says that it does not live."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    engine = await engine_of(llama)
    await engine.pause()
    pending = engine.submit(Request("r", (1, 2), Sampling(5), 0, 0))

    def die() -> None:
        raise Unavailable("a failure in a step")

    engine._inbox.post(die)
    with pytest.raises(Unavailable, match=r"a step failed: .*a failure in a step"):
        await pending
    await asyncio.to_thread(engine._thread.join)
    assert not engine.alive
    with pytest.raises(Unavailable):
        await engine.pause()
    with pytest.raises(Unavailable):
        engine.submit(Request("s", (1, 2), Sampling(5), 0, 0))


async def test_a_step_that_hangs_fails_whoever_waits_and_is_named(
    llama: Any, monkeypatch: pytest.MonkeyPatch
):
    """Requests, swaps and pauses end when a step is over its limit, not at deadlines of their own."""
    engine, now = TorchEngine(max_context=CONTEXT, step_limit_s=60.0), [0.0]
    engine._watch.monotonic = lambda: now[0]
    await engine.start()
    await engine.load(files_of(llama))
    await engine.swap(1)
    loop = asyncio.get_running_loop()
    hanging, released = asyncio.Event(), threading.Event()

    forward = Model.forward

    def hang_in_a_kernel(*arguments: Any) -> torch.Tensor:
        loop.call_soon_threadsafe(hanging.set)
        released.wait()
        return forward(*arguments)

    monkeypatch.setattr(Model, "forward", hang_in_a_kernel)
    pending = engine.submit(Request("stuck", (1, 2), Sampling(5), 0, 0))
    await hanging.wait()
    pausing = asyncio.create_task(engine.pause())
    assert engine.alive
    now[0] = 61.0
    with pytest.raises(Unavailable, match=r"hangs for over 60 s in .*hang_in_a_kernel.* with stuck"):
        await pending
    with pytest.raises(Unavailable, match="hang_in_a_kernel"):
        await pausing
    with pytest.raises(Unavailable, match="hang_in_a_kernel"):
        engine.submit(Request("next", (1, 2), Sampling(5), 0, 0))
    assert not engine.alive
    await engine.close()  # and does not wait for it
    released.set()
    await asyncio.to_thread(
        engine._thread.join
    )  # it ends when it comes back, and nobody hears of what it brings


async def test_a_pool_smaller_than_the_context_lowers_the_limit_everywhere(llama: Any):
    """vllm#40302, #16445: one limit, at the door and in the schedule."""
    engine = await engine_of(llama, kv_tokens=768)
    limit = engine.info.max_context
    assert limit < 320
    with pytest.raises(Rejected, match="over the limit"):
        engine.submit(Request("r", (1,) * limit, Sampling(5), 0, 0))
    done = await engine.submit(Request("s", (1,) * (limit - 2), Sampling(50), 0, 0))
    assert len(done.tokens) == 2
    await engine.close()
