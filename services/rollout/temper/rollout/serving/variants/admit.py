"""Run both variants on the same corpus, tasks and seeds, and decide."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from temper.rollout.engine.base import Completion, Engine, FinishReason, Request, Sampling
from temper.rollout.serving.decode import Decoder
from temper.rollout.serving.directory import Model
from temper.rollout.serving.gather import gathered
from temper.rollout.serving.variants.evidence import (
    Bounds,
    Drift,
    Paired,
    Speculation,
    drift,
    paired,
    same_distribution,
    shortfalls,
)
from temper.rollout.serving.variants.golden import Task, read_corpus, read_golden
from temper.rollout.serving.variants.record import Record
from temper.runtime.clock import Clock
from temper.runtime.errors import Rejected, Unavailable

_SPECULATED_PROMPTS, _FEW = 4, 16
_LENGTH, _JOINT, _ALPHABET = 8, 3, 3  # tokens
_BIAS = 60.0  # to the logits: nothing else is drawn
_REQUEST_S = 600.0  # each, from when it is submitted
_AT_ONCE = 64
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Side:
    """One variant, running."""

    model: Model
    """Its weights."""
    engine: Engine
    """Started and loaded."""
    digest: str
    """Of weights and settings."""
    speculates: bool = False
    """Whether its settings ask for drafts: then the admission must have seen some."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What an admission is asked to look at."""

    corpus: Path
    """Texts, one per line."""
    golden: Path
    """Tasks, one JSON object per line."""
    seeds: int = 4
    """Outputs per task, seeds 0, 1, ..."""
    temperature: float = 1.0
    """Of the tasks' outputs; 0 is greedy, where one seed is enough."""
    samples: int = 400
    """Outputs per prompt and arm of the test of speculation."""
    bounds: Bounds = field(default_factory=Bounds)
    """What has to hold."""


