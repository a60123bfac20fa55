"""Requests of the suite, and what must hold for every completion."""

import asyncio
import itertools
import math

from temper.rollout.engine.base import (
    Completion,
    Emitted,
    Engine,
    FinishReason,
    Request,
    Sampling,
    Span,
    SwapPolicy,
)

PROMPT = (5, 9, 2, 40, 33, 7, 1)
LONG = tuple((7 * i + 3) % 61 for i in range(50))  # more than three blocks of 16
TRIES = 50  # times that a test may miss a sequence in flight before it gives up

_barriers = itertools.count()


def ask(
    name: str,
    tokens=PROMPT,
    *,
    count=12,
    sample=0,
    seed=3,
    keep=False,
    continues=None,
    deadline=None,
    attempt=1,
    group="",
    tenant="",
    priority=0,
    prompt_logprobs=False,
    **sampling,
):
    return Request(
        name,
        tuple(tokens),
        Sampling(count, **sampling),
        seed,
        sample,
        deadline=deadline,
        continues=continues,
        keep=keep,
        attempt=attempt,
        group=group,
        tenant=tenant,
        priority=priority,
        prompt_logprobs=prompt_logprobs,
    )


async def settle(engine: Engine) -> None:
    """Let an engine that works on a thread or a task see what was posted: a request through it is a barrier."""
    await engine.submit(ask(f"barrier-{next(_barriers)}", count=1))


def assert_aligned(done: Completion) -> None:
    size = len(done.tokens)
    assert len(done.logprobs_raw) == len(done.logprobs) == len(done.log_surviving_mass) == size
    assert all(math.isfinite(value) and value <= 1e-5 for value in done.logprobs_raw + done.logprobs)
    assert not done.top_logprobs or len(done.top_logprobs) == size
    assert_spans(done.weight_versions, size)
    assert_spans(done.kv_origin_versions, size if done.kv_origin_versions else 0)


def assert_spans(spans: tuple[Span, ...], size: int) -> None:
    assert [span.start for span in spans] == [0, *(span.end for span in spans)][: len(spans)]
    assert not size or spans[-1].end == size
    assert size or not spans
    assert all(one.version != two.version for one, two in itertools.pairwise(spans))


def versions(spans: tuple[Span, ...]) -> list[int]:
    return [span.version for span in spans]


class Watch:
    """A sink that remembers, and lets a test wait for the first token."""

    def __init__(self) -> None:
        self.seen: list[Emitted] = []
        self._arrived = asyncio.Event()

    def __call__(self, emitted: Emitted) -> None:
        self.seen.append(emitted)
        self._arrived.set()

    async def first(self) -> None:
        await self._arrived.wait()

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for emitted in self.seen for token in emitted.tokens)


async def swap_midway(engine: Engine, staged, policy: SwapPolicy, **fields):
    """Swap while a long request is in flight; one that was too quick is followed by another.

    ``staged(version)`` gives the files of a version. Returns the new version, the report and the completion.
    """
    for version in range(2, 2 + TRIES):
        await engine.load(staged(version))
        watch = Watch()
        pending = engine.submit(ask(f"midway-{version}", count=80, **fields), watch)
        await watch.first()
        report = await engine.swap(version, policy)
        done = await pending
        assert_aligned(done)
        assert done.tokens == watch.tokens
        crossed = versions(done.weight_versions) == [version - 1, version]
        if crossed or policy is SwapPolicy.WAIT or done.finish is FinishReason.ABORT:
            return version, report, done
    raise AssertionError(f"every one of {TRIES} sequences was done before the swap")


async def pause_midway(engine: Engine, **fields):
    """Pause while a long request is in flight; one that was too quick is followed by another."""
    for turn in range(TRIES):
        watch = Watch()
        pending = engine.submit(ask(f"paused-{turn}", count=80, **fields), watch)
        await watch.first()
        await engine.pause()
        stats = engine.stats()
        if stats.running + stats.waiting:
            return pending, watch
        await engine.resume()
        await pending
    raise AssertionError(f"every one of {TRIES} sequences was done before the pause")