class Admission:
    """Both sides and a clock."""

    def __init__(self, standard: Side, fast: Side, clock: Clock) -> None:
        self._standard, self._fast, self._clock = standard, fast, clock
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._seeds = itertools.count()  # each draw of the test of speculation is independent of all others

    async def decide(self, trial: Trial) -> tuple[Record, list[str]]:
        """The record, and why the variant is refused: the record counts only when that list is empty."""
        if self._standard.model.tokens != self._fast.model.tokens:
            raise Rejected("the two variants have different tokenizers", field="--fast-model")
        limit = min(side.engine.info.max_context for side in (self._standard, self._fast)) - 1
        corpus, corpus_digest = read_corpus(trial.corpus, self._standard.model, limit)
        tasks, golden_digest = read_golden(trial.golden, self._standard.model)
        found = await self._drift(corpus)
        speculation = await self._speculation(corpus, limit, trial.samples)
        golden, speed = await self._golden(tasks, trial)
        record = Record(
            standard=self._standard.digest,
            fast=self._fast.digest,
            corpus=corpus_digest,
            golden=golden_digest,
            admitted_at=self._clock.now(),
            bounds=asdict(trial.bounds),
            evidence={
                "drift": asdict(found),
                "speculation": asdict(speculation),
                "golden": asdict(golden),
                "speed": speed,
            },
        )
        return record, shortfalls(
            trial.bounds, found, golden, speculation, must_speculate=self._fast.speculates
        )

    async def _drift(self, corpus: Sequence[Sequence[int]]) -> Drift:
        scores: list[list[float]] = []
        for side in (self._standard, self._fast):
            done = await gathered([self._score(side.engine, tokens) for tokens in corpus])
            scores.append([value for each in done for value in each])
        return drift(scores[0], scores[1])

    async def _score(self, engine: Engine, tokens: Sequence[int]) -> list[float]:
        request = self._request(tokens, Sampling(1, temperature=0.0), seed=0, scored=True)
        done = await self._run(engine, request)
        return [value for value in done.prompt_logprobs if value is not None]

    async def _speculation(self, corpus: Sequence[Sequence[int]], limit: int, samples: int) -> Speculation:
        """Outputs over an alphabet of three tokens, behind all their triples.

        Whatever is drawn has been there before, so drafts are proposed from the first step on; and all outputs of a prompt
        share its one context, which is what gives the test its power.
        """
        engine = self._fast.engine
        before = engine.stats().drafts_proposed
        values: list[float] = []
        for tokens in corpus[:_SPECULATED_PROMPTS]:
            alphabet = sorted(set(tokens))[:_ALPHABET]
            triples = [token for triple in itertools.product(alphabet, repeat=3) for token in triple]
            prompt = [*tokens, *triples][-max(2, limit - _LENGTH) :]
            if not values:
                await self._joint(prompt, alphabet, _FEW, speculate=True)
                if engine.stats().drafts_proposed == before:
                    return Speculation(0, 0, 1.0)
            drafted = await self._joint(prompt, alphabet, samples, speculate=True)
            plain = await self._joint(prompt, alphabet, samples, speculate=False)
            values.append(same_distribution(drafted, plain))
        proposed = engine.stats().drafts_proposed - before
        return Speculation(proposed, len(values), min(1.0, min(values) * len(values)))

    async def _joint(
        self, prompt: Sequence[int], alphabet: Sequence[int], samples: int, *, speculate: bool
    ) -> list[tuple[int, ...]]:
        """The first three tokens of each output; the longer output leaves room for drafts."""
        sampling = Sampling(_LENGTH, logit_bias=tuple((token, _BIAS) for token in alphabet))
        requests = [
            self._request(prompt, sampling, seed=next(self._seeds), speculate=speculate)
            for _ in range(samples)
        ]
        done = await gathered([self._run(self._fast.engine, request) for request in requests])
        return [each.tokens[:_JOINT] for each in done]

    async def _golden(self, tasks: Sequence[Task], trial: Trial) -> tuple[Paired, dict[str, float | None]]:
        scores: list[list[list[float]]] = []
        speed: dict[str, float | None] = {}
        for name, side in (("standard", self._standard), ("fast", self._fast)):
            before = side.engine.stats()
            runs = [(task, seed) for task in tasks for seed in range(trial.seeds)]
            found = await gathered([self._solve(side, task, seed, trial.temperature) for task, seed in runs])
            after = side.engine.stats()
            busy = after.busy_seconds - before.busy_seconds
            tokens = after.generated_tokens - before.generated_tokens
            speed[f"{name}_tokens_per_second"] = tokens / busy if busy > 0 else None
            speed[f"{name}_tokens_per_task"] = tokens / len(runs)
            scores.append([found[at : at + trial.seeds] for at in range(0, len(found), trial.seeds)])
        return paired(scores[0], scores[1]), speed

    async def _solve(self, side: Side, task: Task, seed: int, temperature: float) -> float:
        sampling = Sampling(task.max_tokens, temperature=temperature, stop_token_ids=side.model.stop_ids)
        request = self._request(task.prompt, sampling, seed=seed)
        done = await self._run(side.engine, request)
        decoder = Decoder(side.model.tokens)
        return task.score("".join(decoder.feed(token) for token in done.tokens) + decoder.flush())

    async def _run(self, engine: Engine, request: Request) -> Completion:
        """One output, whole: one that was cut off says nothing about either variant."""
        async with self._places:
            done = await engine.submit(replace(request, deadline=self._clock.monotonic() + _REQUEST_S))
        if done.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            raise Unavailable(
                f"an output ended with {done.finish} after {_REQUEST_S:g} s", hint="use shorter tasks"
            )
        return done

    def _request(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,
        scored: bool = False,
        speculate: bool = True,
    ) -> Request:
        return Request(
            request_id=f"admit-{next(_numbers)}",
            tokens=tuple(tokens),
            sampling=sampling,
            seed=seed,
            sample_index=0,
            prompt_logprobs=scored,
            speculate=speculate,
        )
